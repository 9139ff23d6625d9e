"""One process of a cluster: the loop that drives several machines over a hub, ZooKeeper and a log.

A turn drains all that has arrived (messages, answers of ZooKeeper and of logs, questions of other threads, timers),
lets the machines handle it, sends one batch to each peer, lets the LTM of this process do what it was asked to by the
others, makes what they want to persist durable with one sync, and sends what waited for that.
Nothing leaves that depends on a record before the record is durable.

    machines    "ltm-1" (the LTM), "ltm-1.coordinator", "ltm-1.leader": messages between them do not leave the process
    names       "any.coordinator" is that of some LTM process, "all.leader" those of all of them
    lives       a machine with a log that ends (`LifeOver`) begins again: a new life, a new log, the same process
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from os import sched_yield
from threading import Event, get_ident
from time import perf_counter
from typing import Any, NamedTuple, NoReturn, Protocol

from ...changetables.errors import (
    InterfaceError,
    InternalError,
    LocalProtocolError,
    RemoteProtocolError,
    Unavailable,
)
from ...ltm import garbage
from ...ltm.cluster import zk_messages as zk
from ...ltm.cluster.log_messages import LOGS
from ...ltm.cluster.member import LifeOver
from ...ltm.cluster.messages import ForLog, node_of
from ...ltm.cluster.store_messages import STORE
from ...ltm.commit_log.elsewhere import LogSealed, LogsElsewhere
from ...ltm.due import Due
from ...ltm.keys import CLIENT
from ...ltm.machine import Machine, Outputs, WhenDurable
from ...ltm.ports import Damaged, Store
from ...ltm.transport import MESSAGE_BYTES_MAX, Hub, Identity, Received
from ...ltm.two_phase.messages import Decide, Forget, Settled
from ...ltm.wire import decode, encode
from .. import registered
from ..two_phase.messages import Outcome, Outcomes, Submit, Submits, Wave
from .addressed import Addressed
from .balancer import BALANCE
from .calls import ANSWER_MS_MAX, Calls, Later
from .coordinator import ClusterCoordinator
from .directory import LTM, Address, Directory
from .log_service import LogService
from .log_writers import InlineWriter, LogWriter, ThreadWriter
from .permissions import may_send
from .store_service import StoreService
from .submitting import Places, Submitting
from .waves import GATHER_MS, WAVES_MAX, WAVES_MAX_LOCAL
from .zookeeper import ZooKeeper

#: Without anything to do, a turn waits at most so long.
IDLE_MS = 100
#: Messages between the machines of this process that are handled in one turn, before others get their turn.
LOCAL_PER_TURN_MAX = 10_000
#: After a life has ended, the next begins at least so much later: what ends each at once must not keep a core busy.
NEXT_LIFE_MS = 300
#: What was handled last, for the story of a panic.
STORY_EVENTS = 40
#: Records that nobody waits for, such as decisions that the participants would find out again, are durable this much
#: later at the latest; mostly they go with the next votes, without a sync of their own.
UNHURRIED_MS = 10
#: So long clients wait at the most until they are heard, while a wave is under way.
CLIENTS_MS_MAX = 2
#: So long a process looks without sleeping for what it waits for while a wave is under way: longer than a sync.
AWAKE_S_MAX = 0.0003
#: Timestamps have 63 bits.
TS_MAX = 2**63 - 1
#: How often the directory tries again what failed.
TICK_MS = 200

#: Whom a message may be for besides a machine: some LTM process's, or all of them.
ANY, ALL = "any.", "all."
CALLS = ".calls"
COORDINATOR = ".coordinator"
#: Messages for an LTM whose answers nobody waits for.
_CAN_WAIT = (Decide, Forget)
#: What answers a `Submit`.
_OUTCOMES = (Outcome, Outcomes)
#: Names that no process may have: machines believe whoever has them.
SERVICES = (zk.ZOOKEEPER, LOGS, STORE)

#: They are known to the wire because this module imports them.
assert registered.MESSAGES

_log = logging.getLogger("viewtide.process")


class Birth(NamedTuple):
    """What a machine is made with, besides its host. `id` is of the process's name, `life` counts its lives."""

    id: int
    life: int


class ProcessHost:
    """Implements `Host`: probes are counted, for the metrics; notes are for simulators."""

    def __init__(self, name: str, events: Counter[str]) -> None:
        self.name = name
        self._events = events

    def probe(self, name: str) -> None:
        self._events[name] += 1

    def note(self, what: str, *detail: object) -> None:
        if what == BALANCE:
            _log.info("balances key ranges: %s", detail[0])


class Role(NamedTuple):
    """A machine of the process. `takes` are the messages that it understands from peers; with `has_log` it persists.
    `catalog_of` is the packed catalog that it goes by when it asks the store for something; `figures_of` is for the
    metrics, from another thread."""

    name: str
    make: Callable[[ProcessHost, Birth], Machine]
    takes: tuple[type, ...]
    has_log: bool = False
    catalog_of: Callable[[Machine], bytes] = lambda machine: b""
    figures_of: Callable[[Any], dict[str, float]] = lambda machine: {}


class NewLog(tuple[object, ...]):
    """The empty log that a machine starts with; `log` is its name."""

    log = ""


class _Running:
    """One life of one machine; ZooKeeper and the logs know it as the one who asked."""

    def __init__(self, role: Role, machine: Machine, writer: LogWriter | None, log: str) -> None:
        self.role = role
        self.name = role.name
        self.machine = machine
        self.writer = writer
        self.log = log
        self.over = False
        #: How far it knows its records to be durable; what waits for more.
        self.told_lsn = 0
        self.waiting: list[tuple[int, str, object]] = []
        #: Whether some of it is needed to go on; and when all records are to be durable at the latest, 0: they are.
        self.is_hurried = False
        self.flush_by_ms = 0


def _outcomes_in(message: object) -> tuple[Outcome, ...]:
    if isinstance(message, Outcomes):
        return message.outcomes
    return (message,) if isinstance(message, Outcome) else ()


def _waited_for_by_nobody(message: object) -> bool:
    return isinstance(message, ForLog) and message.message.__class__ in _CAN_WAIT


def _is_over(caller: Hashable) -> bool:
    assert isinstance(caller, _Running)
    return caller.over


def _final(failure: Exception) -> Exception:
    """What ends the process: damage as it is, anything else is a defect."""
    if isinstance(failure, Damaged):
        return failure
    broken = InternalError(
        f"a thread of the process failed: {type(failure).__name__}: {failure}",
        hint="this is a defect of Viewtide; the process ends, and what it acknowledged is in its log",
    )
    broken.__cause__ = failure
    return broken


class Clock(Protocol):
    def __call__(self) -> int: ...


def wall_clock() -> Clock:
    """Milliseconds since 1970 as of now, counted on by a clock that nobody sets."""
    ahead_ns = time.time_ns() - time.monotonic_ns()
    return lambda: (time.monotonic_ns() + ahead_ns) // 1_000_000


class Guest(Protocol):
    """Somebody who shares the thread of a process: its clients are served there, without a change of threads between
    their requests and the machines."""

    def attach(self, hub: Hub) -> None:
        """Called once, by that thread: the hub is to wake it up for the guest, too."""

    def take(self) -> bool:
        """Handle what has arrived, without waiting; whether there was something."""

    def finish(self) -> bool:
        """Send what is known by now; whether there was something."""


class Process:
    """`run` handles everything in the thread that calls it; `call`, `stop` and `figures` are for other threads."""

    def __init__(
        self,
        name: str,
        address: Address,
        roles: Sequence[Role],
        hub: Hub,
        zookeeper: ZooKeeper,
        logs: LogsElsewhere | None,
        session_ms: int,
        clock: Clock | None = None,
        store: Store | None = None,
        describe: Callable[[bytes], None] | None = None,
    ) -> None:
        """`describe` tells the store of a catalog, before it gets rows of new tables."""
        self.name = name
        self._roles = {role.name: role for role in roles}
        self._hub = hub
        self._zookeeper = zookeeper
        self._logs = logs
        self._clock = clock if clock is not None else wall_clock()
        self.directory = Directory(name, address, session_ms)
        #: Whether it has a processor to itself, on which it need not sleep while it waits for an LTM.
        self.stays_awake = False
        self.events: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._machines: dict[str, _Running] = {}
        #: Those of them that have a log.
        self._writing: list[_Running] = []
        self._calls = Calls(self._wake)
        self._unanswered: Due[object] = Due(ANSWER_MS_MAX, lambda at_ms: self._set_timer(at_ms, None, "calls"))
        #: Transactions of this process's clients, and of others' that are coordinated here.
        self._submitting = Submitting(WAVES_MAX_LOCAL if logs is not None and logs.is_local else WAVES_MAX)
        self._places = Places()
        self._session_ms = session_ms
        #: What a thread has met that must end the process.
        self._failure: Exception | None = None
        self._log_service = LogService(logs, self._put, self._fail) if logs is not None else None
        self._store_service = (
            StoreService(store, self._put_from_store, self._fail, describe, _is_over) if store is not None else None
        )
        #: From other threads: who asked for it, by what name it comes, and the message.
        self._inbox: deque[tuple[_Running, str, object]] = deque()
        #: Between the machines of this process; and those for its LTM.
        self._local: deque[tuple[str, str, object]] = deque()
        self._own: deque[tuple[str, str, object]] = deque()
        #: When the first of these came from another process.
        self._own_since_ms = 0
        self._timers: list[tuple[int, int, _Running | None, object]] = []
        self._numbers = count()
        self._known: dict[str, Address] = {}
        self._next_ltm = 0
        self._next_life_ms = 0
        self._told_early = False
        self._story: deque[tuple[str, str, object]] = deque(maxlen=STORY_EVENTS)
        self._woken = Event()
        self._stopping = False
        self._guest: Guest | None = None
        #: Whether the guest may have more to do; and whether it was not heard in this turn.
        self._guest_busy = False
        self._puts_off = False
        self._thread = 0
        zookeeper.on_more = self._wake

    # -- for other threads

    def ask(self, to: str, question: object) -> Future[Any]:
        """Ask a machine, by its name; "leader" is whoever leads, "any.coordinator" that of some LTM process. The future
        gets the answer: Outcome of Submit, RowsAt of ReadAt, Done of Split ... It is asked again until it is answered,
        or its future cancelled."""
        return self._calls.ask(to, question)

    def ask_later(self, to: str, question: object, then: Callable[[Any], None]) -> Later:
        """For the thread that runs it: `then` is called with the answer, or with None if nobody will answer."""
        return self._calls.ask_later(to, question, then)

    def stop(self) -> None:
        """Soon. A handler of signals may call it, so it touches no lock."""
        self._stopping = True

    def host(self, guest: Guest) -> None:
        """Before it runs."""
        self._guest = guest

    def _wake(self) -> None:
        if get_ident() != self._thread:
            # In this order: whoever finds the event set, and clears it, has still to be woken up by the hub.
            self._woken.set()
            self._hub.wake()

    def _put(self, caller: Hashable, message: object) -> None:
        assert isinstance(caller, _Running)
        self._inbox.append((caller, LOGS, message))
        self._wake()

    def _put_from_store(self, caller: Hashable, message: object) -> None:
        assert isinstance(caller, _Running)
        self._inbox.append((caller, STORE, message))
        self._wake()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._wake()

    def check_lease(self) -> None:
        """For whoever writes to a store that others write to, too. Raises Unavailable when this process may have lost
        what it owned, because it was paused or is cut off."""
        silent_ms = self._clock() - self.directory.confirmed_ms
        if silent_ms > self._session_ms // 2:
            raise Unavailable(
                f"{self.name} has not heard of ZooKeeper for {silent_ms} ms and writes nothing meanwhile",
                hint="it goes on by itself, or begins a new life",
            )

    @property
    def is_ready(self) -> bool:
        """Whether ZooKeeper is there and every machine runs."""
        return self.directory.connected and len(self._machines) == len(self._roles)

    def ltm_names(self) -> tuple[str, ...]:
        """The LTM processes that are known."""
        return tuple(sorted(self._ltms()))

    def figures(self) -> dict[str, float]:
        """For the metrics."""
        figures: dict[str, float] = {
            "zookeeper_connected": float(self.directory.connected),
            "machines_running": len(self._machines),
            "life": self.directory.life,
            "peers": len(self._known),
            "calls_open": len(self._calls),
            "timers": len(self._timers),
        }
        for running in list(self._machines.values()):
            figures.update(running.role.figures_of(running.machine))
            if running.writer is not None:
                figures["log_records"] = running.writer.durable_lsn
                figures["log_flushes"] = running.writer.flushes
                figures["log_waiting_records"] = running.writer.last_lsn - running.writer.durable_lsn
        figures.update({f"{name}_total": value for name, value in list(self.counts.items())})
        return figures

    # -- the loop

    def run(self) -> None:
        """Until `stop`."""
        self._thread = get_ident()
        if self._guest is not None:
            self._guest.attach(self._hub)
        self.directory.start()
        if self._roles:
            self.directory.want_life()
        self._set_timer(self._clock() + TICK_MS, None, "tick")
        self._to_zookeeper()
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._close()

    def _close(self) -> None:
        self._calls.close()
        for running in self._machines.values():
            if running.writer is not None:
                running.writer.close()
        if self._log_service is not None:
            self._log_service.close()
        if self._store_service is not None:
            self._store_service.close()

    def _turn(self) -> None:
        received = self._wait()
        if self._failure is not None:
            raise _final(self._failure)
        self._from_zookeeper()
        while self._inbox:
            running, sender, message = self._inbox.popleft()
            if not running.over:
                self._handle(running, sender, message)
        for batch in received:
            self._receive(batch)
        # Others wait for what is answered at once, most of all for outcomes.
        self._hub.flush()
        guest = self._guest
        # Somebody waits for what is to be synced: clients are heard in the next turn.
        self._puts_off = self._is_hurried() and not self._puts_off
        is_busy = guest is not None and (self._puts_off or (not self._is_full() and guest.take()))
        self._take_calls()
        self._deliver_all(self._local)
        self._start_machines()
        if self._own and not self._decides_later():
            # What others wait for leaves first: they work while this process's LTM does its part.
            self._hub.flush()
            if guest is not None:
                is_busy |= guest.finish()
            self._deliver_all(self._own)
            self._deliver_all(self._local)
        # Behind all that has arrived: after a stall nothing is found missing that is here.
        self._fire_timers()
        if self._is_hurried():
            # The same while the log is synced.
            self._hub.flush()
        self._flush_logs()
        self._deliver_all(self._local)
        self._to_zookeeper()
        self._hub.flush()
        if guest is not None:
            self._guest_busy = guest.finish() or is_busy
        if not (received or self._has_more()) and self._collects_now():
            garbage.collect()
        self.counts["turns"] += 1

    def _is_hurried(self) -> bool:
        return True in [running.is_hurried for running in self._writing]

    def _deliver_all(self, messages: deque[tuple[str, str, object]]) -> None:
        """Messages between the machines of this process, with those that they make meanwhile."""
        for _ in range(LOCAL_PER_TURN_MAX):
            if not messages:
                break
            self._deliver(*messages.popleft())

    def _wait(self) -> list[Received]:
        if self._is_full():
            # What waits for the log is bounded: nobody is heard until some of it is durable.
            self._woken.wait(IDLE_MS / 1000)
            self._woken.clear()
            return []
        was_woken = self._woken.is_set()
        if was_woken:
            self._woken.clear()
        if len(self._own) >= LOCAL_PER_TURN_MAX:
            return []  # so much was left by the last turn: nobody is heard until it is done
        if self._has_more() or self._collects_now():
            return self._hub.poll(0)  # a turn without anything looks for garbage
        # While a wave is under way, what clients bring is taken with what else comes, not one by one.
        waits = self._submitting.is_under_way(self._clock())
        self._hub.heed(not waits)
        if waits and self.stays_awake and not was_woken:
            received = self._poll_awake()
            if received or self._woken.is_set():
                return received
        due_ms = self._due_ms()
        if self._own:
            due_ms = min(due_ms, max(0, self._own_since_ms + GATHER_MS - self._clock()))
        return self._hub.poll(min(due_ms, CLIENTS_MS_MAX) if waits else due_ms)

    def _poll_awake(self) -> list[Received]:
        """What comes within a moment, as votes and outcomes do where a sync takes a fraction of a millisecond. Whoever
        sleeps meanwhile is woken late, most of all on a virtual machine, from which a processor is taken that has
        nothing to do. Whoever else wants to run here gets the processor."""
        give_up = perf_counter() + AWAKE_S_MAX
        while not self._woken.is_set() and perf_counter() < give_up:
            received = self._hub.poll(0)
            if received:
                return received
            sched_yield()
        return []

    def _has_more(self) -> bool:
        """Whether there is something to do at once."""
        return bool(self._local or self._inbox or self._guest_busy or (self._own and not self._decides_later()))

    def _decides_later(self) -> bool:
        """Whether nothing is left for the LTM but decisions of other coordinators, while the clients that were just
        answered are expected back. Those come first: the decisions are carried out when the next transactions have been
        passed on, and the other process is at work. Not later than that should be: who waits in the LTM waits for
        them."""
        now_ms = self._clock()
        if now_ms >= self._own_since_ms + GATHER_MS or len(self._own) >= LOCAL_PER_TURN_MAX:
            return False
        if not self._submitting.is_gathering(now_ms):
            return False
        own = self.name + "."
        return all(_waited_for_by_nobody(message) and not sender.startswith(own) for _, sender, message in self._own)

    def _collects_now(self) -> bool:
        """Whether to look for garbage if there is nothing else to do: not while its coordinator waits for votes, which
        come within a moment."""
        return garbage.is_due() and not self._submitting.has_wave(self.name + COORDINATOR, self._clock())

    def _is_full(self) -> bool:
        return True in [running.writer.is_full for running in self._writing if running.writer is not None]

    def _due_ms(self) -> int:
        dues = [self._timers[0][0]] if self._timers else []
        dues += self._submitting.due_ms()
        dues += [running.flush_by_ms for running in self._writing if running.flush_by_ms]
        return max(0, min(IDLE_MS, min(dues) - self._clock())) if dues else IDLE_MS

    # -- machines

    def _start_machines(self) -> None:
        life = self.directory.life
        if not life or len(self._machines) == len(self._roles) or self._clock() < self._next_life_ms:
            return
        self.counts["lives"] += 1
        for role in self._roles.values():
            if role.name not in self._machines:
                self._start(role, Birth(self.directory.id, life))

    def _start(self, role: Role, birth: Birth) -> None:
        log = NewLog()
        writer: LogWriter | None = None
        if role.has_log:
            log.log = f"{self.name}/{birth.life}"
            try:
                writer = self._open_log(log.log)
            except LogSealed:
                self.directory.want_life()
                return
        running = _Running(role, role.make(ProcessHost(role.name, self.events), birth), writer, log.log)
        self._machines[role.name] = running
        if writer is not None:
            self._writing.append(running)
        _log.info("%s begins", role.name, extra={"life": birth.life})
        self._guard(running, "start", None, lambda now_ms: running.machine.start(now_ms, log, birth.life))

    def _open_log(self, log: str) -> LogWriter:
        assert self._logs is not None and self._log_service is not None, "a machine with a log needs a place for it"
        logs = self._logs
        if logs.is_local:
            return InlineWriter(logs.create(log), self._log_service.later)
        return ThreadWriter(lambda: logs.create(log), self._wake)

    def _guard(self, running: _Running, what: str, detail: object, call: Callable[[int], Outputs]) -> None:
        """Let a machine handle something, and do what it wants."""
        self._story.append((running.name, what, detail))
        try:
            self._perform(running, call(self._clock()))
        except LifeOver as over:
            self._end_life(running, str(over))
        except Exception as error:
            self._panic(running, error)

    def _handle(self, running: _Running, sender: str, message: object) -> None:
        """As `_guard`, which the many messages of a transaction do without: a function of each takes time."""
        self._story.append((running.name, sender, message))
        try:
            self._perform(running, running.machine.receive(sender, message, self._clock()))
        except LifeOver as over:
            self._end_life(running, str(over))
        except Exception as error:
            self._panic(running, error)

    def _perform(self, running: _Running, outputs: Outputs) -> None:
        persist, send, timers, after, trim = outputs
        if persist:
            assert running.writer is not None, f"{running.name} has no log"
            running.writer.add(persist)
            if not running.flush_by_ms:
                running.flush_by_ms = self._clock() + UNHURRIED_MS
        for at_ms, token in timers:
            self._set_timer(at_ms, running, token)
        for item in send:
            if item.__class__ is WhenDurable:
                lsn, destination, message = item
            else:
                lsn = after
                destination, message = item  # type: ignore[misc]
            if lsn > running.told_lsn:
                running.waiting.append((lsn, destination, message))
                if message.__class__ is not Settled:
                    running.is_hurried = True
            else:
                self._send(running, destination, message)
        if trim and running.writer is not None:
            running.writer.trim(trim)

    def _end_life(self, running: _Running, reason: str) -> None:
        _log.warning("%s begins anew: %s", running.name, reason, extra={"log": running.log})
        self.counts["lives_over"] += 1
        running.over = True
        del self._machines[running.name]
        if running.writer is not None:
            self._writing.remove(running)
            running.writer.close()
        self._zookeeper.forget(running)
        if running.log:
            # The session goes on, so its node would stay: the leader need not wait for anything of this life.
            path = node_of(running.log)
            self.directory.keeper.ask(lambda number: zk.Delete(number, path), lambda answer: None)
        self._next_life_ms = self._clock() + NEXT_LIFE_MS
        self.directory.want_life()

    def _panic(self, running: _Running, error: Exception) -> NoReturn:
        """An invariant is broken: whatever this process believes may be wrong. Its story, and the end."""
        story = "\n".join(f"  {name} <- {what}: {str(detail)[:300]}" for name, what, detail in self._story)
        broken = f"{running.name} broke an invariant: {type(error).__name__}: {error}"
        raise InternalError(
            f"{broken}\nhandled before, oldest first:\n{story}",
            hint="this is a defect of Viewtide; the process ends, and what it acknowledged is in its log",
        ) from error

    # -- what comes in

    def _from_zookeeper(self) -> None:
        for caller, message in self._zookeeper.take():
            if caller is self.directory:
                self.directory.receive(message)
            elif isinstance(caller, _Running) and not caller.over:
                self._handle(caller, zk.ZOOKEEPER, message)
        if self.directory.peers is not self._known:
            self._meet(self.directory.peers)

    def _to_zookeeper(self) -> None:
        for message in self.directory.take():
            self._zookeeper.request(self.directory, message)

    def _meet(self, peers: dict[str, Address]) -> None:
        for name in self._known.keys() - peers.keys():
            self._hub.forget(name)
            self._take_back(name + COORDINATOR)
        for name, address in peers.items():
            if name != self.name and self._known.get(name) != address:
                self._connect(name, address)
        self._known = peers

    def _take_back(self, coordinator: str) -> None:
        """What another process has not answered that is gone now is done here."""
        for tx_id in self._submitting.forget(coordinator):
            again = self._calls.again(tx_id)
            if again is not None:
                self._ask(*again)

    def _connect(self, name: str, address: Address) -> None:
        try:
            self._hub.know(name, address.address, address.public_key)
        except InterfaceError as error:
            _log.error("%s cannot be reached: %s", name, error)

    def _receive(self, batch: Received) -> None:
        for payload in batch.payloads:
            try:
                message = decode(payload)
                self._check(batch.who, message)
            except RemoteProtocolError as error:
                self.counts["messages_malformed"] += 1
                self._hub.refuse(f"{batch.who.name}: {error}")
                continue
            assert isinstance(message, Addressed)
            self.counts["messages_received"] += 1
            if self._can_wait(message):
                if not self._own:
                    self._own_since_ms = self._clock()
                self._own.append((message.to, message.sender, message.message))
            else:
                self._deliver(message.to, message.sender, message.message)

    def _can_wait(self, message: Addressed) -> bool:
        """Whether nobody waits for what the LTM does with it: its clients are answered before a transaction's decision
        is carried out here. What comes for the LTM after such a message stays behind it."""
        return message.message.__class__ is ForLog and (bool(self._own) or _waited_for_by_nobody(message.message))

    def _check(self, who: Identity, message: object) -> None:
        """Nobody speaks for another process, or says what is not for his role."""
        if not isinstance(message, Addressed):
            raise RemoteProtocolError(f"{type(message).__name__} is not for a machine")
        if message.sender.partition(".")[0] != who.name or who.name in SERVICES:
            raise RemoteProtocolError(f"{message.sender} is not a machine of {who.name}")
        role = self._roles.get(message.to)
        answers = message.to == self.name + CALLS
        outcomes = _outcomes_in(message.message)
        if not (may_send(who.role, message.message) or (answers and who.role != CLIENT and not outcomes)):
            raise RemoteProtocolError(f"the role {who.role!r} may not send a {type(message.message).__name__}")
        if (role is not None and not isinstance(message.message, role.takes)) or (
            answers and not (outcomes or hasattr(message.message, "number"))
        ):
            raise RemoteProtocolError(f"{message.to} takes no {type(message.message).__name__}")
        if not all(0 <= outcome.commit_ts <= TS_MAX for outcome in outcomes):
            raise RemoteProtocolError("an outcome at a time that there is not")

    def _deliver(self, to: str, sender: str, message: object) -> None:
        running = self._machines.get(to)
        if running is not None:
            if isinstance(message, Submits):
                self._submitting.add(to, sender, message.submits)
            else:
                self._handle(running, sender, message)
        elif to == self.name + CALLS:
            if isinstance(message, _OUTCOMES) and sender not in self._machines:
                self._submitting.answered(sender, message, self._clock())
            self._calls.receive(message)
        else:
            # Not begun yet, or gone: whoever asked asks again.
            self.counts["messages_to_nobody"] += 1

    def _take_calls(self) -> None:
        for to, question, name in self._calls.take():
            if question.__class__ is Submit and to in self._machines:
                self._submitting.add(self._place_of(to, question), self.name + CALLS, (question,))
            else:
                self._ask(to, question)
            self._unanswered.add(name, self._clock())
        for to, submits in self._submitting.release(self._clock()):
            if to in self._machines:
                self._local.append((to, self.name + CALLS, Wave(submits)))
            else:
                self._pass_on(to, [submit for _, submit in submits])

    def _place_of(self, own: str, submit: Submit) -> str:
        """The coordinator that a transaction of this process's clients goes to."""
        machine = self._machines[own].machine
        if isinstance(machine, ClusterCoordinator) and machine.map.epoch:
            place = self._places.of(submit, machine.map, self.directory.leader.partition(".")[0])
            if place != self.name and place in self._known:
                return place + COORDINATOR
        return own

    def _pass_on(self, to: str, submits: list[Submit]) -> None:
        """To the coordinator of another process. What cannot be sent, because it is too large, is done here."""
        with suppress(LocalProtocolError):
            payload = encode(Addressed(to, self.name + CALLS, Submits(tuple(submits))))
            if len(payload) <= MESSAGE_BYTES_MAX:
                self._leave(to.partition(".")[0], payload)
                return
        if len(submits) > 1:
            half = len(submits) // 2
            self._pass_on(to, submits[:half])
            self._pass_on(to, submits[half:])
        else:
            self._ask(self.name + COORDINATOR, submits[0])

    def _ask(self, to: str, question: object) -> None:
        for name in self._named(to):
            self._route(self.name + CALLS, name, question)

    def _set_timer(self, at_ms: int, running: _Running | None, token: object) -> None:
        heappush(self._timers, (at_ms, next(self._numbers), running, token))

    def _fire_timers(self) -> None:
        timers, now_ms = self._timers, self._clock()
        while timers and timers[0][0] <= now_ms:
            _, _, running, token = heappop(timers)
            if running is None:
                self._own_timer(token)
            elif not running.over:
                self._fire(running, token)

    def _fire(self, running: _Running, token: object) -> None:
        self._guard(running, "timer", token, lambda now_ms: running.machine.timer(token, now_ms))

    def _own_timer(self, token: object) -> None:
        if token == "tick":
            if self.directory.is_early and not self._told_early:
                self._told_early = True
                _log.info("waits for the first LTM of the cluster")
            self.directory.tick(self._clock())
            self._set_timer(self._clock() + TICK_MS, None, token)
            return
        assert token == "calls"
        now_ms = self._clock()
        for name in self._unanswered.take(now_ms, self._calls.is_open):
            again = self._calls.again(name)
            if again is not None:
                self._ask(*again)
                self._unanswered.add(name, now_ms)

    # -- what goes out

    def _send(self, running: _Running, destination: str, message: object) -> None:
        if message.__class__ is Outcome or message.__class__ is Outcomes:
            self._submitting.answered(running.name, message, self._clock())
        if destination in self._machines:
            (self._own if message.__class__ is ForLog else self._local).append((destination, running.name, message))
        elif destination == zk.ZOOKEEPER:
            self._zookeeper.request(running, message)
        elif destination == LOGS:
            assert self._log_service is not None
            self._log_service.request(running, message)
        elif destination == STORE:
            assert self._store_service is not None, "machines keep rows in a store, and the process was given none"
            self._store_service.request(running, message, running.role.catalog_of(running.machine))
        else:
            for name in self._named(destination):
                self._route(running.name, name, message)

    def _named(self, destination: str) -> list[str]:
        """The machines that are meant."""
        if destination == "leader":
            return [self.directory.leader] if self.directory.leader else []
        if not destination.startswith((ANY, ALL)):
            return [destination]
        every, _, kind = destination.partition(".")
        ltms = [f"{name}.{kind}" for name in self._ltms()]
        if every + "." == ALL or not ltms:
            return ltms
        self._next_ltm += 1
        return [ltms[self._next_ltm % len(ltms)]]

    def _ltms(self) -> list[str]:
        return [name for name, address in self._known.items() if address.role == LTM]

    def _route(self, sender: str, destination: str, message: object) -> None:
        process = destination.partition(".")[0]
        if process == self.name:
            self._local.append((destination, sender, message))
        else:
            try:
                self._leave(process, encode(Addressed(destination, sender, message)))
            except LocalProtocolError as error:
                _log.error("%s from %s to %s: %s", type(message).__name__, sender, destination, error)
                self.counts["messages_not_sent"] += 1

    def _leave(self, process: str, payload: bytes) -> None:
        """For another process."""
        if self._hub.send(process, payload):
            self.counts["messages_sent"] += 1
        else:
            # Its queue is full, or nobody knows where it is: whoever waits for the answer asks again.
            self.counts["messages_not_sent"] += 1

    def _flush_logs(self) -> None:
        for running in list(self._writing):
            writer = running.writer
            assert writer is not None
            try:
                if self._is_flush_due(running):
                    running.is_hurried, running.flush_by_ms = False, 0
                    writer.flush()
            except LifeOver as over:
                self._end_life(running, str(over))
                continue
            durable_lsn = writer.durable_lsn
            if durable_lsn > running.told_lsn:
                self._persisted(running, durable_lsn)

    def _is_flush_due(self, running: _Running) -> bool:
        if running.is_hurried:
            return True
        if running.flush_by_ms:
            return running.flush_by_ms <= self._clock()
        # There is nothing to begin, but what another thread does for the log may have failed.
        return True

    def _persisted(self, running: _Running, lsn: int) -> None:
        running.told_lsn = lsn
        waiting, running.waiting = running.waiting, []
        for item in waiting:
            if item[0] <= lsn:
                self._send(running, *item[1:])
            else:
                running.waiting.append(item)
        self._guard(running, "durable", lsn, lambda now_ms: running.machine.persisted(lsn, now_ms))
