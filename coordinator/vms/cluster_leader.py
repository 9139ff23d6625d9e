"""The leader of a cluster with the refresh scheduler and the builder of new views and indexes in it: whoever leads
schedules and builds."""

from __future__ import annotations

from collections.abc import Sequence

from ...ltm.cluster.catalogs import Stored, pack_catalog, tables_of
from ...ltm.cluster.messages import ChangeCatalog, NotHere
from ...ltm.machine import Host, Outputs
from ...ltm.tables import Tables
from ..cluster.balancer import Balancer
from ..cluster.catalog_builder import BUILD, CatalogBuilder, has_new_conditions, is_uncertain, is_unfinished
from ..cluster.leader import LEADING, Leader
from ..two_phase.messages import Outcome, RowsAt
from .cluster_messages import Closed, Hello, Logs, SlotDone, SlotRefused, WantGroup, Working
from .cluster_scheduler import ClusterScheduler
from .groups import changed_groups

#: The number of a change that ends what another one began has this bit.
_END_BIT = 1 << 62
_FOR_SCHEDULER = (Closed, Hello, Outcome, RowsAt, SlotDone, SlotRefused, WantGroup, Working)


class SchedulingLeader(Leader):
    """The scheduler begins when this one leads, in the leader's term, which nobody had before. That it goes on for a
    while when another one has been elected does no harm."""

    def __init__(
        self, host: Host, tables: Tables, coordinators: Sequence[str], balancer: Balancer | None = None
    ) -> None:
        super().__init__(host, balancer)
        self.scheduler = ClusterScheduler(host, tables, coordinators, self._all_logs, lambda: self.map.epoch)
        self.builder = CatalogBuilder(host, coordinators, failure_of=self.scheduler.failure_of)
        #: The catalog that both work by.
        self._worked_by: Stored | None = None

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        if isinstance(message, RowsAt | Outcome) and self.builder.is_for_it(message):
            return self._built(self.builder.receive(message, now_ms), now_ms)
        if isinstance(message, _FOR_SCHEDULER):
            return self.scheduler.receive(sender, message, now_ms)
        if isinstance(message, NotHere):
            return Outputs()  # another process answers for the log: the map will say which
        return self._followed(super().receive(sender, message, now_ms), now_ms)

    def timer(self, token: object, now_ms: int) -> Outputs:
        if isinstance(token, tuple):
            if token[0] == BUILD:
                return self._built(self.builder.timer(token[1], now_ms), now_ms)
            return self.scheduler.timer(token, now_ms)
        return self._followed(super().timer(token, now_ms), now_ms)

    def _followed(self, out: Outputs, now_ms: int) -> Outputs:
        scheduler = self.scheduler
        leads = self.state == LEADING
        if scheduler.leads and not (leads and scheduler.term == self.map.term):
            scheduler.step_down()
            self.builder.stop()
            self._worked_by = None
        if leads and not scheduler.leads:
            out = _with(out, scheduler.lead(now_ms, self.map.term))
            self.builder.begin(self.map.term)
        if leads and self._worked_by is not self.catalog:
            self._worked_by = self.catalog
            if self.catalog.opened:
                scheduler.follow(self.catalog)
                out = _with(out, self._built(self._follow(now_ms), now_ms))
        return out

    def _follow(self, now_ms: int) -> Outputs:
        return self.builder.follow(self.catalog, now_ms, self.map.catalog_held)

    def _built(self, out: Outputs, now_ms: int) -> Outputs:
        """What the builder wants, and the next catalog if it has done its work."""
        ended = self.builder.ended
        if ended is None:
            if self.builder.certain and self.map.catalog_held:
                self._now_ms = now_ms
                self._release()
                out = _with(out, self._followed(self._out(), now_ms))
            return out
        self.builder.ended = None
        entry = self.catalog.opened[-1]
        # A number that nobody else has: of this catalog, and of no client.
        change = ChangeCatalog(_END_BIT | ended.catalog.version, entry.version, pack_catalog(ended.catalog))
        self._now_ms = now_ms
        self._end_unfinished(change, ended.error)
        return _with(out, self._followed(self._out(), now_ms))

    def _is_unfinished(self, catalog: Stored) -> bool:
        opened = catalog.opened
        if opened and catalog.failed and catalog.failed[-1].version == opened[-1].version:
            return False  # it was taken back: all is as it was before that one
        before = tables_of(opened[-1].data) if opened else None
        after = tables_of(catalog.entries[-1].data)
        changes_groups = bool(changed_groups(before, after))
        return is_unfinished(after.catalog) or changes_groups or has_new_conditions(before, after)

    def _is_held(self, catalog: Stored) -> bool:
        return is_uncertain(catalog)

    def _all_logs(self) -> Logs:
        """All that were ever voted in: what was committed there stays there."""
        return tuple((log, host.process) for log, host in self.map.hosts.items())


def _with(out: Outputs, other: Outputs) -> Outputs:
    return out._replace(send=(*out.send, *other.send), timers=(*out.timers, *other.timers))
