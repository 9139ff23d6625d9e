"""How views are refreshed, and how fresh a read has to be."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .changetables.errors import InterfaceError, StaleRead
from .coordinator.embedded import wall_clock_ms
from .coordinator.ports import GroupMoved, Switched
from .coordinator.timestamps import to_ms
from .coordinator.vms.modes import MANUAL, interval_text, target_text
from .durations import milliseconds
from .ltm.catalog import SYNC
from .rows import Token

if TYPE_CHECKING:
    from .ltm.tables import ViewRows
    from .ports import OpenNode

#: How long `refresh` waits, and a read that asks for more than what is published.
REFRESH_MS_MAX = 600_000.0
READ_MS_MAX = 10_000.0
#: A read with `max_lag` waits for so many times that lag, but at least the other.
LAG_TIMES_MAX = 5.0
LAG_WAIT_MS_MIN = 1_000.0
#: A token that is so far ahead of the clock is not of this database: nothing that is waited for would reach it.
TOKEN_AHEAD_MS_MAX = 1_000


# --- how views are refreshed ---


@dataclass(frozen=True, slots=True)
class TargetLag:
    """`vt.target_lag("2s")`: the system finds the interval that keeps the lag below it at the least cost."""

    lag_ms: float


def target_lag(lag: str | float) -> TargetLag:
    """For `refresh=`: keep the lag below this, as cheaply as possible."""
    lag_ms = milliseconds(lag)
    if lag_ms <= 0:
        raise InterfaceError(f"a target lag must be above 0, not {lag!r}", hint="use refresh='0ms' or 'sync'")
    return TargetLag(lag_ms)


def refresh_text(refresh: object) -> str:
    """How the catalog keeps what a user says: "sync", "manual", an interval, a target lag."""
    if isinstance(refresh, TargetLag):
        return target_text(refresh.lag_ms)
    if not isinstance(refresh, str):
        raise InterfaceError(
            f"refresh must be text or vt.target_lag(...), not {refresh!r}", hint="like 'sync', '500ms' or 'manual'"
        )
    text = refresh.strip().lower()
    if text in (SYNC, MANUAL):
        return text
    if text.startswith("target_lag"):
        return target_text(target_lag(text.removeprefix("target_lag").strip(" ()'\"")).lag_ms)
    try:
        return interval_text(milliseconds(text))
    except InterfaceError:
        raise InterfaceError(
            f"{refresh!r} is no way to refresh a view", hint="use 'sync', 'manual', '500ms' or 'target_lag 2s'"
        ) from None


# --- how fresh a read has to be ---


class Levels(NamedTuple):
    """What a read asks for. `at_least_ts`: this commit is in it; `latest`: every commit that was acknowledged before
    the read is; `max_lag_ms`: it is not further behind."""

    at_least_ts: int = 0
    latest: bool = False
    max_lag_ms: float | None = None


ANY_AGE = Levels()
LEVEL_NAMES = ("at_least", "latest", "max_lag")


def levels_of(at_least: object = None, latest: object = False, max_lag: object = None) -> Levels:
    """The keyword arguments of a read."""
    if at_least is None and latest is False and max_lag is None:
        return ANY_AGE
    if at_least is not None and not isinstance(at_least, Token):
        raise InterfaceError(
            f"at_least takes the token of a transaction, not {type(at_least).__name__}",
            hint="give tx.token, or the token that a call of the database returned",
        )
    if not isinstance(latest, bool):
        raise InterfaceError(f"latest is True or False, not {latest!r}", hint="write latest=True, or leave it out")
    return Levels(
        0 if at_least is None else at_least.commit_ts, latest, None if max_lag is None else milliseconds(max_lag)
    )


def freshen(node: OpenNode, rows: ViewRows, levels: Levels) -> bool:
    """Wait until a view is as fresh as a read asks for; StaleRead if that takes too long. False: it is synchronous by
    now, and so never behind. Switched: it is not there any more, whoever has its name now."""
    name = rows.view.name
    while True:
        node.check_open()
        now = node.engine.ltm.tables.views_by_id.get(rows.view.id)
        if now is None:
            raise Switched(f"view {name!r} was dropped meanwhile", hint="begin a new snapshot or transaction")
        if not now.view.deferred:
            return False
        with suppress(GroupMoved):
            _wait(node, name, levels)
            return True


def _wait(node: OpenNode, name: str, levels: Levels) -> None:
    ltm, refresher = node.engine.ltm, node.refresher
    check_token(node, levels.at_least_ts)
    wanted_ts = max(levels.at_least_ts, ltm.horizon.durable_ts if levels.latest else 0)
    if wanted_ts > refresher.watermark(name):
        refresher.wait_for(name, wanted_ts, READ_MS_MAX)
    if levels.max_lag_ms is not None:
        _keep_lag(node, name, levels.max_lag_ms)


def is_fresh(node: OpenNode, name: str, levels: Levels) -> bool:
    """Whether a read can be made without waiting."""
    rows = node.engine.ltm.tables.views.get(name)
    if levels == ANY_AGE or rows is None or not rows.view.deferred:
        return True
    wanted_ts = max(levels.at_least_ts, node.engine.ltm.horizon.durable_ts if levels.latest else 0)
    watermark = node.engine.ltm.horizon_of(rows).durable_ts
    return watermark >= wanted_ts and (levels.max_lag_ms is None or node.lag_ms(watermark) <= levels.max_lag_ms)


def check_token(node: OpenNode, commit_ts: int) -> None:
    """A token of another database, or of one that was put back from a backup: nobody may wait for it."""
    newest = node.engine.ltm.horizon.durable_ts
    if commit_ts > newest and to_ms(commit_ts) > max(to_ms(newest), wall_clock_ms()) + TOKEN_AHEAD_MS_MAX:
        raise StaleRead("the token of at_least is ahead of this database", hint="use tokens of this database only")


def _keep_lag(node: OpenNode, name: str, lag_ms: float) -> None:
    give_up = time.monotonic() + max(LAG_TIMES_MAX * lag_ms, LAG_WAIT_MS_MIN) / 1000
    while True:
        watermark = node.refresher.watermark(name)
        behind_ms = node.lag_ms(watermark)
        if behind_ms <= lag_ms:
            return
        left_ms = (give_up - time.monotonic()) * 1000
        if left_ms <= 0:
            raise StaleRead(
                f"view {name!r} is {behind_ms:.0f} ms behind, and could not be brought below {lag_ms:g} ms",
                hint="allow more lag, or refresh it more often",
            )
        node.refresher.wait_for(name, watermark + 1, left_ms)
