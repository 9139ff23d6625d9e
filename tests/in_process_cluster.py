"""A cluster in one thread of this process: the same machines as in processes of their own, in real time, with a
ZooKeeper and logs in memory. Threads of the test ask it as they ask a process of a cluster (`Asking`).

LTM k is the machines "ltm-k" (Member), "ltm-k.coordinator" and "ltm-k.leader"; view managers are "vm-k".
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from viewtide.coordinator.cluster.calls import Later
from viewtide.coordinator.two_phase.messages import Outcome, Submit
from viewtide.ltm import wire
from viewtide.ltm.cluster import zk_messages as zk
from viewtide.ltm.cluster.log_messages import LOGS, LogRecords, NoLog, ReadLog, Seal
from viewtide.ltm.cluster.member import LifeOver
from viewtide.ltm.machine import Machine, Outputs, PlainHost, WhenDurable

from .sim.process import Recovered
from .sim.wire import _SENT
from .sim.zookeeper import _read, _Refused, _write, _Znode

#: A question that is not answered is asked again after this long.
AGAIN_MS = 500
CALLER = "caller"
#: How long a killed process's session outlives it.
SESSION_MS = 300


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _process(machine: str) -> str:
    return machine.partition(".")[0]


class MemoryZooKeeper:
    """One tree; every machine has a session of its own."""

    def __init__(self, tell: Callable[[str, object], None]) -> None:
        self._tell = tell
        self._tree: dict[str, _Znode] = {"/": _Znode(b"", 0, 0, 0, 0, 0)}
        self._zxid = 0
        self._sessions: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._data_watches: dict[str, set[str]] = {}
        self._child_watches: dict[str, set[str]] = {}

    def ensure(self, path: str, data: bytes = b"") -> None:
        self._write(zk.Create(0, path, data), 0)

    def request(self, client: str, message: Any) -> None:
        if isinstance(message, zk.Connect):
            self._sessions[client] = next(self._numbers)
            self._tell(client, zk.Session(zk.CONNECTED, self._sessions[client]))
            return
        try:
            value, stat = self._do(client, message)
            answer = zk.Answer(message.request, value, "", stat)
        except _Refused as refused:
            answer = zk.Answer(message.request, error=str(refused))
        self._tell(client, answer)

    def _do(self, client: str, message: Any) -> tuple[object, zk.Stat | None]:
        if not isinstance(message, zk.Get | zk.Exists | zk.Children | zk.Check):
            return self._write(message, self._sessions[client])
        if getattr(message, "watch", False) and (message.path in self._tree or isinstance(message, zk.Exists)):
            watches = self._child_watches if isinstance(message, zk.Children) else self._data_watches
            watches.setdefault(message.path, set()).add(client)
        return _read(self._tree, message)

    def _write(self, message: Any, session: int) -> tuple[object, zk.Stat | None]:
        tree, fired = dict(self._tree), []
        self._zxid += 1
        if isinstance(message, zk.Multi):
            each = [_write(tree, operation, session, self._zxid, fired)[0] for operation in message.operations]
            result: tuple[object, zk.Stat | None] = (tuple(each), None)
        else:
            result = _write(tree, message, session, self._zxid, fired)
        self._tree = tree
        for what, path in fired:
            told = set() if what == zk.CHILD else self._data_watches.pop(path, set())
            if what in (zk.CHILD, zk.DELETED):
                told |= self._child_watches.pop(path, set())
            for client in sorted(told):
                self._tell(client, zk.Watched(what, path))
        return result

    def expire(self, client: str) -> None:
        session = self._sessions.pop(client, None)
        for path in [path for path, znode in self._tree.items() if session and znode.owner == session]:
            self._write(zk.Delete(0, path), 0)


class _Process:
    """A machine with its log, if it has one."""

    def __init__(self, factory: Callable[[PlainHost], Machine], name: str, with_log: bool) -> None:
        self.factory, self.name, self.with_log = factory, name, with_log
        self.machine: Machine | None = None
        self.incarnation = 0
        self.log: list[object] = []
        self.durable_lsn = 0
        self.waiting: list[WhenDurable] = []


class InProcessCluster:
    """`add` machines, `start`, then `ask`; `kill` some."""

    def __init__(self) -> None:
        self.processes: dict[str, _Process] = {}
        self.logs: dict[str, list[object]] = {}
        self._sealed: set[str] = set()
        self.zookeeper = MemoryZooKeeper(lambda client, message: self._post(client, zk.ZOOKEEPER, message))
        self._messages: deque[tuple[str, str, object]] = deque()
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._jobs: deque[Callable[[], None]] = deque()
        self._woken = threading.Event()
        self._closing = False
        self._numbers = itertools.count(1)
        self._open: dict[object, tuple[str, Any, Future[Any] | Later]] = {}
        self.failure: BaseException | None = None
        #: What a message between processes may have at the most; None: nobody looks.
        self.message_bytes_max: int | None = None
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)

    # -- for the test

    def add(self, name: str, factory: Callable[[PlainHost], Machine], *, with_log: bool = False) -> None:
        self.processes[name] = _Process(factory, name, with_log)

    def start(self) -> None:
        for process in self.processes.values():
            self._begin(process)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self._woken.set()
        self._thread.join(10)
        if self.failure is not None:
            raise self.failure

    def do(self, job: Callable[[], object]) -> Any:
        """Have something done by the thread of the machines."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

        self._jobs.append(run)
        self._woken.set()
        return future.result(30)

    def kill(self, *names: str) -> None:
        """They are gone; ZooKeeper notices it later. Their logs stay."""

        def gone() -> None:
            for name in names:
                self.processes[name].machine = None
                self._after(SESSION_MS, lambda name=name: self.zookeeper.expire(name))  # type: ignore[misc]

        self.do(gone)

    def ask(self, to: str, question: object) -> Future[object]:
        future: Future[Any] = Future()
        self._jobs.append(lambda: self._ask(to, question, future))
        self._woken.set()
        return future

    def ask_later(self, to: str, question: object, then: Callable[[Any], None]) -> Later:
        """For the thread of the machines (`do`)."""
        later = Later(then)
        self._ask(to, question, later)
        return later

    # -- calls

    def _ask(self, to: str, question: Any, future: Future[Any] | Later) -> None:
        name: object
        if isinstance(question, Submit):
            name = question.tx_id
        else:
            name = question.number or next(self._numbers)
            question = question._replace(number=name)
        self._open[name] = (to, question, future)
        self._post(to, CALLER, question)
        self._after(AGAIN_MS, lambda: self._again(name))

    def _again(self, name: object) -> None:
        known = self._open.get(name)
        if known is None:
            return
        to, question, future = known
        if future.cancelled():
            del self._open[name]
            return
        if isinstance(question, Submit):
            question = question._replace(again=True)
        self._post(to, CALLER, question)
        self._after(AGAIN_MS, lambda: self._again(name))

    def _answered(self, answer: Any) -> None:
        known = self._open.pop(answer.tx_id if isinstance(answer, Outcome) else answer.number, None)
        if known is not None and known[2].set_running_or_notify_cancel():
            known[2].set_result(answer)

    # -- the loop

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except BaseException as error:
            self.failure = error
            for _, _, future in self._open.values():
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            while self._jobs:
                self._jobs.popleft()
            raise

    def _turn(self) -> None:
        while self._jobs:
            self._jobs.popleft()()
        now = now_ms()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        while self._messages:
            self._deliver(*self._messages.popleft())
        for process in self.processes.values():
            self._sync(process)
        if self._messages or self._jobs:
            return
        due_ms = self._timers[0][0] - now_ms() if self._timers else 100
        if due_ms > 0:
            self._woken.wait(due_ms / 1000)
        self._woken.clear()

    def _after(self, delay_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (now_ms() + delay_ms, next(self._order), action))

    def _post(self, to: str, sender: str, message: object) -> None:
        if self.message_bytes_max is not None and type(message) in _SENT and _process(to) != _process(sender):
            size = len(wire.encode(message))
            assert size <= self.message_bytes_max, f"a {type(message).__name__} from {sender} to {to} of {size} bytes"
        self._messages.append((to, sender, message))

    def _deliver(self, to: str, sender: str, message: object) -> None:
        if to == CALLER:
            self._answered(message)
        elif to == zk.ZOOKEEPER:
            self.zookeeper.request(sender, message)
        elif to == LOGS:
            self._post(sender, LOGS, self._log_answer(message))
        else:
            process = self.processes.get(to)
            if process is not None and process.machine is not None:
                self._call(process, lambda machine: machine.receive(sender, message, now_ms()))

    def _log_answer(self, message: Any) -> LogRecords | NoLog:
        assert isinstance(message, Seal | ReadLog)
        if message.log not in self.logs:
            return NoLog(message.request, message.log)
        if isinstance(message, Seal):
            self._sealed.add(message.log)
        return LogRecords(message.request, message.log, 1, tuple(self.logs[message.log]), message.log in self._sealed)

    # -- machines

    def _begin(self, process: _Process) -> None:
        process.incarnation += 1
        process.machine = machine = process.factory(PlainHost(process.name))
        process.log, process.durable_lsn, process.waiting = [], 0, []
        life = f"{process.name}/{process.incarnation}"
        if process.with_log:
            self.logs[life] = process.log
        incarnation = process.incarnation
        self._carry_out(process, machine.start(now_ms(), Recovered((), log=life), incarnation))

    def _call(self, process: _Process, call: Callable[[Machine], Outputs]) -> None:
        assert process.machine is not None
        try:
            out = call(process.machine)
        except LifeOver:
            self.zookeeper.expire(process.name)
            self._begin(process)
            return
        self._carry_out(process, out)

    def _carry_out(self, process: _Process, out: Outputs) -> None:
        process.log.extend(out.persist)
        machine, incarnation = process.machine, process.incarnation
        for at_ms, token in out.timers:

            def fire(token: object = token) -> None:
                if process.machine is machine and process.incarnation == incarnation:
                    self._call(process, lambda each: each.timer(token, now_ms()))

            heapq.heappush(self._timers, (at_ms, next(self._order), fire))
        for item in out.send:
            if not isinstance(item, WhenDurable):
                destination, message = item
                lsn = out.after
            else:
                lsn, destination, message = item
            if lsn <= process.durable_lsn:
                self._post(destination, process.name, message)
            else:
                process.waiting.append(WhenDurable(lsn, destination, message))

    def _sync(self, process: _Process) -> None:
        """Memory is durable at once, but not before everything that has arrived was handled."""
        if process.machine is None or len(process.log) == process.durable_lsn:
            return
        if f"{process.name}/{process.incarnation}" in self._sealed:
            self.zookeeper.expire(process.name)
            self._begin(process)
            return
        process.durable_lsn = lsn = len(process.log)
        waiting, process.waiting = process.waiting, []
        for each in waiting:
            self._post(each.destination, process.name, each.message)
        self._call(process, lambda machine: machine.persisted(lsn, now_ms()))
