"""What a database and its views are doing: `View.status`, `Database.status`, and the commands that show them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TextIO

from .changetables.algebra import scans
from .changetables.errors import counted
from .changetables.keys import table_range
from .coordinator.hot_groups import HotGroup
from .coordinator.timestamps import to_ms
from .coordinator.vms.managers import ViewManagerStatus
from .coordinator.vms.modes import MANUAL, mode_of
from .coordinator.vms.scheduler import Cost
from .ltm.catalog import SYNC
from .ltm.tables import ViewRows
from .names import named_views
from .reads import ViewReads

if TYPE_CHECKING:
    from .database import Database
    from .ports import OpenNode
    from .shell_output import Part

__all__ = ["DatabaseStatus", "HotGroup", "StepStatus", "ViewManagerStatus", "ViewStatus", "run_status", "run_views"]

#: How often `--watch` looks.
WATCH_S = 1.0


@dataclass(frozen=True, slots=True)
class StepStatus:
    """The last step of a deferred view that had changes: changed rows after netting, look-ups, and where its time
    went. `duration_ms` has the pauses for writers, too."""

    rows: int
    look_ups: int
    read_ms: float
    propagate_ms: float
    apply_ms: float
    duration_ms: float


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """The state of a view.

    `mode` is sync, interval, manual or target_lag, `refresh` the text that says it. `state`: live, held (another
    operation needs it as it is), failing, needs batch refresh. `interval_ms`: how often steps begin, None if they do
    not by themselves. `group` is the name of its refresh group, `together` the views that it moves with. `watermark` is
    the commit_ts that it reflects. `failures` counts those since the last step that succeeded, `failure` is the last.
    """

    name: str
    refresh: str
    mode: str
    state: str
    interval_ms: float | None
    group: str
    together: tuple[str, ...]
    watermark: int
    lag_ms: float
    rows: int
    steps: int
    last_step: StepStatus | None
    backlog_rows: int
    backlog_bytes: int
    evaluator: str
    tuning: str
    hot_groups: tuple[HotGroup, ...]
    failures: int
    failure: str
    tables: tuple[str, ...]
    sql: str


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """`commits` and `flushes` since the database was opened: their ratio is the size of a group commit.

    `log_oldest` is the oldest position of the commit log that is kept, for recovery, for deferred views or as history,
    `log_newest` the last one, `log_bytes` about what lies between them. `ltms` are the names of the local transaction
    managers.
    """

    name: str
    tables: int
    views: int
    commits: int
    flushes: int
    checkpoints: int
    replayed: int
    log_oldest: int
    log_newest: int
    log_bytes: int
    ltms: tuple[str, ...]
    view_managers: tuple[ViewManagerStatus, ...]


# --- views ---


def view_status(node: OpenNode, view: ViewReads) -> ViewStatus:
    """The state of a view; it counts the rows, so it reads the view."""
    rows = view._rows
    definition = rows.view
    rows_count = len(view._outputs(*table_range(definition.id), None))
    tables = tuple(dict.fromkeys(scan.table for scan in scans(definition.relation)))
    evaluator = rows.plan.evaluator_choice()
    if not definition.deferred:
        watermark = view._reads._begin()
        return ViewStatus(
            definition.name, SYNC, SYNC, "live", None, "", (definition.name,), watermark, 0.0, rows_count, 0, None,
            0, 0, evaluator, "", (), 0, "", tables, definition.text,
        )  # fmt: skip
    group = node.refresher.status(definition.name)
    schedule = group.schedule
    target_ms = schedule.mode.target_ms
    return ViewStatus(
        definition.name,
        definition.refresh,
        mode_name(definition.refresh),
        group.state,
        schedule.interval_ms,
        definition.group,
        group.names,
        group.watermark,
        node.lag_ms(group.watermark),
        rows_count,
        schedule.steps_count,
        _step(schedule.last),
        group.backlog_rows,
        group.backlog_bytes,
        evaluator,
        "" if target_ms is None else schedule.tuning.text(target_ms),
        _hot_groups(node, rows),
        schedule.failures_count,
        schedule.failure,
        tables,
        definition.text,
    )


def _hot_groups(node: OpenNode, rows: ViewRows) -> tuple[HotGroup, ...]:
    """None without GROUP BY: the one row that there is gets all changes."""
    if rows.plan.kept.kind != "groups":
        return ()
    return tuple(each for each in node.refresher.hot_groups.top(rows.view.id) if each.key)


def mode_name(refresh: str) -> str:
    if refresh in (SYNC, MANUAL):
        return refresh
    return "interval" if mode_of(refresh).target_ms is None else "target_lag"


def _step(cost: Cost | None) -> StepStatus | None:
    if cost is None:
        return None
    return StepStatus(
        cost.rows_count, cost.look_ups_count, cost.read_ms, cost.propagate_ms, cost.apply_ms, cost.duration_ms
    )


# --- the commands ---

_VIEW_COLUMNS = (
    "view", "refresh", "state", "interval ms", "watermark", "lag ms", "rows", "backlog rows", "backlog bytes",
    "evaluator",
)  # fmt: skip
_STEP_COLUMNS = ("last step of", "steps", "rows", "look-ups", "read ms", "propagate ms", "apply ms", "whole ms")
_MANAGER_COLUMNS = ("view manager", "ltm", "load", "rows", "slots", "busy ms")
#: What no process of a cluster knows: logs and checkpoints are those of each LTM, which has them in its metrics, and so
#: has each view manager what it did.
_NOT_OF_CLUSTERS = ("flushes", "checkpoints", "replayed", "log_oldest", "log_newest", "log_bytes")
_NOT_OF_THEIR_MANAGERS = ("load", "rows", "busy_ms")


def run_status(
    database: Database, *, as_json: bool, watch: bool, out: TextIO, err: TextIO, is_cluster: bool = False
) -> None:
    """`viewtide status`: the database, its view managers, and how its views are. Of a cluster, what its processes know
    of each other."""

    def page() -> Iterator[Part]:
        status = database.status()
        yield from (_cluster_parts if is_cluster else _node_parts)(status)
        views = _view_statuses(database, ())
        columns = ("view", "refresh", "state", "watermark", "lag ms", "rows", "backlog rows")
        rows = [
            (each.name, each.refresh, each.state, each.watermark, each.lag_ms, each.rows, each.backlog_rows)
            for each in views
        ]
        if rows:
            yield columns, rows

    def plain() -> object:
        views = [_plain(each) for each in _view_statuses(database, ())]
        status = asdict(database.status())
        if is_cluster:
            status = _without(status, _NOT_OF_CLUSTERS)
            status["view_managers"] = [_without(each, _NOT_OF_THEIR_MANAGERS) for each in status["view_managers"]]
        return {**status, "view_statuses": views}

    _show(page, plain, as_json=as_json, watch=watch, out=out, err=err)


def _node_parts(status: DatabaseStatus) -> Iterator[Part]:
    log = f"log {status.log_oldest} to {status.log_newest}, {status.log_bytes} bytes"
    yield f"{status.name}: {counted(status.tables, 'table')}, {counted(status.views, 'view')}"
    flushes, checkpoints = counted(status.flushes, "flush", "es"), counted(status.checkpoints, "checkpoint")
    yield f"since opening: {counted(status.commits, 'commit')}, {flushes}, {checkpoints}"
    yield f"{log}; {counted(status.replayed, 'transaction')} replayed"
    yield (
        _MANAGER_COLUMNS,
        [
            (each.id, each.ltm, round(each.load, 2), each.rows, each.slots, round(each.busy_ms, 1))
            for each in status.view_managers
        ],
    )


def _cluster_parts(status: DatabaseStatus) -> Iterator[Part]:
    """`status` is what the process knows that serves this client."""
    yield f"{', '.join(status.ltms)}: {counted(status.tables, 'table')}, {counted(status.views, 'view')}"
    yield f"since the start of {status.name}: {counted(status.commits, 'commit')} of its clients"
    yield ("view manager", "process", "slots"), [(each.id, each.ltm, each.slots) for each in status.view_managers]


def _without(fields: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def run_views(
    database: Database, names: Sequence[str], *, as_json: bool, watch: bool, out: TextIO, err: TextIO
) -> None:
    """`viewtide views`: everything about views, all of them if none is named."""

    def page() -> Iterator[Part]:
        views = _view_statuses(database, names)
        yield _VIEW_COLUMNS, [_view_row(each) for each in views]
        stepped = [_step_row(each, each.last_step) for each in views if each.last_step is not None]
        if stepped:
            yield ""
            yield _STEP_COLUMNS, stepped
        for each in views:
            yield from _view_lines(each)

    def plain() -> object:
        return [_plain(each) for each in _view_statuses(database, names)]

    _show(page, plain, as_json=as_json, watch=watch, out=out, err=err)


def _view_statuses(database: Database, names: Sequence[str]) -> list[ViewStatus]:
    return [view.status() for view in named_views(database, names)]


def _view_row(status: ViewStatus) -> tuple[object, ...]:
    return (
        status.name,
        status.refresh,
        status.state,
        "" if status.interval_ms is None else round(status.interval_ms),
        status.watermark,
        round(status.lag_ms),
        status.rows,
        status.backlog_rows,
        status.backlog_bytes,
        # What is chosen for row-wise input stands at the end of its line: changes come from the log row by row.
        status.evaluator.splitlines()[1].rpartition(" ")[2],
    )


def _step_row(status: ViewStatus, last: StepStatus) -> tuple[object, ...]:
    times = (last.read_ms, last.propagate_ms, last.apply_ms, last.duration_ms)
    return status.name, status.steps, last.rows, last.look_ups, *(round(ms, 1) for ms in times)


def _view_lines(status: ViewStatus) -> Iterator[str]:
    """What does not fit into a table."""
    if len(status.together) > 1:
        group = f" (group {status.group})" if status.group else ""
        yield f"{status.name}: moves with {', '.join(name for name in status.together if name != status.name)}{group}"
    if status.tuning:
        yield f"{status.name}: {status.tuning}"
    if status.hot_groups:
        hot = ", ".join(f"{_key_text(each)} {each.changes}" for each in status.hot_groups)
        yield f"{status.name}: hot groups {hot}"
    if status.failures:
        yield f"{status.name}: failed {status.failures} times, last: {status.failure}"
    measured = [line for line in status.evaluator.splitlines() if not line.startswith("not measured")]
    if measured:
        yield f"{status.name}: evaluators {'; '.join(measured)}"


def _key_text(group: HotGroup) -> str:
    from .shell_output import cell

    return f"({', '.join(map(cell, group.key))})"


def _plain(status: ViewStatus) -> dict[str, object]:
    from .shell_output import json_value

    hot = [{"key": [json_value(value) for value in each.key], "changes": each.changes} for each in status.hot_groups]
    return {**asdict(status), "hot_groups": hot, "watermark_ms": to_ms(status.watermark)}


def _show(
    page: Callable[[], Iterator[Part]],
    plain: Callable[[], object],
    *,
    as_json: bool,
    watch: bool,
    out: TextIO,
    err: TextIO,
) -> None:
    from .shell_output import Output, json_text

    output = Output(out, err, as_json=as_json, limit=0)
    if as_json:
        print(json_text(plain(), out), file=out)
    elif watch and out.isatty():
        output.watch(page, lambda: time.sleep(WATCH_S))
    else:
        output.page(page())
