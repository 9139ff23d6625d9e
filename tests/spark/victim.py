"""The process that `test_killed` kills while Spark works for it: `main`, with a path and a stage as its arguments.

The creation of a view, and a step of deferred views, are brought to the stage and stay there. A writer goes on all the
time, and another deferred view is refreshed meanwhile. It says on its standard output

    ack N                       the writer's transaction N was acknowledged
    ready JVM MARK              both are there; Spark's process; the watermark of the deferred views
    broken TEXT                 something else happened
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import viewtide as vt
import viewtide.spark
from viewtide.changetables.change_table import Change
from viewtide.changetables.evaluators.spark import Parts
from viewtide.changetables.plan import Contribution
from viewtide.changetables.types import Row
from viewtide.coordinator import on_spark
from viewtide.coordinator.embedded import Engine
from viewtide.coordinator.refresher import Refresher
from viewtide.ltm.driver import Ltm

READING, WRITING, BEFORE_PUBLISH = STAGES = ("reading", "writing", "before publish")
#: How long anybody here waits to be killed, or for a job to come so far.
WAIT_S = 600.0

#: A writer leaves room for Spark.
WRITE_S = 0.01

ROWS_COUNT = 3_000
#: Changed before the step, so that there is something to do.
CHANGED = range(0, 600, 2)
JOIN = (
    "SELECT e.cost, p.category, COUNT(*) AS n FROM events e JOIN products p ON e.product = p.id"
    " GROUP BY e.cost, p.category"
)
#: Two of them follow each other in a step, level by level.
VIEWS = {
    "sums": ("SELECT product, SUM(cost) AS s, COUNT(*) AS n FROM events GROUP BY product", "sync"),
    "later": (JOIN, "manual"),
    "above": ("SELECT category, SUM(n) AS n FROM later GROUP BY category", "manual"),
    "other": ("SELECT cost, COUNT(*) AS n FROM events GROUP BY cost", "manual"),
}


def event(number: int) -> dict[str, object]:
    return {"id": number, "product": number % 50, "cost": number % 101}


def prepare(path: Path) -> None:
    with vt.connect(path) as db:
        db.create_table("products", {"id": int, "category": str}, key="id")
        db.create_table("events", {"id": int, "product": int, "cost": int}, key="id", indexes=["product"])
        with db.transaction() as tx:
            tx.insert("products", [{"id": number, "category": f"c{number % 7}"} for number in range(50)])
            tx.insert("events", [event(number) for number in range(ROWS_COUNT)])
        for name, (sql, refresh) in VIEWS.items():
            db.create_view(name, sql, refresh=refresh)


def shown(db: vt.Database, name: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in db.view(name).rows()]


def report(word: str, *rest: object) -> None:
    sys.stdout.write(f"{' '.join([word, *map(str, rest)])}\n")
    sys.stdout.flush()


class Stop:
    """Where a job stays: whoever comes says so and waits for the end."""

    def __init__(self) -> None:
        self._reached = threading.Event()

    def here(self) -> None:
        self._reached.set()
        threading.Event().wait(WAIT_S)
        os._exit(3)

    def wait(self) -> None:
        if not self._reached.wait(WAIT_S):
            raise TimeoutError("a job did not come to its stage")


@dataclass(frozen=True)
class Held:
    """A part of a table that a worker of Spark begins to read, and says so into a pipe: no more of it comes."""

    part: Callable[[], Iterator[list[Change]]]
    pipe: str

    def __call__(self) -> Iterator[list[Change]]:
        for page in self.part():
            yield page
            with open(self.pipe, "w") as pipe:
                pipe.write("here\n")
            threading.Event().wait(WAIT_S)


class HeldCreation:
    """The thread that makes it creates a view, and stays at a stage of that."""

    def __init__(self, stop: Stop, stage: str, engine: Engine, pipe: Path) -> None:
        self._stop, self._stage, self._engine, self._pipe = stop, stage, engine, pipe
        self._thread, self._is_computed = threading.current_thread(), False
        self._contents, self._stored_at = on_spark.contents, on_spark.stored_at
        self._change_catalog_at = Engine.change_catalog_at
        on_spark.PARTS_CELLS_MIN = 1_000
        on_spark.contents, on_spark.stored_at = self.contents, self.stored_at
        Engine.change_catalog_at = lambda _, *args, **kwargs: self.change_catalog(*args, **kwargs)  # type: ignore[method-assign]

    def stored_at(self, ltm: Ltm, at: int, rows_count: int) -> on_spark.InParts:
        in_parts = self._stored_at(ltm, at, rows_count)
        if self._stage != READING:
            return in_parts
        os.mkfifo(self._pipe)
        threading.Thread(target=self._listen, daemon=True).start()

        def held(name: str) -> Parts | None:
            parts = in_parts(name)
            if parts is None:
                return None
            # The others are read: one task stays, and leaves room for another job.
            first, *others = parts.parts
            return Parts([Held(first, str(self._pipe)), *others], parts.rows_count)  # type: ignore[arg-type]

        return held

    def _listen(self) -> None:
        with self._pipe.open() as said:
            said.readline()
        self._stop.here()

    def contents(self, *args: object) -> Iterator[list[Contribution]]:
        for number, some in enumerate(self._contents(*args)):  # type: ignore[arg-type]
            if number == 1 and self._stage == WRITING:
                self._engine.checkpoint()  # what is in the view so far is on the disk, too
                self._stop.here()
            yield some
        self._is_computed = True

    def change_catalog(self, *args: object, **kwargs: object) -> None:
        is_last = self._is_computed and threading.current_thread() is self._thread
        if is_last and self._stage == BEFORE_PUBLISH:
            self._stop.here()
        self._change_catalog_at(self._engine, *args, **kwargs)  # type: ignore[arg-type]


def hold_step(stop: Stop, stage: str, refresher: Refresher) -> None:
    change_tables, calls = on_spark.change_tables, iter(range(100))

    def reading(name: str) -> Iterator[tuple[bytes, Row]]:
        stop.here()
        yield b"", ()

    def held(*args: object) -> list[list[Contribution]]:
        # The second call is for the view that is made from the other one, which is written already.
        if next(calls) == 1 and stage == WRITING:
            stop.here()
        if stage == READING:
            args = (*args[:3], reading, reading)
        return change_tables(*args)  # type: ignore[arg-type]

    def on_point(name: str) -> None:
        if name == "before published" and stage == BEFORE_PUBLISH:
            with refresher._turns.let_go():
                stop.here()

    on_spark.change_tables = held
    refresher.on_point = on_point


def write(db: vt.Database) -> None:
    """One new row after the other, for ever."""
    number, pause = ROWS_COUNT, threading.Event()
    while True:
        with db.transaction() as tx:
            tx.insert("events", event(number))
        number += 1
        report("ack", number)
        pause.wait(WRITE_S)


def guarded(call: Callable[..., object], *args: object) -> threading.Thread:
    def run() -> None:
        try:
            call(*args)
        except BaseException:
            report("broken", traceback.format_exc().replace("\n", " | "))
            os._exit(1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def change(db: vt.Database) -> None:
    with db.transaction() as tx:
        for number in CHANGED:
            tx.update("events", number, {"cost": 7})


def run(path: Path, stage: str) -> None:
    jvm = viewtide.spark.session("local[2]").sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    db = vt.connect(path)
    guarded(write, db)
    creation, step = Stop(), Stop()

    def create() -> None:
        HeldCreation(creation, stage, db._engine, path.parent / "pipe")
        db.create_view("made", JOIN, evaluator="spark")

    guarded(create)
    creation.wait()
    assert sorted(db.views()) == sorted(VIEWS), "it is seen before its end"
    db.view("other").refresh()
    assert db.view("other").verify().ok
    change(db)
    before, mark = shown(db, "later"), db.view("later").rows().watermark
    hold_step(step, stage, db._node.refresher)
    guarded(db.view("later").refresh, "spark")
    step.wait()
    assert shown(db, "later") == before, "what a step has written is seen before its end"
    report("ready", jvm, mark)
    threading.Event().wait(WAIT_S)


def main() -> None:
    try:
        run(Path(sys.argv[1]), sys.argv[2])
    except BaseException:
        report("broken", traceback.format_exc().replace("\n", " | "))
    os._exit(1)
