"""Many LTMs in virtual time: the protocol machines as they are, every LTM on a core of its own that others do not have.

What is real: machines, messages, the waves in which transactions go to their coordinator, which turn handles what. What
is computed: how long each step takes. First two LTMs run, and the processor time of every step is measured by the kind
of message and its rows: decoding it, the machine, encoding what it sends; encoding a flush of the log. From these come
lines (so much for a message, so much for each of its rows), and the clock goes by the lines: the same for every number
of LTMs, wherever they are in the caches of the machine that simulates them. A sync takes as long as it does on this
machine; a message between machines takes `NETWORK_US`. The leader, which issues timestamps, has a machine of its own.

What is left out: leases, membership and checkpoints, which are the same however many transactions there are; timers,
because nothing is lost here; and the client library, whose processes are elsewhere.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from .errors import Violation
from .partitions import EVENT_SPAN, Partitions
from .workload import category_name

if TYPE_CHECKING:
    from viewtide.coordinator.two_phase.messages import Submit
    from viewtide.ltm.machine import Outputs
    from viewtide.ltm.tables import Tables

#: One way between two machines of a data centre.
NETWORK_US = 100.0
#: A client between an answer and its next request.
CLIENT_US = 100.0
#: What the gateway of an LTM takes for a transaction, request and answer: of a served node's turn, what is not commit.
GATEWAY_US = 50.0
CLIENTS_PER_LTM = 16
CATEGORIES, PER_CATEGORY = 10, 20
ORACLE, CLIENT = "oracle", "client"
FLUSH = "flush"


@dataclass(frozen=True, slots=True)
class Line:
    """Microseconds: of the step itself, and of each row."""

    step_us: float
    row_us: float

    def at(self, rows: int) -> float:
        return self.step_us + self.row_us * rows


Costs = dict[str, Line]


@dataclass(slots=True)
class Simulated:
    """Of one run, in virtual time."""

    ltms: int
    transactions: int
    seconds: float
    latencies_us: list[float]
    #: The share of the time that the leader was busy.
    leader_busy: float = 0.0
    samples: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))


def schema() -> Tables:
    import viewtide
    from viewtide.ltm.tables import Tables
    from viewtide.ltm.versions import Horizon

    with viewtide.connect("memory:") as db:
        db.create_table("products", {"id": int, "category": str}, key="id")
        db.create_table("events", {"id": int, "product": int, "cost": int}, key="id", indexes=["product"])
        db.create_view(
            "cost_by_category",
            "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n FROM events e JOIN products p"
            " ON e.product = p.id GROUP BY p.category",
        )
        return Tables(db._engine.ltm.tables.catalog, Horizon())


class _Ltm:
    """A process: a participant and a coordinator. `inbox` is what has not arrived yet, too."""

    def __init__(self, number: int, participant: Any, coordinator: Any, waves: Any) -> None:
        self.number = number
        self.name = f"ltm-{number}"
        self.machines = {self.name: participant, f"{self.name}.coordinator": coordinator}
        self.waves = waves
        self.inbox: list[tuple[float, int, str, str, object]] = []
        self.local: deque[tuple[str, str, object]] = deque()
        self.records: list[object] = []
        self.lsn = 0
        self.waiting: list[tuple[str, object]] = []
        self.free_us = 0.0


class Cluster:
    """`costs` None: every step takes as long as it does, and is noted."""

    def __init__(self, ltms: int, k: int, sync_us: float, costs: Costs | None, tables: Tables | None = None) -> None:
        from viewtide.changetables.plan import Contribution
        from viewtide.coordinator import registered
        from viewtide.coordinator.cluster.waves import Waves
        from viewtide.coordinator.timestamps import TimestampOracle
        from viewtide.coordinator.two_phase.coordinator import Coordinator
        from viewtide.ltm.key_range import RangeMap
        from viewtide.ltm.machine import PlainHost
        from viewtide.ltm.two_phase.participant import Participant

        assert registered.MESSAGES  # known to the wire
        self.k, self.sync_us, self.costs = k, sync_us, costs
        self.tables = tables or schema()
        self.partitions = Partitions(ltms, CATEGORIES, PER_CATEGORY)
        view = self.tables.views["cost_by_category"].view.id
        refresh = self.tables.views_by_id[view].plan.refresh

        def refresh_row(item: tuple[int, bytes, Any, Any], row: Any) -> Any:
            return refresh(row, Contribution(*item[1:]))

        cuts = sorted(self.partitions.ranges(self.tables, "events", "products", "cost_by_category"))
        starts = (b"", *(start for start, _, _ in cuts))
        ranges = RangeMap(1, starts, ("ltm-0", *(f"ltm-{number}" for _, _, number in cuts)))
        self.oracle = TimestampOracle()
        self.ltms = []
        for number in range(ltms):
            name = f"ltm-{number}"
            participant = Participant(PlainHost(name), name, ORACLE, refresh_row)
            coordinator = Coordinator(PlainHost(f"{name}.coordinator"), ORACLE, self.tables, ranges)
            self.ltms.append(_Ltm(number, participant, coordinator, Waves()))
        self.leader = _Ltm(ltms, None, None, Waves())
        self.result = Simulated(ltms, 0, 0.0, [])
        self._order = count()
        self._wakes: list[tuple[float, int, _Ltm]] = []
        self._rows: dict[object, int] = {}
        self._events = [count(number * EVENT_SPAN + 1, k) for number in range(ltms)]
        self._transactions = count(1)
        self._begun: dict[object, tuple[float, int]] = {}
        self.committed: list[int] = [0] * ltms
        self.begin_us = self.end_us = 0.0
        for ltm in self.ltms:
            leaving: list[tuple[str, str, object]] = []
            for name, machine in ltm.machines.items():
                self._carry_out(ltm, name, machine.start(0, (), 1), leaving)
            for to, sender, message in leaving:
                self._leave(ltm, to, sender, message, 0.0)

    # -- the load

    def run(self, warm_up_s: float, measure_s: float) -> Simulated:
        gc.collect()
        gc.disable()  # The heap is that of all LTMs; each has a process of its own in truth.
        try:
            self._fill()
            begun_us = max(ltm.free_us for ltm in self.ltms)
            self.begin_us = begun_us + warm_up_s * 1e6
            self.end_us = self.begin_us + measure_s * 1e6
            for client in range(CLIENTS_PER_LTM * len(self.ltms)):
                self._next(begun_us + client, client % len(self.ltms))
            self._until_quiet()
        finally:
            gc.enable()
        self._check()
        self.result.seconds = measure_s
        return self.result

    def _fill(self) -> None:
        from viewtide.coordinator.transaction import ABSENT
        from viewtide.coordinator.two_phase.messages import Submit

        encode = self.tables.by_name["products"].codec.keys.encode
        for number in range(self.partitions.count):
            ids = [self.partitions.product(number, each) for each in range(self.partitions.products)]
            rows = [(each, category_name(each % self.partitions.all_categories)) for each in ids]
            intents = tuple((encode((row[0],)), (ABSENT, row, None, True)) for row in rows)
            submit = Submit((next(self._transactions), 1), False, (("products", intents),))
            self._arrives(0.0, self.ltms[number], f"ltm-{number}.coordinator", CLIENT, submit)
        self._until_quiet()

    def _next(self, at_us: float, number: int) -> None:
        """A client of an LTM submits its next transaction."""
        submit = self._submit(number)
        self._begun[submit.tx_id] = (at_us, number)
        self._arrives(at_us + NETWORK_US, self.ltms[number], CLIENT, CLIENT, submit)

    def _submit(self, number: int) -> Submit:
        from viewtide.coordinator.transaction import ABSENT
        from viewtide.coordinator.two_phase.messages import Submit

        encode = self.tables.by_name["events"].codec.keys.encode
        first = next(self._events[number])
        rows = [
            (each, self.partitions.product(number, each * 7919), each % 100) for each in range(first, first + self.k)
        ]
        intents = tuple((encode((row[0],)), (ABSENT, row, None, True)) for row in rows)
        return Submit((next(self._transactions), 1), False, (("events", intents),))

    def _answered(self, outcome: Any, at_us: float) -> None:
        if outcome.state != "committed":
            raise Violation(f"a transaction was not committed: {outcome}")
        begun = self._begun.pop(outcome.tx_id, None)
        if begun is None:
            return  # it filled the tables
        begun_us, number = begun
        self.committed[number] += 1
        if self.begin_us <= at_us < self.end_us:
            self.result.transactions += 1
            self.result.latencies_us.append(at_us - begun_us)
        if at_us < self.end_us:
            self._next(at_us + CLIENT_US, number)

    def _check(self) -> None:
        """The view has what was committed."""
        view = self.tables.views["cost_by_category"].view.id
        output = self.tables.views_by_id[view].plan.output
        shown = sum(
            output(chain[1])[2]  # type: ignore[misc]
            for ltm in self.ltms
            for key, chain in ltm.machines[ltm.name].cells.chains.items()
            if key[:4] == view.to_bytes(4, "big")
        )
        if shown != sum(self.committed) * self.k:
            raise Violation(f"the view counts {shown} events, committed were {sum(self.committed) * self.k}")

    # -- virtual time

    def _arrives(self, at_us: float, ltm: _Ltm, to: str, sender: str, message: object) -> None:
        heappush(ltm.inbox, (at_us, next(self._order), to, sender, message))
        heappush(self._wakes, (max(at_us, ltm.free_us), next(self._order), ltm))

    def _until_quiet(self) -> None:
        while self._wakes:
            at_us, _, ltm = heappop(self._wakes)
            if at_us >= ltm.free_us:
                self._turn(ltm, at_us)
            elif ltm.inbox or ltm.local:
                heappush(self._wakes, (ltm.free_us, next(self._order), ltm))

    def _turn(self, ltm: _Ltm, now_us: float) -> None:
        """As a process does it: all that has arrived, one sync, then everything leaves."""
        from viewtide.coordinator.two_phase.messages import Wave

        spent_us = 0.0
        leaving: list[tuple[str, str, object]] = []
        now_ms = int(now_us / 1000)
        while ltm.inbox and ltm.inbox[0][0] <= now_us:
            _, _, to, sender, message = heappop(ltm.inbox)
            if to == CLIENT:
                spent_us += GATEWAY_US
                ltm.waves.add(CLIENT, message)
            else:
                spent_us += self._step(ltm, to, sender, message, now_ms, leaving)
        submits = ltm.waves.release(now_ms)
        if submits:
            ltm.local.append((f"{ltm.name}.coordinator", CLIENT, Wave(submits)))
        while ltm.local:
            spent_us += self._step(ltm, *ltm.local.popleft(), now_ms, leaving)
        if ltm.records:
            spent_us += self._flush(ltm, now_ms, leaving) + self.sync_us
        ltm.free_us = end_us = now_us + spent_us
        if ltm is self.leader and self.begin_us <= now_us < self.end_us:
            self.result.leader_busy += spent_us / (self.end_us - self.begin_us)
        for to, sender, message in leaving:
            self._leave(ltm, to, sender, message, end_us)
        if ltm.local:
            heappush(self._wakes, (end_us, next(self._order), ltm))
        elif len(ltm.waves):
            heappush(self._wakes, (max(end_us, ltm.waves.due_ms * 1000.0), next(self._order), ltm))

    def _leave(self, ltm: _Ltm, to: str, sender: str, message: object, end_us: float) -> None:
        if to == CLIENT:
            for outcome in getattr(message, "outcomes", (message,)):
                ltm.waves.answered(outcome.tx_id, int(end_us / 1000))
                self._answered(outcome, end_us + NETWORK_US)
            return
        target = self.leader if to == ORACLE else self.ltms[int(to.partition(".")[0].removeprefix("ltm-"))]
        self._arrives(end_us + NETWORK_US, target, to, sender, message)

    # -- steps

    def _step(
        self, ltm: _Ltm, to: str, sender: str, message: Any, now_ms: int, leaving: list[tuple[str, str, object]]
    ) -> float:
        """One message is handled; returns what that took."""
        from viewtide.coordinator.cluster.addressed import Addressed
        from viewtide.ltm.wire import decode

        rows = self._rows_of(message)
        remote = isinstance(message, bytes)
        began = time.thread_time_ns()
        if remote:
            addressed = decode(message)
            assert isinstance(addressed, Addressed)
            message = addressed.message
        if to == ORACLE:
            self._draw(ltm, sender, message, now_ms, leaving)
        else:
            self._carry_out(ltm, to, ltm.machines[to].receive(sender, message, now_ms), leaving)
        took_us = (time.thread_time_ns() - began) / 1000
        kind = type(message).__name__ + (", from afar" if remote else "")
        rows = rows if rows is not None else self._rows_of(message) or 0
        return self._cost(kind, rows, took_us)

    def _cost(self, kind: str, rows: int, took_us: float) -> float:
        if self.costs is None:
            self.result.samples[kind].append((rows, took_us))
            return took_us
        line = self.costs.get(kind)
        return took_us if line is None else line.at(rows)

    def _rows_of(self, message: Any) -> int | None:
        """The rows that a message is about; of one that only names an attempt, those of the attempt."""
        if isinstance(message, bytes):
            return None
        if hasattr(message, "submits"):
            return sum(len(intents) for _, submit in message.submits for _, intents in submit.writes)
        attempt = getattr(message, "attempt", None)
        rows = sum(len(getattr(message, name, ())) for name in ("writes", "keys", "rows", "refreshes"))
        if attempt is None:
            return rows
        if rows > self._rows.get(attempt, 0):
            self._rows[attempt] = rows
        return rows or self._rows.get(attempt, 0)

    def _draw(self, ltm: _Ltm, sender: str, message: Any, now_ms: int, leaving: list[tuple[str, str, object]]) -> None:
        from viewtide.coordinator.timestamps import STEP
        from viewtide.ltm.two_phase.messages import Timestamps

        first = self.oracle.draw(now_ms)
        self.oracle.seen(first + (message.wanted - 1) * STEP)
        self._send(ltm, ORACLE, sender, Timestamps(message.number, first, message.wanted, 1), leaving)

    def _carry_out(self, ltm: _Ltm, name: str, out: Outputs, leaving: list[tuple[str, str, object]]) -> None:
        from viewtide.ltm.cluster.hosted import Logged

        if out.persist:
            ltm.records += [Logged(ltm.name, record) for record in out.persist]
        for each in out.send:
            if len(each) == 3:
                ltm.waiting.append(each[1:])  # type: ignore[arg-type]
            else:
                self._send(ltm, name, *each, leaving)  # type: ignore[arg-type]

    def _send(self, ltm: _Ltm, sender: str, to: str, message: object, leaving: list[tuple[str, str, object]]) -> None:
        from viewtide.coordinator.cluster.addressed import Addressed
        from viewtide.ltm.wire import encode

        if to == CLIENT:
            leaving.append((to, sender, message))
        elif to.partition(".")[0] == ltm.name:
            ltm.local.append((to, sender, message))
        else:
            leaving.append((to, sender, encode(Addressed(to, sender, message))))

    def _flush(self, ltm: _Ltm, now_ms: int, leaving: list[tuple[str, str, object]]) -> float:
        from viewtide.coordinator.cluster.log_writers import FLUSH_BYTES_MAX
        from viewtide.ltm.cluster.flushes import encode_flush

        began = time.thread_time_ns()
        records, ltm.records = ltm.records, []
        encode_flush(ltm.lsn + 1, records, FLUSH_BYTES_MAX)
        ltm.lsn += len(records)
        waiting, ltm.waiting = ltm.waiting, []
        self._carry_out(ltm, ltm.name, ltm.machines[ltm.name].persisted(ltm.lsn, now_ms), leaving)
        for to, message in waiting:
            self._send(ltm, ltm.name, to, message, leaving)
        return self._cost(FLUSH, len(records), (time.thread_time_ns() - began) / 1000)


def lines_of(samples: dict[str, list[tuple[int, float]]]) -> Costs:
    return {kind: _line(some) for kind, some in samples.items()}


def _line(samples: list[tuple[int, float]]) -> Line:
    """Least squares, without the slowest of a hundred: somebody else was at work."""
    kept = sorted(samples, key=lambda each: each[1])[: max(1, len(samples) * 99 // 100)]
    mean_rows = sum(rows for rows, _ in kept) / len(kept)
    mean_us = sum(us for _, us in kept) / len(kept)
    spread = sum((rows - mean_rows) ** 2 for rows, _ in kept)
    slope = sum((rows - mean_rows) * (us - mean_us) for rows, us in kept) / spread if spread else 0.0
    slope = max(slope, 0.0)
    return Line(max(mean_us - slope * mean_rows, 0.0), slope)


def calibrate(ltms: int, k: int, sync_us: float, seconds: float) -> Costs:
    """The lines of this machine: with one LTM, of messages that stay; with two, of those that come from afar, too."""
    return lines_of(Cluster(ltms, k, sync_us, None).run(0.0, seconds).samples)


def simulate(numbers: tuple[int, ...], k: int, sync_us: float, seconds: float) -> Iterator[Simulated]:
    """The lines with two LTMs count for more, too: one message is as another."""
    costs = {1: calibrate(1, k, sync_us, seconds), 2: calibrate(2, k, sync_us, seconds)}
    tables = schema()
    for ltms in numbers:
        yield Cluster(ltms, k, sync_us, costs[min(ltms, 2)], tables).run(seconds / 4, seconds)
