"""Virtual time, and everything that happens in it: the one place where processes, disks and the network meet.

Time is in integer microseconds. Events wait in a heap; those of one time come in the order in which they were set. No
wall clock, no threads, no `hash()` of a string and no iteration over a set: a seed gives one trace, everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Protocol

from .checkers import Checker, Violation
from .disk import Disk
from .network import Network
from .node import Factory, Node, State
from .process import Crash, HearsOfDisk, Outputs, Recovered, Stop, WhenDurable
from .streams import Streams
from .trace import DELIVER, PERSIST, SEND, Event, Trace
from .wire import AnyWire, Wire

#: A run with more is taken for one that never ends.
EVENTS_MAX = 20_000_000
#: A process that stopped by itself is started again after this long.
STOPPED_US = 500_000

#: Where logs are elsewhere: how often a write that does not get through is tried again.
LOG_RETRY_US = 20_000

#: Crash points of the world itself, between what one `Outputs` asks for. (A crash before it is one at a machine's own
#: probe.)
AFTER_PERSIST = "sim: written, nothing sent"
AFTER_FIRST_SEND = "sim: first of several sent"
AFTER_SYNC = "sim: durable, not told"
CRASH_POINTS = (AFTER_PERSIST, AFTER_FIRST_SEND, AFTER_SYNC)


class Service(Protocol):
    """Something that processes reach by messages and that no plan crashes: it decides itself how it answers."""

    def request(self, node: Node, message: object) -> None: ...


class World:
    def __init__(
        self,
        seed: int,
        *,
        wire: Wire | None = None,
        keep_all: bool = False,
        stops: tuple[type[Exception], ...] = (),
    ) -> None:
        """`stops` are exceptions that end a process without being its fault, as `Stop` is."""
        self.seed = seed
        self.now_us = 0
        self.streams = Streams(seed)
        self.wire: Wire = wire if wire is not None else AnyWire()
        self.trace = Trace(self.wire.thaw, keep_all)
        self.network = Network(self.streams, self._arrive)
        self.nodes: dict[str, Node] = {}
        self.services: dict[str, Service] = {}
        #: If logs are not on local disks, the name of the service that keeps them: nothing is durable without it.
        self.log_service = ""
        #: How often each probe was passed, and how often a process crashed at it.
        self.probes: Counter[str] = Counter()
        self.crash_points: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.events = self.crashes = self.delivered = self.to_dead = self.messages_bytes = self.stopped = 0
        self._stops: tuple[type[Exception], ...] = (Stop, *stops)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._sequence = 0
        self._messages = 0
        self._armed: list[_Armed] = []
        self._observers: dict[str, list[Callable[[Event], None]]] = {}

    # What a scenario builds it from.

    def add(self, name: str, factory: Factory, *, disk: bool = True, log_per_life: bool = False) -> Node:
        """A process; it boots with `start`. `log_per_life`: it never goes on with the log of its former life."""
        random = self.streams[f"disk {name}"] if disk else None
        node = Node(name, factory, random, self.streams[f"process {name}"], self._probe, self._note, log_per_life)
        self.nodes[name] = node
        return node

    def add_service(self, name: str, service: Service) -> None:
        self.services[name] = service

    def watch(self, checkers: Iterable[Checker]) -> None:
        for checker in checkers:
            for kind in checker.kinds:
                self._observers.setdefault(kind, []).append(checker.observe)

    def boot(self) -> None:
        for node in self.nodes.values():
            self.start(node.name)

    # Time.

    def at(self, time_us: int, action: Callable[..., None], *arguments: object) -> None:
        self._sequence += 1
        heappush(self._heap, (time_us, self._sequence, action, arguments))

    def after(self, delay_us: int, action: Callable[..., None], *arguments: object) -> None:
        self.at(self.now_us + delay_us, action, *arguments)

    def run_until(self, until_us: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            self.now_us, _, action, arguments = heappop(heap)
            self.events += 1
            action(*arguments)
            if self.events > EVENTS_MAX:
                raise Violation("world", f"more than {EVENTS_MAX} events: the run does not end")
        self.now_us = until_us

    # What faults do, and scenarios that direct a run.

    def start(self, name: str) -> None:
        """Boot a process that is down, as the next incarnation."""
        node = self.nodes[name]
        if node.state is not State.DOWN:
            return
        node.incarnation += 1
        node.state = State.UP
        recovered = self._recover(node)
        self.record(name, "start", f"incarnation {node.incarnation}", len(recovered), "cut" if recovered.cut else "")
        self._guarded(node, self._start, node, recovered)

    def crash(self, name: str, down_us: int | None = None, why: str = "") -> None:
        """The state is gone; the disk stays, without some suffix of what was not durable. It boots after `down_us`."""
        node = self.nodes[name]
        if node.state is State.DOWN:
            return
        self.crashes += 1
        lost = node.disk.crash() if node.disk is not None else 0
        node.state = State.DOWN
        node.forget()
        self.record(name, "crash", why, f"lost {lost} records" if lost else "")
        if down_us is not None:
            self.after(down_us, self._start_again, node, node.incarnation)

    def crash_at(self, probe: str, nth: int, down_us: int, process: str = "") -> None:
        """Crash whoever passes the probe for the n-th time from now on; with `process`, only that one counts."""
        self._armed.append(_Armed(probe, nth, down_us, process))

    def disarm(self) -> None:
        self._armed.clear()

    def pause(self, name: str) -> bool:
        """It handles nothing until it is resumed; then all that was due comes, late."""
        node = self.nodes[name]
        if node.state is not State.UP:
            return False
        node.state = State.PAUSED
        self.record(name, "pause")
        return True

    def resume(self, name: str) -> None:
        node = self.nodes[name]
        if node.state is not State.PAUSED:
            return
        node.state = State.UP
        self.record(name, "resume", len(node.held))
        held, node.held = node.held, []
        for action, arguments in held:
            self.at(self.now_us, action, *arguments)

    def hand(self, node: Node, incarnation: int, sender: str, message: object) -> None:
        """A service's message arrives now: from a connection, so neither lost nor doubled, and not after a restart."""
        self._messages += 1
        frozen, hashed = self.wire.freeze(message)
        self._deliver(node, sender, self._messages, frozen, incarnation, hashed)

    # The trace.

    def record(self, process: str, what: str, *detail: object) -> None:
        """An event of plain values."""
        self.trace.add(self.now_us, process, what, detail, detail)
        observers = self._observers.get(what)
        if observers is not None:
            event = Event(self.now_us, process, what, detail)
            for observe in observers:
                observe(event)

    def _observe_message(self, process: str, what: str, peer: str, number: int, frozen: object) -> None:
        event = Event(self.now_us, process, what, (peer, number, self.wire.thaw(frozen)))
        for observe in self._observers[what]:
            observe(event)

    # Probes and notes.

    def _probe(self, node: Node, name: str) -> None:
        self.probes[name] += 1
        if not self._armed:
            return
        for armed in self._armed:
            if armed.probe == name and armed.process in ("", node.name):
                armed.left -= 1
                if armed.left <= 0:
                    self._armed.remove(armed)
                    raise _CrashAt(name, armed.down_us)

    def _note(self, node: Node, what: str, detail: tuple[object, ...]) -> None:
        self.record(node.name, what, *detail)

    # Running a process.

    def _guarded(self, node: Node, action: Callable[..., None], *arguments: object) -> None:
        try:
            action(*arguments)
        except BaseException as error:
            self._raised(node, error)

    def _raised(self, node: Node, error: BaseException) -> None:
        """Called where it is caught: some of these end the process, the others end the run."""
        if isinstance(error, _CrashAt):
            self.crash_points[error.probe] += 1
            self.faults["crash_at"] += 1
            self.crash(node.name, error.down_us, f"at {error.probe}")
        elif isinstance(error, self._stops):
            self.stopped += 1
            self.crash(node.name, STOPPED_US, f"stopped: {error}")
        elif isinstance(error, Violation) or not isinstance(error, Exception):
            raise error
        else:
            raise Violation("world", f"{node.name} raised {type(error).__name__}: {error}", node.name) from error

    def _ready(self, node: Node, action: Callable[..., None], arguments: tuple[object, ...]) -> bool:
        """Whether the process can handle the event now. If it only cannot yet, the event comes again later."""
        if node.state is State.UP:
            if node.busy_until_us <= self.now_us:
                return True
            self.at(node.busy_until_us, action, *arguments)
        elif node.state is State.PAUSED:
            node.held.append((action, arguments))
        return False

    def _recover(self, node: Node) -> Recovered:
        node.told_lsn = 0
        disk = node.open_disk()
        if disk is None:
            return Recovered(())
        node.told_lsn = disk.durable_lsn
        return Recovered(self.records(disk), disk.first_lsn, disk.cut, disk.log)

    def records(self, disk: Disk) -> tuple[object, ...]:
        return tuple(self.wire.thaw(frozen) for frozen in disk.records())

    def _start(self, node: Node, recovered: Recovered) -> None:
        node.process = node.factory(node)
        self._perform(node, node.process.start(node.clock.now_ms(self.now_us), recovered, node.incarnation))

    def _start_again(self, node: Node, incarnation: int) -> None:
        if node.incarnation == incarnation:
            self.start(node.name)

    def _arrive(self, time_us: int, message: tuple[object, ...]) -> None:
        self._sequence += 1
        heappush(self._heap, (time_us, self._sequence, self._deliver, message))

    def _deliver(
        self, node: Node, sender: str, number: int, frozen: object, incarnation: int = 0, hashed: bytes = b""
    ) -> None:
        """Without an incarnation, whichever is there gets it: who minds says so in the message. `hashed` is given for
        what was not hashed when it was sent."""
        now_us = self.now_us
        if node.state is not State.UP or node.busy_until_us > now_us:
            if node.state is State.DOWN:
                self.to_dead += 1
                self.trace.add(now_us, node.name, "down", (sender, f"#{number}"), number)
            else:
                self._ready(node, self._deliver, (node, sender, number, frozen, incarnation, hashed))
            return
        if incarnation and node.incarnation != incarnation:
            return
        self.delivered += 1
        self.trace.add(now_us, node.name, DELIVER, (sender, number, frozen), (number, hashed))
        try:
            if DELIVER in self._observers:
                self._observe_message(node.name, DELIVER, sender, number, frozen)
            message = self.wire.thaw(frozen)
            outputs = node.process.receive(sender, message, node.clock.now_ms(now_us))  # type: ignore[union-attr]
            self._perform(node, outputs)
        except BaseException as error:
            self._raised(node, error)

    def _fire(self, node: Node, incarnation: int, at_ms: int, token: object) -> None:
        if node.incarnation != incarnation or not self._ready(node, self._fire, (node, incarnation, at_ms, token)):
            return
        if node.clock.now_ms(self.now_us) < at_ms:
            # The clock was set back, or runs slower than when the timer was set.
            self._set_timer(node, at_ms, token)
            return
        self.trace.add(self.now_us, node.name, "timer", (token,), token)
        try:
            outputs = node.process.timer(token, node.clock.now_ms(self.now_us))  # type: ignore[union-attr]
            self._perform(node, outputs)
        except BaseException as error:
            self._raised(node, error)

    def _set_timer(self, node: Node, at_ms: int, token: object) -> None:
        self.at(max(node.clock.when_us(at_ms), self.now_us), self._fire, node, node.incarnation, at_ms, token)

    # What a process asks for.

    def _perform(self, node: Node, outputs: Outputs) -> None:
        """Called at the end of every handler."""
        if node.spent_us:
            node.busy_until_us = self.now_us + node.spent_us
            node.spent_us = 0
            self.at(node.busy_until_us, self._perform_late, node, node.incarnation, outputs)
            return
        persist, send, timers, after, trim = outputs
        if persist and not self._append(node, persist):
            return
        for at_ms, token in timers:
            self._set_timer(node, at_ms, token)
        if send:
            self._send_all(node, send, after)
        if trim and node.disk is not None and node.disk.trim(trim):
            self.record(node.name, "trim", node.disk.first_lsn)
        if "handled" in self._observers:
            self._observe_handled(node)

    def _observe_handled(self, node: Node) -> None:
        """For checkers that look into machines after each call. Not in the trace: nothing happened."""
        event = Event(self.now_us, node.name, "handled", (node.process,))
        for observe in self._observers["handled"]:
            observe(event)

    def _perform_late(self, node: Node, incarnation: int, outputs: Outputs) -> None:
        if node.incarnation == incarnation and self._ready(node, self._perform_late, (node, incarnation, outputs)):
            self._guarded(node, self._perform, node, outputs)

    def _append(self, node: Node, records: tuple[object, ...]) -> bool:
        disk = node.disk
        if disk is None:
            raise Violation("world", f"{node.name} has no disk and wants to persist {records!r}", node.name)
        for record in records:
            frozen, hashed = self.wire.freeze(record)
            if not disk.append(frozen):
                self._fail_disk(node)
                return False
            lsn = disk.last_lsn
            self.trace.add(self.now_us, node.name, PERSIST, (lsn, frozen), (lsn, hashed))
        self._begin_sync(node)
        self._probe(node, AFTER_PERSIST)
        return True

    def _send_all(self, node: Node, send: tuple[tuple[str, object] | WhenDurable, ...], after: int) -> None:
        several = len(send) > 1
        for item in send:
            if item.__class__ is WhenDurable:
                lsn, destination, message = item
            else:
                lsn = after
                destination, message = item  # type: ignore[misc]
            frozen, hashed = self.wire.freeze(message)
            if lsn > node.told_lsn:
                self._wait(node, lsn, destination, frozen, hashed)
            else:
                self._send(node, destination, frozen, hashed)
                if several:
                    several = False
                    self._probe(node, AFTER_FIRST_SEND)

    def _wait(self, node: Node, lsn: int, destination: str, frozen: object, hashed: bytes) -> None:
        disk = node.disk
        if disk is not None and disk.failed:
            # It will never be durable.
            return
        if disk is None or lsn > disk.last_lsn:
            raise Violation("world", f"{node.name} sends after lsn {lsn}, which it never wrote", node.name)
        node.waiting.append((lsn, destination, frozen, hashed))

    def _send(self, node: Node, destination: str, frozen: object, hashed: bytes) -> None:
        self._messages = number = self._messages + 1
        self.messages_bytes += len(hashed)
        self.trace.add(self.now_us, node.name, SEND, (destination, number, frozen), (destination, hashed))
        if SEND in self._observers:
            self._observe_message(node.name, SEND, destination, number, frozen)
        target = self.nodes.get(destination)
        if target is not None:
            self.network.send(self.now_us, node.name, destination, (target, node.name, number, frozen))
        elif destination in self.services:
            self.services[destination].request(node, self.wire.thaw(frozen))
        else:
            raise Violation("world", f"{node.name} sends to {destination!r}, which does not exist", node.name)

    # Disks.

    def _begin_sync(self, node: Node) -> None:
        disk = node.disk
        assert disk is not None
        if disk.begin_sync():
            self.after(disk.sync_duration_us(), self._end_sync, node, disk, disk.generation)

    def _end_sync(self, node: Node, disk: Disk, generation: int) -> None:
        if disk.generation != generation:
            return
        if self.log_service and not self.network.reachable(node.name, self.log_service):
            # The log is elsewhere, and nobody there hears of the write, or nobody here of the answer.
            self.after(LOG_RETRY_US, self._end_sync, node, disk, generation)
            return
        if not disk.end_sync():
            # The disk is dead from now on, also if its process hears of that only after a pause.
            disk.fail()
            self._tell_failed(node, node.incarnation)
            return
        self._begin_sync(node)
        self._tell_durable(node, node.incarnation, disk.durable_lsn)

    def _tell_durable(self, node: Node, incarnation: int, lsn: int) -> None:
        if node.incarnation == incarnation and self._ready(node, self._tell_durable, (node, incarnation, lsn)):
            self.trace.add(self.now_us, node.name, "durable", (lsn,), lsn)
            self._guarded(node, self._persisted, node, lsn)

    def _persisted(self, node: Node, lsn: int) -> None:
        self._probe(node, AFTER_SYNC)
        node.told_lsn = lsn
        if node.waiting:
            waiting, node.waiting = node.waiting, []
            for item in waiting:
                if item[0] <= lsn:
                    self._send(node, *item[1:])
                else:
                    node.waiting.append(item)
        assert node.process is not None
        self._perform(node, node.process.persisted(lsn, node.clock.now_ms(self.now_us)))

    def _fail_disk(self, node: Node) -> None:
        """At an append. One more append of a process that knows already is just not written."""
        assert node.disk is not None
        if not node.disk.failed:
            node.disk.fail()
            self._tell_failed(node, node.incarnation)

    def _tell_failed(self, node: Node, incarnation: int) -> None:
        if node.incarnation != incarnation or not self._ready(node, self._tell_failed, (node, incarnation)):
            return
        self.record(node.name, "disk failed")
        if isinstance(node.process, HearsOfDisk):
            self._guarded(node, self._hear_of_disk, node, node.process)
        else:
            self.crash(node.name, STOPPED_US, "its disk failed")

    def _hear_of_disk(self, node: Node, process: HearsOfDisk) -> None:
        self._perform(node, process.disk_failed(node.clock.now_ms(self.now_us)))


class _Armed:
    def __init__(self, probe: str, left: int, down_us: int, process: str) -> None:
        self.probe, self.left, self.down_us, self.process = probe, left, down_us, process


class _CrashAt(Crash):
    def __init__(self, probe: str, down_us: int) -> None:
        super().__init__(probe)
        self.probe, self.down_us = probe, down_us
