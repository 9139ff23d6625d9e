"""The driver's small parts: what machines take from peers, questions of other threads, the directory of processes."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from itertools import count
from threading import Event
from unittest.mock import Mock

import pytest

from tests.sim.workload import tables
from viewtide.changetables.errors import Busy, InterfaceError, InternalError, RemoteProtocolError, Unavailable
from viewtide.coordinator import registered
from viewtide.coordinator.cluster import calls as calls_module
from viewtide.coordinator.cluster import process as process_module
from viewtide.coordinator.cluster.addressed import Addressed
from viewtide.coordinator.cluster.calls import Calls
from viewtide.coordinator.cluster.directory import LIVES, PROCESSES, Address, Directory, Superseded
from viewtide.coordinator.cluster.log_writers import LogWriter, ThreadWriter
from viewtide.coordinator.cluster.process import (
    CLIENTS_MS_MAX,
    UNHURRIED_MS,
    Birth,
    Process,
    ProcessHost,
    _Running,
)
from viewtide.coordinator.cluster.roles import ltm_roles, view_manager_roles
from viewtide.coordinator.cluster.submitting import Submitting
from viewtide.coordinator.cluster.waves import GATHER_MS, WAVES_MAX_LOCAL
from viewtide.coordinator.two_phase.messages import ChangesFound, Outcome, Outcomes, ReadAt, RowsAt, Submit
from viewtide.coordinator.vms import cluster_messages
from viewtide.coordinator.vms.cluster_messages import Hello
from viewtide.ltm import garbage
from viewtide.ltm.cluster import log_messages
from viewtide.ltm.cluster import messages as cluster
from viewtide.ltm.cluster import zk_messages as zk
from viewtide.ltm.cluster.hosted import Logged
from viewtide.ltm.commit_log.elsewhere import OwnLog
from viewtide.ltm.keys import ADMIN, CLIENT, LOCAL, LTM, VIEW_MANAGER, Identity
from viewtide.ltm.machine import Outputs, WhenDurable
from viewtide.ltm.ports import Damaged
from viewtide.ltm.transport import Received
from viewtide.ltm.two_phase import messages as commit
from viewtide.ltm.two_phase import records
from viewtide.ltm.wire import encode

#: For a log: in `ForLog`. The others are records, or come from a service or to a client.
FOR_LOGS = (
    *(commit.Ask, commit.Prepare, commit.Decide, commit.Forget, commit.Inquire, commit.Resolve, commit.Read),
    *(commit.ReadChanges, cluster_messages.Close, cluster_messages.Collect, cluster_messages.Passed),
)
TO_CLIENTS = (cluster.Done, cluster.CatalogIs, ChangesFound, Outcomes)


def test_every_message_is_understood_by_a_machine() -> None:
    roles = (*ltm_roles("ltm-1", tables()), *view_manager_roles("vm-1", tables()))
    taken = {kind for role in roles for kind in role.takes}
    others = {*FOR_LOGS, *TO_CLIENTS, Logged, Addressed}
    for kind in registered.MESSAGES.values():
        if kind not in others and kind.__module__ not in (records.__name__, log_messages.__name__):
            assert kind in taken, f"no machine takes a {kind.__name__}: add it to `takes` in roles.py"


def check(who: Identity, message: object) -> None:
    """As a process judges what a peer sends."""
    process = Process.__new__(Process)
    process.name = "ltm-1"
    process._roles = {role.name: role for role in ltm_roles("ltm-1", tables())}
    process._check(who, message)


PEER = Identity("vm-1", LOCAL)


def test_what_a_machine_understands_is_let_in() -> None:
    check(PEER, Addressed("ltm-1.leader", "vm-1", Hello(1)))
    check(PEER, Addressed("ltm-1.coordinator", "vm-1.x", ReadAt(1, 0, ())))
    check(PEER, Addressed("ltm-1.calls", "vm-1", Outcome((1, 2), "committed")))
    check(PEER, Addressed("ltm-1.calls", "vm-1", cluster.Done(1)))


@pytest.mark.parametrize(
    ("who", "message"),
    [
        (PEER, Hello(1)),
        (PEER, Addressed("ltm-1.leader", "vm-2", Hello(1))),
        (PEER, Addressed("ltm-1.leader", "zookeeper", Hello(1))),
        (Identity("zookeeper", LOCAL), Addressed("ltm-1.leader", "zookeeper", zk.Answer(1))),
        (Identity("logs", LOCAL), Addressed("ltm-1", "logs", log_messages.NoLog(1, "x/1"))),
        (PEER, Addressed("ltm-1", "vm-1", Hello(1))),
        (PEER, Addressed("ltm-1.calls", "vm-1", Hello(1))),
        (Identity("vm-1", CLIENT), Addressed("ltm-1.leader", "vm-1", Hello(1))),
        (Identity("vm-1", CLIENT), Addressed("ltm-1.calls", "vm-1", cluster.Done(1))),
        (Identity("vm-1", VIEW_MANAGER), Addressed("ltm-1.calls", "vm-1", Outcome((1, 2), "committed", 3))),
        (Identity("boss", ADMIN), Addressed("ltm-1.calls", "boss", Outcomes((Outcome((1, 2), "committed", 3),)))),
        (PEER, Addressed("ltm-1.calls", "vm-1", Outcomes((Outcome((1, 2), "committed", -5),)))),
        (PEER, Addressed("ltm-1.calls", "vm-1", Outcome((1, 2), "committed", 2**63))),
        (PEER, Addressed("ltm-1.calls", "vm-1", Outcomes(()))),
    ],
)
def test_whatever_else_is_refused(who: Identity, message: object) -> None:
    with pytest.raises(RemoteProtocolError):
        check(who, message)


@pytest.mark.parametrize(
    ("role", "to", "message"),
    [
        (VIEW_MANAGER, "ltm-1.leader", cluster.Split(1, b"x")),
        (VIEW_MANAGER, "ltm-1.leader", cluster.MoveRange(1, b"x", b"y", "ltm-1/1")),
        (VIEW_MANAGER, "ltm-1.coordinator", cluster.ChangeCatalog(1, 1, b"")),
        (VIEW_MANAGER, "ltm-1.leader", commit.Draw(1, 1)),
        (VIEW_MANAGER, "ltm-1.coordinator", commit.Vote(((1, 2), 3), "ltm-1", 4)),
        (VIEW_MANAGER, "ltm-1", cluster.ForLog("ltm-1/1", "", commit.Forget((((1, 1), 2),)))),
        (ADMIN, "ltm-1.coordinator", commit.Vote(((1, 2), 3), "ltm-1", 4)),
        (ADMIN, "ltm-1", cluster.ForLog("ltm-1/1", "", commit.Forget((((1, 1), 2),)))),
        (ADMIN, "ltm-1.leader", Hello(1)),
        (CLIENT, "ltm-1.coordinator", ReadAt(1, 0, ())),
    ],
)
def test_what_is_not_for_a_role_is_refused_to_it_and_taken_from_an_ltm(role: str, to: str, message: object) -> None:
    with pytest.raises(RemoteProtocolError, match=f"the role '{role}' may not send a {type(message).__name__}"):
        check(Identity("x", role), Addressed(to, "x", message))
    check(Identity("x", LTM), Addressed(to, "x", message))


def test_what_is_for_a_role_is_taken() -> None:
    check(Identity("boss", ADMIN), Addressed("ltm-1.leader", "boss", cluster.Split(1, b"x")))
    check(Identity("vm-1", VIEW_MANAGER), Addressed("ltm-1.leader", "vm-1", Hello(1)))
    collect = cluster.ForLog("ltm-1/1", "", cluster_messages.Collect(((1,), 2), 0, 0, 0))
    check(Identity("vm-1", VIEW_MANAGER), Addressed("ltm-1", "vm-1", collect))


# The log.


class MemoryWriter:
    """Durable at the next flush."""

    def __init__(self) -> None:
        self.durable_lsn = self.last_lsn = self.flushes = 0
        self.is_full = False

    def add(self, records: Sequence[object]) -> None:
        self.last_lsn += len(records)

    def flush(self) -> None:
        self.flushes += self.durable_lsn < self.last_lsn
        self.durable_lsn = self.last_lsn

    def trim(self, below_lsn: int) -> None: ...

    def close(self) -> None: ...


class Logging(Process):
    """A process with one machine that has a log; it is told what the machine wants."""

    def __init__(self, writer: LogWriter) -> None:
        self.now_ms = 1
        self.sent: list[object] = []
        self.ended: list[str] = []
        role = ltm_roles("ltm-1", tables())[0]
        machine = role.make(ProcessHost("ltm-1", Counter()), Birth(1, 1))
        self.running = _Running(role, machine, writer, "ltm-1/1")
        self._clock = lambda: self.now_ms
        self._machines = {"ltm-1": self.running}
        self._writing = [self.running]
        self._story, self._timers, self._numbers = deque(), [], count()

    def _send(self, running: _Running, destination: str, message: object) -> None:
        self.sent.append(message)

    def _end_life(self, running: _Running, reason: str) -> None:
        self.ended.append(running.name)

    def turn(self, *records: object, send: Sequence[WhenDurable] = ()) -> None:
        self._perform(self.running, Outputs(records, tuple(send)))
        self._flush_logs()


def test_decisions_go_to_the_log_with_the_next_vote_or_soon() -> None:
    attempt = ((1, 2), 3)
    settled, vote = commit.Settled(attempt, "ltm-1/1"), commit.Vote(attempt, "ltm-1/1", 4)
    writer = MemoryWriter()
    logging = Logging(writer)
    logging.turn("decided", send=[WhenDurable(1, "c", settled)])
    assert (writer.flushes, logging.sent) == (0, [])
    logging.turn("voted", send=[WhenDurable(2, "c", vote)])
    assert (writer.flushes, writer.durable_lsn, logging.sent) == (1, 2, [settled, vote])
    logging.turn("decided", send=[WhenDurable(3, "c", settled)])
    logging.now_ms += UNHURRIED_MS - 1
    logging.turn()
    assert writer.flushes == 1
    logging.now_ms += 1
    logging.turn()
    assert (writer.flushes, logging.sent[2:]) == (2, [settled])


def test_a_log_that_cannot_be_opened_ends_the_life_also_if_nothing_is_to_be_written() -> None:
    def open_log() -> OwnLog:
        raise Unavailable("nobody is there")

    writer = ThreadWriter(open_log, lambda: None)
    writer._thread.join(10)
    logging = Logging(writer)
    logging.turn()
    assert logging.ended == ["ltm-1"]


# What comes from others.


FLUSHED = "what others wait for leaves"


class Receiving(Process):
    """One that notes what it does in its turns, in order."""

    notes_flushes = False

    def __init__(self) -> None:
        self.name = "ltm-1"
        self._roles = {role.name: role for role in ltm_roles("ltm-1", tables())}
        self._own: deque[tuple[str, str, object]] = deque()
        self._own_since_ms = 0
        self._local, self._inbox = deque(), deque()
        self.counts, self._writing, self._failure = Counter(), [], None
        self._hub = Mock(poll=self._poll, flush=lambda: self.done.append(FLUSHED) if self.notes_flushes else None)
        self._guest = Mock(take=lambda: False, finish=self._finish)
        self._guest_busy = self._puts_off = self.stays_awake = False
        self._woken = Event()
        self._submitting = Submitting(WAVES_MAX_LOCAL)
        self.now_ms = 0
        self._clock = lambda: self.now_ms
        self._timers = []
        self.polled: list[list[Received]] = []
        self.waited_ms: list[int] = []
        self.done: list[object] = []

    def _poll(self, timeout_ms: int) -> list[Received]:
        self.waited_ms.append(timeout_ms)
        return self.polled.pop(0) if self.polled else []

    def pass_on(self, number: int, coordinator: str = "ltm-2") -> None:
        """A transaction of a client of its own, to another coordinator."""
        self._submitting.add(f"{coordinator}.coordinator", "ltm-1.calls", [Submit((number, 1), False, ())])
        assert list(self._submitting.release(self.now_ms))

    def answer(self, number: int, coordinator: str = "ltm-2") -> None:
        self._submitting.answered(f"{coordinator}.coordinator", Outcome((number, 1), commit.COMMITTED, 4), self.now_ms)

    def _finish(self) -> bool:
        self.done.append("clients are answered")
        return False

    def _fire_timers(self) -> None:
        self.done.append("timers")

    def _from_zookeeper(self) -> None: ...
    def _to_zookeeper(self) -> None: ...
    def _take_calls(self) -> None: ...
    def _start_machines(self) -> None: ...

    def _deliver(self, to: str, sender: str, message: object) -> None:
        self.done.append(message.message if isinstance(message, cluster.ForLog) else message)

    def take(self, *messages: object) -> list[object]:
        """What a turn does with it."""
        payloads = [
            encode(
                Addressed("ltm-1", "ltm-2.coordinator", cluster.ForLog("ltm-1/1", "", message))
                if isinstance(message, FOR_LOGS)
                else Addressed("ltm-1.calls", "ltm-2.coordinator", message)
            )
            for message in messages
        ]
        self._guest_busy = True  # so that it does not wait
        self.polled = [[Received(None, Identity("ltm-2", LTM), payloads)]]
        self.done = []
        self._turn()
        return self.done


def test_clients_are_answered_before_a_decision_is_carried_out() -> None:
    attempt, next_attempt = ((1, 2), 3), ((4, 5), 6)
    asked, outcome = commit.Ask(attempt, 1, 1, 1, 0, (b"k",)), Outcome((1, 2), commit.COMMITTED, 4)
    decided, forget = commit.Decide(attempt, 4), commit.Forget((((7, 8), 9),))
    prepared = commit.Prepare(next_attempt, 6, 1, 0, 1, ("ltm-1/1",), ((b"k", (1,)),), ())
    process, answered, timers = Receiving(), "clients are answered", "timers"
    assert process.take(asked, forget, decided, outcome) == (
        [asked, outcome, answered, forget, decided, timers, answered]
    )
    # The LTM gets it behind the decision that it needs, and before it finds that it is missing.
    assert process.take(decided, prepared) == [answered, decided, prepared, timers, answered]
    assert process.take(prepared) == [prepared, timers, answered]


def test_what_others_wait_for_leaves_before_clients_are_answered() -> None:
    process = Receiving()
    process.notes_flushes = True
    vote = Outcome((1, 2), commit.COMMITTED, 4)
    assert process.take(vote)[:2] == [vote, FLUSHED]
    assert process.done.index(FLUSHED) < process.done.index("clients are answered")


def test_a_decision_of_another_coordinator_waits_for_clients_that_are_expected_back() -> None:
    """It is carried out when their next transactions have been passed on."""
    decided = commit.Decide(((1, 2), 3), 4)
    process = Receiving()
    process.pass_on(1)
    process.answer(1)
    assert decided not in process.take(decided)
    process._guest_busy = False
    process.waited_ms.clear()
    process._turn()
    assert decided not in process.done and process.waited_ms == [GATHER_MS], "it does not wait for long"
    process.pass_on(2)
    process._turn()
    assert decided in process.done and not process._own


def test_a_decision_does_not_wait_for_clients_that_do_not_come_back() -> None:
    decided = commit.Decide(((1, 2), 3), 4)
    process = Receiving()
    process.pass_on(1)
    process.answer(1)
    process.take(decided)
    process.now_ms += GATHER_MS
    process._turn()
    assert decided in process.done
    # After a pause, timers come behind it: it is not asked for.
    assert process.done.index(decided) < len(process.done) - 1 - process.done[::-1].index("timers")


def test_a_decision_does_not_wait_longer_because_clients_of_many_coordinators_come_and_go() -> None:
    decided = commit.Decide(((1, 2), 3), 4)
    process = Receiving()
    process.pass_on(1, "ltm-2")
    process.answer(1, "ltm-2")
    process.take(decided)
    for number in range(2, 2 + GATHER_MS):
        assert decided not in process.done
        process.now_ms += 1
        coordinator = f"ltm-{2 + number % 2}"
        process.pass_on(number, coordinator)
        process.answer(number, coordinator)
        process.take(commit.Decide(((number, 2), 3), 4))
    assert decided in process.done


def test_whoever_needs_the_ltm_does_not_wait_behind_a_decision() -> None:
    decided = commit.Decide(((1, 2), 3), 4)
    asked = commit.Ask(((4, 5), 6), 1, 1, 1, 0, (b"k",))
    process = Receiving()
    process.pass_on(1)
    process.answer(1)
    process.take(decided)
    assert [each for each in process.take(asked) if each in (decided, asked)] == [decided, asked]
    # Decisions of its own coordinator are not put off: the LTM has time while others do their part.
    process.pass_on(2)
    process.answer(2)
    process._own.append(("ltm-1", "ltm-1.coordinator", cluster.ForLog("ltm-1/1", "", decided)))
    assert decided in process.take()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes 50 us, and there is no garbage."""
    counted = count()
    monkeypatch.setattr(process_module, "perf_counter", lambda: next(counted) * 0.00005)
    monkeypatch.setattr(garbage, "is_due", lambda: False)


@pytest.mark.usefixtures("looks")
def test_whoever_has_a_processor_to_himself_waits_awake_while_a_wave_is_under_way() -> None:
    process = Receiving()
    process.pass_on(1)
    come = [Received(None, Identity("ltm-2", LTM), [])]
    process.polled = [[], [], come]
    assert process._wait() == [] and process.waited_ms == [CLIENTS_MS_MAX], "it has none"
    process.stays_awake = True
    process.polled = [[], [], come]
    process.waited_ms.clear()
    assert process._wait() == come and process.waited_ms == [0, 0, 0]
    process.waited_ms.clear()
    assert process._wait() == [], "nothing comes"
    assert process.waited_ms == [0] * 5 + [CLIENTS_MS_MAX], "for 0.3 ms"
    process.answer(1)
    process.waited_ms.clear()
    process._wait()
    assert 0 not in process.waited_ms, "clients need the processor"


@pytest.mark.usefixtures("looks")
def test_whoever_waits_awake_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    yielded: list[int] = []
    process = Receiving()
    process.pass_on(1)
    process.stays_awake = True
    monkeypatch.setattr(process_module, "sched_yield", lambda: yielded.append(len(process.waited_ms)))
    come = [Received(None, Identity("ltm-2", LTM), [])]
    process.polled = [[], [], come]
    assert process._wait() == come
    assert yielded == [1, 2], "after each look in vain"


@pytest.mark.usefixtures("looks")
def test_whoever_waits_awake_hears_other_threads() -> None:
    process = Receiving()
    process.pass_on(1)
    process.stays_awake = True

    def wake(timeout_ms: int) -> list[Received]:
        process.waited_ms.append(timeout_ms)
        process._woken.set()
        return []

    process._hub = Mock(poll=wake)
    assert process._wait() == [] and process.waited_ms == [0]
    # Or just before: the hub has been woken, too, and that must not be lost in looks that nobody asks about.
    process.waited_ms.clear()
    assert process._wait() == [] and process.waited_ms == [CLIENTS_MS_MAX]


def test_nobody_is_heard_while_much_is_left_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "LOCAL_PER_TURN_MAX", 2)
    process = Receiving()
    decisions = [commit.Decide(((number, 2), 3), 4) for number in range(7)]
    process.take(*decisions)
    process.polled = [[Received(None, Identity("ltm-2", LTM), [])]]
    while len(process._own) >= 2:
        process._turn()
        assert len(process.polled) == 1
    process._turn()
    assert process.polled == []
    assert [each for each in process.done if isinstance(each, commit.Decide)] == decisions


def test_garbage_is_looked_for_in_turns_without_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[bool] = []
    monkeypatch.setattr(garbage, "is_due", lambda: True)
    monkeypatch.setattr(garbage, "collect", lambda: collected.append(True))
    process = Receiving()
    process.take(commit.Decide(((1, 2), 3), 4))
    assert collected == [], "something had come"
    process._guest = Mock(take=lambda: True, finish=lambda: False)
    process._turn()
    assert collected == [], "a client has"
    process._guest = Mock(take=lambda: False, finish=lambda: False)
    process.pass_on(1, "ltm-1")
    process._turn()
    assert collected == [], "votes are expected"
    process.answer(1, "ltm-1")
    process.pass_on(2)
    process._turn()
    assert collected == [True], "others work on what was passed on"


# Questions of other threads.


def test_an_answer_finds_who_asked() -> None:
    woken: list[int] = []
    calls = Calls(lambda: woken.append(1))
    read, submit = calls.ask("a", ReadAt(0, 5, ())), calls.ask("b", Submit((7, 8), False, ()))
    assert len(woken) == 2
    (to, question, name), (other_to, other, _) = calls.take()
    assert (to, other_to) == ("a", "b") and isinstance(question, ReadAt) and question.number == name
    answer = RowsAt(question.number, 5, (), ())
    calls.receive(answer)
    calls.receive(answer)
    calls.receive(Outcome((7, 8), "committed", 9))
    assert read.result(0) == answer and submit.result(0).commit_ts == 9
    assert calls.again(name) is None and len(calls) == 0
    assert isinstance(other, Submit) and not other.again


def test_what_is_not_answered_is_asked_again() -> None:
    calls = Calls(lambda: None)
    future = calls.ask("a", Submit((7, 8), False, ()))
    ((_, _, name),) = calls.take()
    again = calls.again(name)
    assert again is not None and again[1] == Submit((7, 8), True, ())
    future.cancel()
    assert calls.again(name) is None and len(calls) == 0


def test_questions_are_bounded_and_end_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "CALLS_MAX", 2)
    calls = Calls(lambda: None)
    futures = [calls.ask("a", ReadAt(0, 5, ())) for _ in range(2)]
    with pytest.raises(Busy):
        calls.ask("a", ReadAt(0, 5, ()))
    calls.close()
    for future in futures:
        with pytest.raises(Unavailable):
            future.result(0)
    with pytest.raises(InterfaceError):
        calls.ask("a", ReadAt(0, 5, ()))


# The directory.

MINE = Address("tcp://127.0.0.1:1", "ltm")
OWN = f"{PROCESSES}/ltm-1"


class FakeTree:
    """Answers a directory as the servers would, one after another; `nodes` are (data, owner, version)."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.nodes: dict[str, tuple[bytes, int, int]] = {LIVES: (b"", 0, 0)}
        self.session = 1
        directory.start()
        directory.receive(zk.Session(zk.CONNECTED, self.session))

    def settle(self) -> None:
        while sent := self.directory.take():
            for message in sent:
                if not isinstance(message, zk.Connect):
                    self.directory.receive(self._answer(message))

    def _answer(self, message: object) -> zk.Answer:
        match message:
            case zk.Get(request, path):
                if path not in self.nodes:
                    return zk.Answer(request, error=zk.NO_NODE)
                return zk.Answer(request, self.nodes[path][0], "", self._stat(path))
            case zk.Exists(request, path):
                return zk.Answer(request, path in self.nodes)
            case zk.Children(request, path):
                names = sorted(each.rpartition("/")[2] for each in self.nodes if each.startswith(path + "/"))
                return zk.Answer(request, tuple(names))
            case zk.Set(request, path, data):
                if path not in self.nodes:
                    return zk.Answer(request, error=zk.NO_NODE)
                self.nodes[path] = (data, self.nodes[path][1], self.nodes[path][2] + 1)
                return zk.Answer(request, None, "", self._stat(path))
            case zk.Create(request, path, data, ephemeral):
                self.nodes[path] = (data, self.session if ephemeral else 0, 0)
                return zk.Answer(request, path, "", self._stat(path))
            case zk.Multi(request, operations):
                for operation in operations:
                    if isinstance(operation, zk.Delete):
                        del self.nodes[operation.path]
                    else:
                        self._answer(operation)
                return zk.Answer(request)
        raise AssertionError(message)

    def _stat(self, path: str) -> zk.Stat:
        _, owner, version = self.nodes[path]
        return zk.Stat(version, 1, 1, owner)

    def change(self, path: str, data: bytes, owner: int) -> None:
        self.nodes[path] = (data, owner, 0)
        self.directory.receive(zk.Watched(zk.CHANGED, path))
        self.directory.receive(zk.Watched(zk.CHILD, PROCESSES))
        self.settle()


@pytest.fixture
def tree() -> FakeTree:
    return FakeTree(Directory("ltm-1", MINE, 2_000))


def test_lives_and_ids_are_counted(tree: FakeTree) -> None:
    directory = tree.directory
    directory.want_life()
    tree.settle()
    assert (directory.id, directory.life) == (1, 1)
    directory.want_life()
    assert directory.life == 0
    tree.settle()
    assert (directory.id, directory.life) == (1, 2)
    other = FakeTree(Directory("ltm-2", MINE, 2_000))
    other.nodes = tree.nodes
    other.directory.want_life()
    other.settle()
    assert (other.directory.id, other.directory.life) == (2, 1)


def test_who_is_there_before_the_first_ltm_says_so_once(tree: FakeTree, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "viewtide.process")
    process = Process.__new__(Process)
    process.directory, process._told_early, process._clock = tree.directory, False, lambda: 10_000
    process._timers, process._numbers = [], count()
    known = tree.nodes.pop(LIVES)
    tree.directory.want_life()
    for _ in range(3):
        tree.settle()
        process._own_timer("tick")
    assert caplog.messages == ["waits for the first LTM of the cluster"]
    tree.nodes[LIVES] = known
    tree.settle()
    assert tree.directory.life == 1 and not tree.directory.is_early


def test_others_are_found_and_lost(tree: FakeTree) -> None:
    tree.settle()
    assert tree.nodes[OWN] == (MINE.pack(), 1, 0)
    other = Address("tcp://127.0.0.1:2", "view-manager", "key", "", "127.0.0.1:9")
    tree.change(f"{PROCESSES}/vm-1", other.pack(), 9)
    tree.change(f"{PROCESSES}/strange", b"\xff", 9)
    assert tree.directory.peers == {"ltm-1": MINE, "vm-1": other}
    del tree.nodes[f"{PROCESSES}/vm-1"]
    tree.change(f"{PROCESSES}/vm-2", other.pack(), 9)
    assert tree.directory.peers == {"ltm-1": MINE, "vm-2": other}


def test_one_that_was_killed_is_replaced(tree: FakeTree) -> None:
    tree.nodes[OWN] = (b"old", 77, 3)
    tree.settle()
    assert tree.nodes[OWN] == (MINE.pack(), 1, 0)


def test_it_writes_only_as_long_as_zookeeper_knows_it(tree: FakeTree) -> None:
    """As the store's thread finds it when the process was paused: what has come meanwhile is not handled yet."""
    directory = tree.directory
    process = Process.__new__(Process)
    process.name, process.directory, process._session_ms = "ltm-1", directory, 2_000
    now_ms = 10_000
    process._clock = lambda: now_ms
    tree.settle()
    with pytest.raises(Unavailable, match="ltm-1 has not heard of ZooKeeper"):
        process.check_lease()
    directory.tick(now_ms)
    tree.settle()
    process.check_lease()
    now_ms = 11_001
    with pytest.raises(Unavailable):
        process.check_lease()
    # Another session has its node: it is not this process that is known.
    tree.nodes[OWN] = (b"new", 77, 0)
    directory.tick(now_ms)
    tree.settle()
    with pytest.raises(Unavailable):
        process.check_lease()


@pytest.mark.parametrize(
    ("failure", "raised"),
    [(Damaged("the checksum is wrong"), Damaged), (ZeroDivisionError("nobody has thought of it"), InternalError)],
)
def test_what_a_thread_met_ends_the_process(failure: Exception, raised: type[Exception]) -> None:
    process = Process.__new__(Process)
    woken: list[bool] = []
    process._failure = None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process, "_wake", lambda: woken.append(True), raising=False)
        patched.setattr(process, "_wait", list, raising=False)
        process._fail(failure)
        with pytest.raises(raised, match=str(failure)):
            process._turn()
    assert woken


def test_a_process_that_was_replaced_ends(tree: FakeTree) -> None:
    tree.settle()
    with pytest.raises(Superseded):
        tree.change(OWN, b"new", 77)


def test_after_a_lost_session_it_registers_again(tree: FakeTree) -> None:
    tree.settle()
    del tree.nodes[OWN]
    tree.session = 2
    tree.directory.receive(zk.Session(zk.LOST, 0))
    assert not tree.directory.connected
    tree.directory.receive(zk.Session(zk.CONNECTED, 2))
    tree.settle()
    assert tree.nodes[OWN] == (MINE.pack(), 2, 0)
