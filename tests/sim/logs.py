"""Logs that live elsewhere, as in HBase: anyone can read another's log, and seal it before taking over its ranges.

With this service in the world, what a process persists is durable only while it can reach the service, and a sealed log
takes nothing more: its writer is told so (`disk_failed`, or it is stopped) when the write that was refused comes back.
At its next start it begins a new log; `Recovered.log` names it ("ltm-1/2" is the second log of ltm-1).

Answers are not lost but for partitions: ask again after a while.
"""

from __future__ import annotations

from viewtide.ltm.cluster.log_messages import LogRecords, NoLog, ReadLog, Seal

from .disk import Disk
from .network import HEALTHY, delay_us
from .node import Node
from .world import World


class Logs:
    def __init__(self, world: World, name: str = "logs") -> None:
        self.name = name
        self._world = world
        world.add_service(name, self)
        world.log_service = name

    def find(self, log: str) -> Disk | None:
        node = self._world.nodes.get(log.rpartition("/")[0])
        return None if node is None else next((disk for disk in node.disks if disk.log == log), None)

    def request(self, node: Node, message: object) -> None:
        link = self._world.network.link(node.name, self.name)
        if link.open:
            self._world.after(delay_us(link, HEALTHY), self._serve, node, node.incarnation, message)

    def _serve(self, node: Node, incarnation: int, message: object) -> None:
        assert isinstance(message, (Seal, ReadLog))
        answer = self._answer(message)
        link = self._world.network.link(self.name, node.name)
        if link.open:
            self._world.after(delay_us(link, HEALTHY), self._world.hand, node, incarnation, self.name, answer)

    def _answer(self, message: Seal | ReadLog) -> LogRecords | NoLog:
        disk = self.find(message.log)
        if disk is None:
            return NoLog(message.request, message.log)
        first_lsn = disk.first_lsn
        if isinstance(message, Seal):
            if not disk.sealed:
                disk.seal()
                self._world.record(self.name, "sealed", disk.log, disk.durable_lsn)
        else:
            first_lsn = max(first_lsn, message.from_lsn)
        records = self._world.records(disk)[first_lsn - disk.first_lsn : disk.durable_lsn + 1 - disk.first_lsn]
        return LogRecords(message.request, disk.log, first_lsn, records, disk.sealed)
