"""The leader of a cluster with the refresh scheduler in it: whoever leads schedules."""

from __future__ import annotations

from collections.abc import Sequence

from ...ltm.cluster.messages import NotHere
from ...ltm.machine import Host, Outputs
from ...ltm.tables import Tables
from ..cluster.leader import LEADING, Leader
from ..two_phase.messages import Outcome, RowsAt
from .cluster_messages import Closed, Hello, Logs, SlotDone, SlotRefused, WantGroup, Working
from .cluster_scheduler import ClusterScheduler

_FOR_SCHEDULER = (Closed, Hello, Outcome, RowsAt, SlotDone, SlotRefused, WantGroup, Working)


class SchedulingLeader(Leader):
    """The scheduler begins when this one leads, in the leader's term, which nobody had before. That it goes on for a
    while when another one has been elected does no harm."""

    def __init__(self, host: Host, tables: Tables, coordinators: Sequence[str]) -> None:
        super().__init__(host)
        self.scheduler = ClusterScheduler(host, tables, coordinators, self._all_logs, lambda: self.map.epoch)

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        if isinstance(message, _FOR_SCHEDULER):
            return self.scheduler.receive(sender, message, now_ms)
        if isinstance(message, NotHere):
            return Outputs()  # another process answers for the log: the map will say which
        return self._followed(super().receive(sender, message, now_ms), now_ms)

    def timer(self, token: object, now_ms: int) -> Outputs:
        if isinstance(token, tuple):
            return self.scheduler.timer(token, now_ms)
        return self._followed(super().timer(token, now_ms), now_ms)

    def _followed(self, out: Outputs, now_ms: int) -> Outputs:
        scheduler = self.scheduler
        leads = self.state == LEADING
        if scheduler.leads and not (leads and scheduler.term == self.map.term):
            scheduler.step_down()
        if leads and not scheduler.leads:
            begun = scheduler.lead(now_ms, self.map.term)
            return out._replace(send=(*out.send, *begun.send), timers=(*out.timers, *begun.timers))
        return out

    def _all_logs(self) -> Logs:
        """All that were ever voted in: what was committed there stays there."""
        return tuple((log, host.process) for log, host in self.map.hosts.items())
