"""The change feeds of a cluster: change tables of a view or table, in order, as far back as the LTMs know what was
committed. Those of a table are what they tell, as it is.

LTMs tell what was contributed to the view and its hidden views, each for itself and in the order of timestamps; here
that is merged, and `shown` finds what the view showed before and after each timestamp. A synchronous view changes at
the commit_ts of transactions; the rows of a deferred view's step all have its W1. What a dropped step had added is
taken back at the same W1, so nothing is shown there: every W1 with changes is that of a step that was published.

Memory: the states of the keys that changed, a page of every log, and of one step the contributions. What the LTMs do
not know any more is an error, never a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from ...changetables.errors import OperationalError, ProgrammingError
from ...changetables.plan import Contribution
from ...ltm.tables import TableRows, ViewRows
from ...ltm.two_phase.messages import ChangedRow, Place, RefreshedRow
from ..ports import Switched
from ..shown import Change, Part, Sources, shown_at_start, too_young
from ..table_feed import signed_rows
from .reader import ClusterReader
from .requests import Requests

#: Changed rows of every log in one answer.
PAGE_ROWS = 1_000
#: Contributions that are not asked for a second time.
KEPT_ROWS_MAX = 10_000


class At(NamedTuple):
    """What was committed at one timestamp."""

    ts: int
    writes: list[ChangedRow]
    refreshes: list[RefreshedRow]


def changes_between(requests: Requests, what: str, ids: frozenset[int], since: int, at: int) -> Iterator[At]:
    """What was committed to tables and views in since < ts <= at, in the order of timestamps."""
    merged: dict[int, At] = {}
    places: dict[str, Place] = {}
    behind: tuple[tuple[str, Place], ...] = ()
    while True:
        found = requests.changes(at, tuple(sorted(ids)), since, PAGE_ROWS, behind)
        if found.oldest > since:
            raise _too_old(what, since, found.oldest)
        for log, writes, refreshes, next_place in found.logs:
            places[log] = next_place
            for write in writes:
                _at(merged, write[0]).writes.append(write)
            for refresh in refreshes:
                _at(merged, refresh[0]).refreshes.append(refresh)
        # All logs have told what they have below it.
        complete_ts = min(ts for ts, _ in places.values())
        for ts in sorted(ts for ts in merged if ts < complete_ts):
            yield merged.pop(ts)
        if complete_ts > at:
            return
        behind = tuple((log, place) for log, place in places.items() if place[0] == complete_ts)


def _at(merged: dict[int, At], ts: int) -> At:
    known = merged.get(ts)
    if known is None:
        known = merged[ts] = At(ts, [], [])
    return known


def _too_old(what: str, since: int, oldest: int) -> OperationalError:
    return OperationalError(
        f"the changes of {what} since {since} are not known to the cluster any more",
        hint=f"the oldest token that works is Token({oldest}); read all of it and go on from the token of that result",
    )


class ClusterFeed:
    """Reads the change tables of one view. `ts`: everything up to it was given."""

    def __init__(self, requests: Requests, reader: ClusterReader, view: ViewRows, since: int | None) -> None:
        self._requests, self._reader = requests, reader
        self._id, self._name = view.view.id, view.view.name
        self.ts = reader.horizon_of(view).durable_ts if since is None else since

    def has_news(self) -> bool:
        """Only a round finds out."""
        return True

    def view(self) -> ViewRows:
        """As it is now."""
        view = self._reader.tables.views_by_id.get(self._id)
        if view is None:
            raise ProgrammingError(f"view {self._name!r} was dropped", hint="its changes are gone with it")
        return view

    def round(self) -> Iterator[Change]:
        """What changed until now. Afterwards `ts` is there."""
        try:
            view, at = self._now()
        except Switched:
            return  # it can be told when that is done
        if at <= self.ts:
            return
        if not all(each.view.ready_ts for each in (view, *view.values)):
            return  # as above
        created_ts = _created_ts(view)
        if self.ts < created_ts:
            raise too_young(self._name, created_ts, self.ts)
        sources = Sources(view)
        events = _Events(self._requests, f"view {self._name!r}", sources, self.ts, at)
        try:
            shown = shown_at_start(self._reader, view, sources, events.read, at)
        finally:
            self._reader.forget(at)
        if shown is not None:
            for ts, parts in events.read():
                rows = shown.change(parts)
                if rows:
                    self.ts = ts
                    yield Change(ts, rows)
        self.ts = at

    def _now(self) -> tuple[ViewRows, int]:
        """The view, and up to which timestamp it can be told what it shows; both of one catalog."""
        while True:
            tables, view = self._reader.tables, self.view()
            at = self._reader.horizon_of(view).durable_ts
            if self._reader.tables is tables:
                return view, at


def _created_ts(view: ViewRows) -> int:
    """What was before it cannot be told."""
    earlier = view.view.earlier
    if earlier:
        return earlier[0].ready_ts
    return max(each.view.ready_ts for each in (view, *view.values))


_Event: TypeAlias = tuple[int, list[Part]]


class _Events:
    """The contributions of a time. They are read twice; if there are few, they are asked for only once."""

    def __init__(self, requests: Requests, what: str, sources: Sources, since: int, at: int) -> None:
        self._requests, self._what, self._sources = requests, what, sources
        self._since, self._at = since, at
        self._kept: list[_Event] | None = None

    def read(self) -> Iterator[_Event]:
        return self._ask() if self._kept is None else iter(self._kept)

    def _ask(self) -> Iterator[_Event]:
        kept: list[_Event] = []
        count = 0
        for ts, _, refreshes in changes_between(self._requests, self._what, self._sources.ids, self._since, self._at):
            event = ts, self._sources.parts(ts, _by_view(refreshes).items())
            count += len(refreshes)
            if count <= KEPT_ROWS_MAX:
                kept.append(event)
            yield event
        if count <= KEPT_ROWS_MAX:
            self._kept = kept


def _by_view(refreshes: list[RefreshedRow]) -> dict[int, list[Contribution]]:
    found: dict[int, list[Contribution]] = {}
    for _, view_id, key, key_values, delta in refreshes:
        found.setdefault(view_id, []).append(Contribution(key, key_values, delta))
    return found


class ClusterTableFeed:
    """Reads the change tables of one table. `ts`: everything up to it was given."""

    def __init__(self, requests: Requests, reader: ClusterReader, table: TableRows, since: int | None) -> None:
        self._requests, self._reader = requests, reader
        self._id, self._name = table.table.id, table.table.name
        self.ts = reader.begin() if since is None else since

    def has_news(self) -> bool:
        """Only a round finds out."""
        return True

    def table(self) -> TableRows:
        """As it is now."""
        table = self._reader.tables.by_id.get(self._id)
        if table is None:
            raise ProgrammingError(f"table {self._name!r} was dropped", hint="its changes are gone with it")
        return table

    def round(self) -> Iterator[Change]:
        """What changed until now. Afterwards `ts` is there."""
        at, table = self._reader.begin(), self.table()
        if at <= self.ts:
            return
        for ts, writes, _ in changes_between(
            self._requests, f"table {self._name!r}", frozenset((self._id,)), self.ts, at
        ):
            rows = signed_rows([write[1:] for write in writes], table)
            if rows:
                self.ts = ts
                yield Change(ts, rows)
        self.ts = at
