"""`python -m bench machines`: the protocol machines alone, without disk, network or store.

One coordinator and two LTMs in one thread: events on the first, products and the join-aggregate view on the second, so
that every transaction has two participants and takes two phases. Messages go from machine to machine in rounds, as a
server drains what has arrived; logs are durable as soon as a round is over. Processor time counts, of one core. In the
end the view must be what the events make it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import machine
from .errors import Violation

if TYPE_CHECKING:
    from viewtide.ltm.machine import Outputs

SUMMARY = "transactions per second of the protocol machines alone, and where the time goes"

PRODUCTS = 1_000
CATEGORIES = 20
#: Transactions under way at a time.
IN_FLIGHT = 64
RUNS = 3
TRANSACTIONS = {1: 20_000, 10: 6_000}
QUICK_SHARE = 4

#: What is wanted, by k.
TARGETS = {1: 12_000, 10: 4_000}

FIRST, SECOND, COORDINATOR, ORACLE, CLIENT = "ltm-1", "ltm-2", "coordinator", "oracle", "client"


@dataclass(frozen=True, slots=True)
class Row:
    """`shares`: of the machines' time, by machine and message."""

    k: int
    tx_per_s: float
    target: int
    messages_per_tx: float
    records_per_tx: float
    shares: dict[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--k", default="1,10", help="rows per transaction, separated by commas (default 1,10)")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"the median of so many runs counts (default {RUNS})")


class Bus:
    """The machines and what is between them."""

    def __init__(self) -> None:
        import viewtide
        from viewtide.changetables.plan import Contribution
        from viewtide.coordinator.timestamps import TimestampOracle
        from viewtide.coordinator.two_phase.coordinator import Coordinator
        from viewtide.ltm.key_range import RangeMap
        from viewtide.ltm.machine import PlainHost
        from viewtide.ltm.tables import Tables
        from viewtide.ltm.two_phase.participant import Participant
        from viewtide.ltm.versions import Horizon

        with viewtide.connect("memory:") as db:
            db.create_table("products", {"id": int, "category": str}, key="id")
            db.create_table("events", {"id": int, "product": int, "cost": int}, key="id")
            db.create_view(
                "cost_by_category",
                "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n FROM events e JOIN products p"
                " ON e.product = p.id GROUP BY p.category",
            )
            catalog = db._engine.ltm.tables.catalog
        self.tables = tables = Tables(catalog, Horizon())
        events, view = tables.by_name["events"].table.id, tables.views["cost_by_category"].view.id
        starts, logs = [b""], [SECOND]
        for table_id in sorted(tables.versions):
            starts.append(table_id.to_bytes(4, "big"))
            logs.append(FIRST if table_id == events else SECOND)
        ranges = RangeMap(1, tuple(starts), tuple(logs))
        refresh = tables.views_by_id[view].plan.refresh

        def refresh_row(item: tuple[int, bytes, Any, Any], row: Any) -> Any:
            return refresh(row, Contribution(*item[1:]))

        self.oracle = TimestampOracle()
        self.participants = {name: Participant(PlainHost(name), name, ORACLE, refresh_row) for name in (FIRST, SECOND)}
        self.coordinator = Coordinator(PlainHost(COORDINATOR), ORACLE, tables, ranges)
        self.machines: dict[str, Any] = {**self.participants, COORDINATOR: self.coordinator}
        self.lsns = dict.fromkeys(self.participants, 0)
        self.waiting: dict[str, list[Any]] = {name: [] for name in self.machines}
        self.messages: list[tuple[str, str, Any]] = []
        self.outcomes: list[Any] = []
        self.messages_count = self.records_count = 0
        #: With a clock, the time that each machine takes by message is added up.
        self.spent: Counter[str] | None = None
        for name in self.machines:
            self.carry_out(name, self.machines[name].start(0, (), 1))

    def carry_out(self, name: str, out: Outputs) -> None:
        if out.persist:
            self.records_count += len(out.persist)
            self.lsns[name] += len(out.persist)
        for each in out.send:
            if len(each) == 3:
                self.waiting[name].append(each)
            else:
                self.messages.append((each[0], name, each[1]))

    def run_until_quiet(self, done: Callable[[], bool]) -> None:
        from viewtide.coordinator.timestamps import STEP
        from viewtide.ltm.two_phase.messages import Timestamps

        while self.messages and not done():
            messages, self.messages = self.messages, []
            self.messages_count += len(messages)
            for destination, sender, message in messages:
                if destination == CLIENT:
                    self.outcomes.append(message)
                elif destination == ORACLE:
                    first = self.oracle.draw(1_000)
                    self.oracle.seen(first + (message.wanted - 1) * STEP)
                    self.messages.append((sender, ORACLE, Timestamps(message.number, first, message.wanted, 1)))
                elif self.spent is None:
                    self.carry_out(destination, self.machines[destination].receive(sender, message, 0))
                else:
                    began = time.perf_counter_ns()
                    out = self.machines[destination].receive(sender, message, 0)
                    kind = "coordinator" if destination == COORDINATOR else "participant"
                    self.spent[f"{kind}: {type(message).__name__}"] += time.perf_counter_ns() - began
                    self.carry_out(destination, out)
            for name, participant in self.participants.items():
                waiting, self.waiting[name] = self.waiting[name], []
                if waiting:
                    self.carry_out(name, participant.persisted(self.lsns[name], 0))
                    self.messages += [(each[1], name, each[2]) for each in waiting]


def _submits(bus: Bus, k: int, count: int, first_id: int) -> Iterable[Any]:
    from viewtide.coordinator.transaction import ABSENT
    from viewtide.coordinator.two_phase.messages import Submit

    encode = bus.tables.by_name["events"].codec.keys.encode
    for number in range(count):
        ids = range(first_id + number * k, first_id + (number + 1) * k)
        rows = [(each, each * 7919 % PRODUCTS, each % 100) for each in ids]
        intents = tuple((encode((row[0],)), (ABSENT, row, None, True)) for row in rows)
        yield Submit((first_id + number, 1), False, (("events", intents),))


def _run(bus: Bus, submits: list[Any]) -> float:
    """Keep so many under way; returns the seconds of processor time that it took."""
    began = time.process_time()
    waiting = iter(submits)
    answered = 0
    while answered < len(submits):
        free = IN_FLIGHT - len(bus.coordinator.work)
        for submit in islice(waiting, free):
            bus.messages.append((COORDINATOR, CLIENT, submit))
        bus.run_until_quiet(lambda: len(bus.outcomes) >= IN_FLIGHT // 2)
        for outcome in bus.outcomes:
            if outcome.state != "committed":
                raise Violation(f"a transaction was not committed: {outcome}")
        answered += len(bus.outcomes)
        bus.outcomes.clear()
    bus.run_until_quiet(lambda: False)
    return time.process_time() - began


def _fill(bus: Bus) -> None:
    from viewtide.coordinator.transaction import ABSENT
    from viewtide.coordinator.two_phase.messages import Submit

    encode = bus.tables.by_name["products"].codec.keys.encode
    intents = tuple(
        (encode((number,)), (ABSENT, (number, f"category {number % CATEGORIES}"), None, True))
        for number in range(PRODUCTS)
    )
    bus.messages.append((COORDINATOR, CLIENT, Submit((1, 1), False, (("products", intents),))))
    bus.run_until_quiet(lambda: False)
    bus.outcomes.clear()


def _check(bus: Bus, count: int, first_id: int) -> None:
    """The view is the sum of all events."""
    view = bus.tables.views["cost_by_category"].view.id
    rows = [
        chain[1] for key, chain in bus.participants[SECOND].cells.chains.items() if key[:4] == view.to_bytes(4, "big")
    ]
    total = sum(bus.tables.views_by_id[view].plan.output(row)[1] for row in rows)
    wanted = sum(each % 100 for each in range(first_id, first_id + count))
    if total != wanted:
        raise Violation(f"the view says {total}, the events {wanted}")


def measure(k: int, runs: int, transactions: int) -> Row:
    rates, shares = [], {}
    messages = records = 0.0
    for run in range(runs + 1):
        bus = Bus()
        _fill(bus)
        if run == runs:
            bus.spent = Counter()
        bus.messages_count = bus.records_count = 0
        submits = list(_submits(bus, k, transactions, 10))
        seconds = _run(bus, submits)
        _check(bus, transactions * k, 10)
        if bus.spent is None:
            rates.append(transactions / seconds)
            messages, records = bus.messages_count / transactions, bus.records_count / transactions
        else:
            whole = sum(bus.spent.values())
            shares = {what: round(spent / whole, 3) for what, spent in bus.spent.most_common()}
    return Row(k, round(statistics.median(rates), 1), TARGETS.get(k, 0), messages, records, shares)


def run(options: argparse.Namespace) -> dict[str, object]:
    rows = []
    for k in (int(each) for each in options.k.split(",")):
        transactions = TRANSACTIONS.get(k, TRANSACTIONS[10])
        rows.append(measure(k, options.runs, transactions // QUICK_SHARE if options.quick else transactions))
    print(f"{'k':>3} {'tx/s':>8} {'wanted':>8} {'messages/tx':>12} {'records/tx':>11}")
    for row in rows:
        per_tx = f"{row.messages_per_tx:>12.1f} {row.records_per_tx:>11.1f}"
        print(f"{row.k:>3} {row.tx_per_s:>8.0f} {row.target:>8} {per_tx}")
        for what, share in row.shares.items():
            print(f"      {share:6.1%} {what}")
    ratios = {f"machines_k{row.k}_vs_target": round(row.tx_per_s / row.target, 3) for row in rows if row.target}
    return {"machine": machine.machine_facts(Path.cwd()), "rows": [asdict(row) for row in rows], "ratios": ratios}
