"""The process of the demo that owns the database: writers, and readers that compare the view with a recompute.

    python -m viewtide.demo_writer DIRECTORY WRITERS

It says what happens in lines of JSON on its output. It expects to be killed at any moment: a commit is announced
after `commit` has returned and not before, so what was announced is acknowledged, and must be there for the next
process. A line, or the end, of its input ends it in good order.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

from .changetables.errors import Error, InternalError
from .database import Database, connect
from .demo_workload import (
    CATEGORIES,
    TABLES,
    VIEW_NAME,
    VIEW_SQL,
    Contents,
    Event,
    Step,
    Workload,
    by_transaction,
    first_rows,
)
from .reads import Snapshot
from .transaction import Transaction

#: Events that a comparison reads in one go; then it lets the writers work for PACE times as long as it took.
PAGE_EVENTS = 500
PACE = 3
COMPARE_EVERY_S = 0.25
#: Threads of one interpreter take turns this long. The default of 5 ms is what a writer would wait for after each sync.
TURN_S = 0.001


class Total(NamedTuple):
    """One category: what the view has stored and what a recompute gives."""

    category: str
    cost: int
    n: int
    recomputed_cost: int
    recomputed_n: int

    @property
    def equal(self) -> bool:
        return (self.cost, self.n) == (self.recomputed_cost, self.recomputed_n)


class Ready(NamedTuple):
    """The tables are filled; writing begins."""

    commit_ts: int


class Acknowledged(NamedTuple):
    """A writer's commit has returned; with it, so many of its transactions are acknowledged."""

    writer: int
    transactions: int
    latency_us: int


class Compared(NamedTuple):
    """The view and a recompute at one timestamp, while the writers go on."""

    commit_ts: int
    events: int
    totals: list[Total]


class Checked(NamedTuple):
    """Everything, row by row, while nobody writes. `present`: the transactions of each writer that are there."""

    present: list[int]
    half_there: int
    events: int
    verified: bool
    totals: list[Total]
    open_ms: float
    replayed: int


class Failed(NamedTuple):
    """The process ends because of an error."""

    reason: str


Message = Ready | Acknowledged | Compared | Checked | Failed
_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in (Ready, Acknowledged, Compared, Checked, Failed)}


def encode(message: Message) -> bytes:
    return json.dumps([type(message).__name__, *message], separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    name, *fields = json.loads(line)
    message = _KINDS[name](*fields)
    if isinstance(message, Compared | Checked):
        return message._replace(totals=[Total(*total) for total in message.totals])
    return message


class Voice:
    """The output, shared by all threads. When nobody listens any more, there is nothing left to do: `stop` is set."""

    def __init__(self, descriptor: int, stop: threading.Event) -> None:
        self._descriptor = descriptor
        self._stop = stop
        self._turn = threading.Lock()

    def say(self, message: Message) -> None:
        line = encode(message)
        with self._turn:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except BrokenPipeError:
                self._stop.set()


def write_step(tx: Transaction, step: Step) -> None:
    """One transaction of the dashboard."""
    tx.insert("events", [event._asdict() for event in step.inserted])
    if step.corrected is not None:
        event, cost = step.corrected
        _expect(tx.update("events", event, {"cost": cost}), f"event {event}")
    for event in step.deleted:
        _expect(tx.delete("events", event), f"event {event}")
    if step.moved is not None:
        product, category = step.moved
        _expect(tx.update("products", product, {"category": category}), f"product {product}")


def _expect(existed: bool, row: str) -> None:
    if not existed:
        raise InternalError(f"{row} is not there, though the transaction that wrote it was committed")


def run_writer(
    database: Database, workload: Workload, writer: int, first: int, voice: Voice, stop: threading.Event
) -> None:
    """Commit a writer's transactions from `first` on, one after the other, until told to stop."""
    sequence = first
    try:
        while not stop.is_set():
            step = workload.step(writer, sequence)
            began = time.perf_counter()
            database.run(write_step, step)
            latency_us = round((time.perf_counter() - began) * 1e6)
            sequence += 1
            voice.say(Acknowledged(writer, sequence, latency_us))
    except Exception as error:  # of whatever kind: the run is over, and the other process is told why
        voice.say(Failed(f"writer {writer}, transaction {sequence}: {type(error).__name__}: {error}"))
        stop.set()


def events_at(snapshot: Snapshot, start: int = 0) -> Iterator[list[Event]]:
    """All events from the id `start` on at the snapshot, in pages."""
    while True:
        rows = snapshot.scan("events", start=start, limit=PAGE_EVENTS)
        page = [Event(*row.values()) for row in rows]  # type: ignore[arg-type]  # a row holds objects
        if page:
            yield page
            start = page[-1].id + 1
        if len(rows) < PAGE_EVENTS:
            return


class Recompute:
    """The definition of the view, evaluated by hand over the base tables at a snapshot: independent of the engine."""

    def __init__(self, snapshot: Snapshot) -> None:
        names = {cast(int, row["id"]): cast(str, row["name"]) for row in snapshot.scan("categories")}
        self.categories = {cast(int, row["id"]): cast(int, row["category"]) for row in snapshot.scan("products")}
        self._names = {product: names[category] for product, category in self.categories.items()}
        self.costs = dict.fromkeys(CATEGORIES, 0)
        self.counts = dict.fromkeys(CATEGORIES, 0)

    def add(self, events: list[Event]) -> None:
        for event in events:
            name = self._names[event.product]
            self.costs[name] += event.cost
            self.counts[name] += 1

    @property
    def events_count(self) -> int:
        return sum(self.counts.values())

    def beside(self, stored: dict[str, tuple[int, int]]) -> list[Total]:
        return [
            Total(name, *stored.get(name, (0, 0)), self.costs[name], self.counts[name])
            for name in sorted(self.costs.keys() | stored.keys())
        ]


def stored_view(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    rows = snapshot.view(VIEW_NAME).rows()
    return {cast(str, row["category"]): (cast(int, row["cost"]), cast(int, row["n"])) for row in rows}


class Comparisons:
    """The view beside its recompute at one timestamp, again and again, in pages, so that the writers hardly notice."""

    def __init__(self, database: Database, voice: Voice, stop: threading.Event) -> None:
        self._database = database
        self._voice = voice
        self._stop = stop
        # Events are deleted in the order of their ids: below the lowest one of the last time there is none any more.
        self._lowest = 0

    def run(self) -> None:
        """Until told to stop."""
        while not self._stop.wait(COMPARE_EVERY_S):
            self._compare()

    def _compare(self) -> None:
        with self._database.snapshot() as snapshot:
            stored = stored_view(snapshot)
            recompute = Recompute(snapshot)
            lowest: int | None = None
            began = time.perf_counter()
            for page in events_at(snapshot, self._lowest):
                lowest = page[0].id if lowest is None else lowest
                recompute.add(page)
                if self._stop.wait(PACE * (time.perf_counter() - began)):
                    return
                began = time.perf_counter()
            self._lowest = lowest or 0
            self._voice.say(Compared(snapshot.token.commit_ts, recompute.events_count, recompute.beside(stored)))


def check(database: Database, workload: Workload, open_ms: float) -> Checked:
    """Every row against what the transactions that are there must have left, and the view against two recomputes:
    the one by hand and the engine's own."""
    with database.snapshot() as snapshot:
        recompute = Recompute(snapshot)
        events: list[Event] = []
        for page in events_at(snapshot):
            recompute.add(page)
            events += page
        totals = recompute.beside(stored_view(snapshot))
    contents = Contents(by_transaction(events), recompute.categories)
    present = workload.present(contents)
    half_there = len(workload.half_there(contents, present))
    verified = database.view(VIEW_NAME).verify().ok
    return Checked(present, half_there, len(events), verified, totals, open_ms, database.status().replayed)


def prepare(database: Database) -> None:
    """Tables, their first rows, and the view."""
    for table, columns in TABLES.items():
        database.create_table(table, columns, key=next(iter(columns)))
    with database.transaction() as tx:
        for table, rows in first_rows():
            tx.insert(table, rows)
    database.create_view(VIEW_NAME, VIEW_SQL, refresh="sync")


def serve(directory: Path, workload: Workload, voice: Voice, stop: threading.Event) -> None:
    """Open the database, check it if it has a history, write until told to stop, check it again."""
    began = time.perf_counter()
    with connect(directory) as database:
        open_ms = (time.perf_counter() - began) * 1000
        present = [0] * workload.writers
        if VIEW_NAME in database.views():
            found = check(database, workload, open_ms)
            present = found.present
            voice.say(found)
        else:
            prepare(database)
            with database.snapshot() as snapshot:
                voice.say(Ready(snapshot.token.commit_ts))
        threads = [
            threading.Thread(target=run_writer, args=(database, workload, writer, first, voice, stop))
            for writer, first in enumerate(present)
        ]
        for thread in threads:
            thread.start()
        try:
            Comparisons(database, voice, stop).run()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        voice.say(check(database, workload, open_ms))


def main() -> None:
    directory, writers = Path(sys.argv[1]), int(sys.argv[2])
    stop = threading.Event()
    voice = Voice(sys.stdout.fileno(), stop)
    sys.setswitchinterval(TURN_S)

    def listen() -> None:
        sys.stdin.buffer.readline()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        serve(directory, Workload(writers), voice, stop)
    except Error as error:
        voice.say(Failed(f"{type(error).__name__}: {error}"))
        sys.exit(1)


if __name__ == "__main__":
    main()
