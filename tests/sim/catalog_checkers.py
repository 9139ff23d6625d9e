"""What must hold where catalogs change: everything is committed by the catalog of its timestamp, and a view is its
definition wherever its catalog says that it can be read.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import cast

from viewtide.changetables.keys import TABLE_PREFIX_BYTES
from viewtide.coordinator.timestamps import to_ms
from viewtide.coordinator.two_phase.messages import RowsAt
from viewtide.coordinator.vms.groups import Group, group_keys, groups_of
from viewtide.coordinator.vms.step_rows import PAGE, SLOT, watermark_key, watermark_of
from viewtide.ltm.cluster.catalogs import Stored, tables_of
from viewtide.ltm.cluster.messages import CATALOG
from viewtide.ltm.tables import Tables
from viewtide.ltm.two_phase.messages import TxId

from .checkers import Checker
from .cluster_checkers import ClusterReplay
from .commit_checkers import Parts, Seen
from .model import Cells, Changed, Model
from .trace import Event
from .views_checkers import LAG_MS_MAX, Commits, Lag, ViewsReplay
from .workload import hidden_of, tables
from .world import World
from .zookeeper import ZooKeeper


def _id_of(cell: bytes) -> int:
    return int.from_bytes(cell[:TABLE_PREFIX_BYTES], "big")


class CatalogReplay(ViewsReplay, ClusterReplay):
    kinds = (*ViewsReplay.kinds, "catalog")

    def __init__(self, world: World, zookeeper: ZooKeeper) -> None:
        super().__init__(world, zookeeper)
        #: By S.
        self._catalogs: dict[int, Tables] = {0: tables()}
        self._times: list[int] = []
        #: By group: all that was published.
        self._published: set[tuple[int, int]] = set()

    def _catalog(self, event: Event) -> None:
        for entry in Stored.unpack(cast(bytes, event.detail[0])).opened:
            known = self._catalogs.setdefault(entry.ts, tables_of(entry.data))
            if known.catalog.version != entry.version:
                raise self.violation(f"two catalogs are open at {entry.ts}")

    # The catalog of a timestamp.

    def _tables_at(self, ts: int) -> Tables:
        """In force for what is committed, or read, at `ts`: from S on for readers, above S for writers, and at S itself
        nothing is committed."""
        return self._catalogs[self._times[bisect_right(self._times, ts) - 1]]

    def advance(self, model: Model, ts: int) -> None:
        now = self._tables_at(ts)
        if model.tables is not now:
            model.adopt(now)

    def judged(self, model: Model, cells: Changed) -> Changed:
        """Entries of an index that is being made are judged when it is ready."""
        made = {index_id for index_id, (_, each) in model.tables.indexes.items() if not each.index.ready}
        return {cell: change for cell, change in cells.items() if _id_of(cell) not in made} if made else cells

    # At the end.

    def finish(self) -> None:
        self._times = sorted(self._catalogs)
        commits = self._atomic()
        self._published = set(self._watermarks(commits))
        self.traffic["watermarks"] = 0
        self._by_their_catalogs(commits)
        super().finish()
        self.traffic["catalogs"] += len(self._catalogs) - 1

    def _by_their_catalogs(self, commits: dict[TxId, tuple[int, Parts]]) -> None:
        for tx_id, (commit_ts, parts) in commits.items():
            if not any(part.writes or part.refreshes for part in parts.values()):
                continue  # it changes nothing: any catalog will do
            wanted = self._tables_at(commit_ts).catalog.version
            for log, part in parts.items():
                if part.catalog_version != wanted or commit_ts in self._catalogs:
                    raise self.violation(
                        f"{log} voted for {tx_id} by version {part.catalog_version}; at {commit_ts} it is {wanted}",
                        tx_id,
                    )

    def _compare(self, model: Model, read: Seen) -> None:
        """Of ranges, those that are of something that can be read at that timestamp, by the catalog of then.

        Who asks by another catalog may know other hidden views of a view: what it asked for shows that view no more.
        """
        ranges = read.question.ranges
        kept = [number for number, each in enumerate(ranges) if self._is_exact(each[0], read.answer.at)]
        asked = {model._name(ranges[number][0]) for number in kept}
        kept = [number for number in kept if self._hidden_of(model, model._name(ranges[number][0])) <= asked]
        names = [model._name(ranges[number][0]) for number in kept]
        self.traffic["new views read"] += any(name.startswith("x_") for name in names)
        question = read.question._replace(ranges=tuple(read.question.ranges[number] for number in kept))
        answer: RowsAt = read.answer._replace(
            ranges=tuple(read.answer.ranges[number] for number in kept),
            left_ranges=tuple((kept.index(place), each) for place, each in read.answer.left_ranges if place in kept),
        )
        super()._compare(model, read._replace(question=question, answer=answer))

    def _hidden_of(self, model: Model, name: str) -> set[str]:
        return set(hidden_of(model.tables, name)[1:]) if name in model.tables.views else set()

    def _is_exact(self, start: bytes, at: int) -> bool:
        now = self._tables_at(at)
        if _id_of(start) in now.by_id:
            return True
        rows = now.views_by_id.get(_id_of(start))
        if rows is None or not rows.view.ready_ts:
            return False
        return not rows.view.deferred or (at, group_keys(now)[rows.view.name]) in self._published

    def _step_rows(self, commits: Commits, kind: int) -> list[tuple[int, TxId, object, object]]:  # type: ignore[override]
        """Pages of a new view's contents are like slots."""
        found = super()._step_rows(commits, kind)
        if kind == SLOT:
            found = sorted([*found, *super()._step_rows(commits, PAGE)], key=lambda item: item[:2])
        return found  # type: ignore[return-value]

    def _stored_views(self, group: int, w1: int) -> dict[str, Cells]:
        """Also the last step of a group that is another one, or none, from then on."""
        now = self._tables_at(w1)
        before = self._tables_at(w1 - 1)
        views = {}
        for catalog in (before, now):
            for each in groups_of(catalog):
                if each.key == group:
                    views.update({rows.view.id: rows.view.name for rows in each.views})
        names = {view_id: name for view_id, name in views.items() if view_id in now.views_by_id}
        stored: dict[str, Cells] = {name: {} for name in names.values()}
        for cell, row in self.cells_at(w1).items():
            if _id_of(cell) in names:
                stored[names[_id_of(cell)]][cell] = row
        return {name: found for name, found in stored.items() if _is_whole(now, name, stored)}


def _is_whole(now: Tables, name: str, stored: dict[str, Cells]) -> bool:
    """Whether what its minima and maxima are in is there, too."""
    return all(extreme.table in stored for extreme in now.views[name].plan.extremes)


def newest(zookeeper: ZooKeeper) -> Stored:
    data = zookeeper.peek(CATALOG)
    assert data is not None
    return Stored.unpack(data)


class NewestLag(Lag):
    """Of the deferred views that there are in the end."""

    def __init__(self, world: World, replay: CatalogReplay, clock: str) -> None:
        super().__init__(world, replay, clock)
        self._zookeeper = replay._zookeeper

    def converged(self) -> str:
        now_ms = self._world.nodes[self._clock].clock.now_ms(self._world.now_us)
        groups: list[Group] = groups_of(tables_of(newest(self._zookeeper).opened[-1].data))
        for group in groups:
            assert group.mode.interval_ms is not None
            lag_ms = now_ms - to_ms(watermark_of(self.newest(watermark_key(group.key))))
            if lag_ms > group.mode.interval_ms + LAG_MS_MAX:
                return f"{group.names} are {lag_ms} ms behind"
        return ""


class Finished(Checker):
    """When all is healed, nothing is pending and nothing unfinished."""

    kinds = ("designed", "changed", "not changed")

    def __init__(self, world: World, zookeeper: ZooKeeper) -> None:
        super().__init__()
        self._zookeeper = zookeeper
        self._designed = False

    def observe(self, event: Event) -> None:
        self._designed = self._designed or event.what == "designed"
        self.traffic[f"designs {event.what}"] += event.what != "designed"

    def converged(self) -> str:
        stored = newest(self._zookeeper)
        if not self._designed:
            return "the designer is not done"
        if stored.pending or stored.unfinished:
            return f"version {stored.version} is {'pending' if stored.pending else 'unfinished'}"
        return ""
