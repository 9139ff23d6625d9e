"""The process that `test_steps` lets die: a warm parent that forks one child per cycle (see `writer`).

It reads one JSON line per cycle: {"path", "mode", ...}.

    points   runs the script from where the directory is, and exits at the n-th time that a step passes a named point
    load     writes with several threads, with views of 0 ms and 20 ms, until it is killed

The script is a fixed list of transactions: what there is after n of them follows from n alone. It makes steps of
several levels and slots, steps that fail and are taken back, and batch refreshes. Every watermark that readers can see
is reported before anything else happens.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from typing import cast

import viewtide as vt
from viewtide.coordinator import batch, refresher
from viewtide.coordinator.embedded import Engine
from viewtide.coordinator.refresher import Refresher
from viewtide.coordinator.turns import Turns
from viewtide.ltm.tables import ViewRows

from .writer import report

TRANSACTIONS = 14
GROUPS = 5
EXIT_AT_POINT = 77
CACHE_ROWS = 100

LEAST = "SELECT g, MIN(v) AS lo, MAX(v) AS hi, COUNT(*) AS n, SUM(v) AS s FROM e GROUP BY g"
OUTER = "SELECT p.id, p.n, e.v FROM p LEFT JOIN e ON e.g = p.id AND e.v > 2"
#: The views that one script refreshes; each has a synchronous twin.
VIEWS = {
    "least": LEAST,
    "above": "SELECT lo, COUNT(*) AS c FROM least GROUP BY lo",
    # It cannot be computed while a group has 0 as its minimum: then the step fails after lower levels are written.
    "risky": "SELECT lo, 9000 / (1000 * lo + COUNT(*) - 1) AS q FROM least GROUP BY lo",
    "outer": OUTER,
    "behind": LEAST,
}
TOGETHER = ("least", "above", "risky")
#: `behind` is given up when it is more than these changed rows behind, and refreshed by a batch.
BACKLOG_ROWS = 12
#: Steps that would be longer end where the log was cut.
STEP_ROWS = 15
FAILING = 7


def create(db: vt.Database) -> None:
    """Every call may be the one after which the last child died."""
    if "p" not in db.tables():
        db.create_table("p", {"id": int, "n": str}, key="id")
    if "e" not in db.tables():
        db.create_table("e", {"id": int, "g": int, "v": vt.column(int, nullable=False)}, key="id")
    for name, sql in VIEWS.items():
        if f"{name}_twin" not in db.views() and name != "risky":
            db.create_view(f"{name}_twin", sql.replace(" least ", " least_twin "))
        if name not in db.views():
            limit = BACKLOG_ROWS if name == "behind" else 0
            db.create_view(name, sql, refresh="manual", backlog_rows=limit)


def transact(db: vt.Database, number: int) -> vt.Token:
    """Transaction n: three new rows, two that change, one that goes, one that moves to another group. A row of p says
    which one it was, so that a child knows where to go on."""
    with db.transaction() as tx:
        tx.upsert("p", {"id": number % GROUPS, "n": f"p{number}"})
        tx.upsert("p", {"id": -1, "n": str(number)})
        ids = range(10 * number, 10 * number + 3)
        tx.insert("e", [{"id": id_, "g": id_ % GROUPS, "v": 1 + id_ % 7} for id_ in ids])
        for id_ in (10 * (number - 1), 10 * (number - 2) + 1):
            tx.update("e", id_, {"v": 3 + number % 4})
        tx.delete("e", 10 * (number - 3) + 2)
        tx.update("e", 10 * (number - 4), {"g": number % GROUPS})
        if number == FAILING:
            tx.insert("e", {"id": -1, "g": 0, "v": 0})
        elif number == FAILING + 1:
            tx.delete("e", -1)
    return tx.token


def done_count(db: vt.Database) -> int:
    """How many transactions of the script the directory has."""
    with db.snapshot() as snapshot:
        row = snapshot.get("p", -1)
    return 0 if row is None else int(cast(str, row["n"]))


def contents(db: vt.Database, name: str) -> list[tuple[object, ...]]:
    return sorted((tuple(row.values()) for row in db.view(name).rows()), key=repr)


def await_backlog(db: vt.Database) -> None:
    """Let the refresher find that `behind` is too far behind."""
    pause = threading.Event()
    for _ in range(2_000):
        if db._node.refresher.status("behind").state == "needs batch refresh":
            return
        pause.wait(0.005)
    raise AssertionError("the backlog was not noticed")


def go_on(db: vt.Database, last: int = TRANSACTIONS) -> None:
    """The rest of the script, with refreshes."""
    for number in range(done_count(db) + 1, last + 1):
        token = transact(db, number)
        report("committed", number, token.commit_ts)
        if number == FAILING:
            try:
                db.view("least").refresh()
            except vt.StaleRead as error:
                report("failed", error)
            else:
                raise AssertionError("the step should have failed")
        elif number % 2:
            db.view("least").refresh()
        if number % 3 == 0:
            db.view("outer").refresh()
        if number % 7 == 0:
            await_backlog(db)
            db.view("behind").refresh()
    for name in ("least", "outer", "behind"):
        db.view(name).refresh()


# --- a child that dies at a point ---


def run_points(path: str, point: str, occurrence: int) -> None:
    """Dies at the n-th `point`; 0: never, and then says how often it passed each."""
    passed: Counter[str] = Counter()
    refresher.LOOK_MS = 20.0
    refresher.STEP_ROWS_MAX = STEP_ROWS
    start = Refresher.start

    def on_point(driven: Refresher, name: str) -> None:
        passed[name] += 1
        if name == "after publication":
            for group in driven._groups.values():
                for view in group.names:
                    report("mark", view, group.watermark)
        if name == point and passed[name] == occurrence:
            os._exit(EXIT_AT_POINT)

    nodes: dict[int, Refresher] = {}

    def watched_start(driven: Refresher) -> None:
        nodes[id(driven._engine)] = driven
        driven.on_point = lambda name: on_point(driven, name)
        start(driven)

    Refresher.start = watched_start  # type: ignore[method-assign]
    watch_batches(lambda engine, name: on_point(nodes[id(engine)], name))
    db = vt.connect(path, cache_rows=CACHE_ROWS, view_managers=2)
    create(db)
    go_on(db)
    report("passed", json.dumps(passed))
    os._exit(0)


def watch_batches(on_point: Callable[[Engine, str], None]) -> None:
    """A batch refresh has points too: when a view was emptied, and when it was filled again. At both a checkpoint may
    just have been written."""
    clear, fill = batch._clear, batch.fill

    def checkpoint(engine: Engine, turns: Turns, point: str) -> None:
        on_point(engine, point)
        with turns.let_go():
            engine.checkpoint()
        on_point(engine, f"{point} and stored")

    def watched_clear(engine: Engine, view: ViewRows, w1: int, turns: Turns) -> None:
        clear(engine, view, w1, turns)
        checkpoint(engine, turns, "batch cleared")

    def watched_fill(engine: Engine, view: ViewRows, at: int, turns: Turns, evaluator: str | None) -> int:
        rows_count = fill(engine, view, at, turns, evaluator)
        if turns._lock.owned and engine.ltm.tables.views[view.view.name].view.ready_ts:
            checkpoint(engine, turns, "batch filled")
        return rows_count

    batch._clear, batch.fill = watched_clear, watched_fill


# --- a child that is killed ---

WORKERS = 2
COUNTERS = 20
COUNTED = {
    "counted_0": ("SELECT SUM(n) AS s, COUNT(*) AS c FROM counters", "0ms"),
    "counted_20": ("SELECT worker, SUM(n) AS s, MAX(n) AS hi FROM counters GROUP BY worker", "20ms"),
    "joined_0": (
        "SELECT c.worker, COUNT(j.number) AS j FROM counters c LEFT JOIN journal j"
        " ON j.worker = c.worker AND j.counter = c.counter GROUP BY c.worker",
        "0ms",
    ),
}


EXTRA = "SELECT hi, COUNT(*) AS n, MIN(worker) AS lo FROM counted_20 GROUP BY hi"


def set_up_load(db: vt.Database) -> None:
    if "counters" not in db.tables():
        db.create_table("counters", dict.fromkeys(("worker", "counter", "n"), int), key=("worker", "counter"))
    if "journal" not in db.tables():
        columns = dict.fromkeys(("worker", "number", "counter"), int)
        db.create_table("journal", columns, key=("worker", "number"))
    for name, (sql, refresh) in COUNTED.items():
        if name not in db.views():
            db.create_view(name, sql, refresh=refresh)
    with db.transaction() as tx:
        for worker in range(WORKERS):
            tx.upsert("counters", [{"worker": worker, "counter": n} for n in range(COUNTERS)])


def check_load(db: vt.Database, acknowledged: list[int], marks: dict[str, int]) -> list[int]:
    """Every change of every acknowledged transaction counts once, in the tables and in each view. Returns the last
    transaction of each worker: at most one more than it was told."""
    for name, mark in marks.items():
        found = db.view(name).rows().watermark
        assert found is not None and found >= mark, f"the watermark of {name} went back from {mark} to {found}"
    last = []
    with db.snapshot() as snapshot:
        journal = Counter(cast(int, row["worker"]) for row in snapshot.scan("journal"))
    for worker, number in enumerate(acknowledged):
        found_count = journal[worker]
        assert found_count in (number, number + 1), f"worker {worker}: {number} acknowledged, {found_count} there"
        last.append(journal[worker])
    total = db.view("counted_0").rows(latest=True)[0]
    assert (total["s"] or 0, total["c"]) == (sum(last), WORKERS * COUNTERS), (total, last)
    for row in db.view("counted_20").rows(latest=True):
        worker = cast(int, row["worker"])
        assert (row["s"] or 0) == last[worker], (row, last)
    for row in db.view("joined_0").rows(latest=True):
        worker = cast(int, row["worker"])
        # A counter that nothing was noted for is a row too, with no journal entry that counts.
        assert row["j"] == last[worker], (row, last)
    if "extra" in db.views():
        highest = Counter(row["hi"] for row in db.view("counted_20").rows())
        assert sum(cast(int, row["n"]) for row in db.view("extra").rows(latest=True)) == sum(highest.values())
        db.drop_view("extra")
    return last


def work(db: vt.Database, worker: int, number: int) -> None:
    try:
        while True:
            number += 1
            counter = number * 7 % COUNTERS
            with db.transaction() as tx:
                row = tx.get("counters", (worker, counter))
                assert row is not None
                tx.update("counters", (worker, counter), {"n": cast(int, row["n"] or 0) + 1})
                tx.insert("journal", {"worker": worker, "number": number, "counter": counter})
            report("ack", worker, number)
    except BaseException:
        report("broken", traceback.format_exc())
        os._exit(1)


def run_load(path: str, acknowledged: list[int], marks: dict[str, int], view_managers: int, *, changes: bool) -> None:
    report("opening")
    db = vt.connect(path, cache_rows=800, view_managers=view_managers)
    set_up_load(db)
    last = check_load(db, acknowledged, marks)
    report("recovered", json.dumps(last))
    for worker, number in enumerate(last):
        threading.Thread(target=work, args=(db, worker, number), daemon=True).start()
    for mode in itertools.cycle(("sync", "manual", "20ms", "0ms", "sync", "0ms", "manual", "0ms")):
        for name in COUNTED:
            report("mark", name, db.view(name).rows().watermark)
        if changes:
            # Views join a group that is refreshed all the time, leave it, and change their mode.
            report("changing")
            db.create_view("extra", EXTRA, refresh="20ms")
            db.view("joined_0").set_refresh(mode)
            db.drop_view("extra")


def run(cycle: dict[str, object]) -> None:
    if cycle["mode"] == "points":
        run_points(str(cycle["path"]), str(cycle["point"]), cast(int, cycle["occurrence"]))
    else:
        run_load(
            str(cycle["path"]),
            cast("list[int]", cycle["acknowledged"]),
            cast("dict[str, int]", cycle["marks"]),
            cast(int, cycle["view_managers"]),
            changes=bool(cycle["changes"]),
        )


def main() -> None:
    for line in sys.stdin:
        cycle = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                run(cycle)
            except BaseException:
                report("broken", traceback.format_exc())
            os._exit(1)
        report("pid", child)
        _, status = os.waitpid(child, 0)
        report("ended", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
