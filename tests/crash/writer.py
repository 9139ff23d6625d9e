"""The process that `test_kill` kills: a warm parent that forks one writer per cycle.

The parent has imported everything, opens nothing and has no threads, so that forking it is safe and a cycle does not
pay for the start of an interpreter. It reads one JSON line per cycle: {"path", "mode", "acknowledged"}. The writer
opens the database, checks that it holds exactly what was acknowledged, and then writes with several threads until it
is killed. It reports in lines, each in one write to the pipe: a line is there whole or not at all.

What worker w has after its transaction n follows from w and n alone, so a state is compared exactly:

    n inserts ROWS_PER_TRANSACTION rows, updates those of n - 3, deletes those of n - 5 unless 4 divides n - 5, and
    changes the category of one of the worker's products
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections import Counter
from typing import cast

import viewtide as vt
from viewtide.ltm import driver

WORKERS = 3
ROWS_PER_TRANSACTION = 4
PRODUCTS_PER_WORKER = 10
#: A checkpoint every few dozen transactions.
CACHE_ROWS = 800
LINE_BYTES_MAX = 4000

BY_CATEGORY = (
    "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n FROM events e JOIN products p ON e.product = p.id"
    " GROUP BY p.category"
)
PLAIN = "SELECT e.worker, e.cost + 1 AS cost FROM events e JOIN products p ON e.product = p.id WHERE p.category = 'c1'"
EXTRA = (
    "SELECT e.worker, p.category, AVG(e.cost) AS cost FROM products p JOIN events e ON e.product = p.id"
    " GROUP BY e.worker, p.category"
)

Event = tuple[int, int, int, int, int]


def report(*words: object) -> None:
    os.write(1, " ".join(map(str, words)).replace("\n", " | ").encode()[:LINE_BYTES_MAX] + b"\n")


# --- what each transaction does, and what there is after it ---


def product_of(worker: int, number: int) -> int:
    return worker * PRODUCTS_PER_WORKER + number % PRODUCTS_PER_WORKER


def write(tx: vt.Transaction, worker: int, number: int) -> None:
    rows = range(ROWS_PER_TRANSACTION)
    tx.insert(
        "events",
        [
            {
                "worker": worker,
                "number": number,
                "part": part,
                "product": product_of(worker, number + part),
                "cost": number,
            }
            for part in rows
        ],
    )
    updated, deleted = number - 3, number - 5
    if updated > 0:
        for part in rows:
            assert tx.update("events", (worker, updated, part), {"cost": -updated})
    if deleted > 0 and deleted % 4:
        for part in rows:
            assert tx.delete("events", (worker, deleted, part))
    assert tx.update("products", product_of(worker, number), {"category": f"c{number % 3}"})


def events_after(worker: int, number: int) -> set[Event]:
    return {
        (worker, n, part, product_of(worker, n + part), -n if n + 3 <= number else n)
        for n in range(1, number + 1)
        if n % 4 == 0 or n + 5 > number
        for part in range(ROWS_PER_TRANSACTION)
    }


def categories_after(worker: int, number: int) -> dict[int, str]:
    first = max(1, number - PRODUCTS_PER_WORKER + 1)
    return {
        **{product_of(worker, n): "none" for n in range(PRODUCTS_PER_WORKER)},
        **{product_of(worker, n): f"c{n % 3}" for n in range(first, number + 1)},
    }


# --- one writer ---


def set_up(db: vt.Database) -> None:
    """Every step may be the one after which the last writer was killed."""
    if "products" not in db.tables():
        db.create_table("products", {"id": int, "category": str}, key="id")
    if "events" not in db.tables():
        columns = dict.fromkeys(("worker", "number", "part", "product", "cost"), int)
        db.create_table("events", columns, key=("worker", "number", "part"))
    for name, sql in (("by_category", BY_CATEGORY), ("plain", PLAIN)):
        if name not in db.views():
            db.create_view(name, sql)
    with db.transaction() as tx:
        if not tx.scan("products", limit=1):
            ids = range(WORKERS * PRODUCTS_PER_WORKER)
            tx.insert("products", [{"id": id_, "category": "none"} for id_ in ids])


def check(db: vt.Database, acknowledged: list[int]) -> list[int]:
    """Every acknowledged transaction is there whole; of each worker at most one more, whole too. Returns the last."""
    with db.snapshot() as snapshot:
        events = {cast(Event, tuple(row.values())) for row in snapshot.scan("events")}
        categories = {cast(int, row["id"]): row["category"] for row in snapshot.scan("products")}
        by_category = {row["category"]: (row["cost"], row["n"]) for row in snapshot.view("by_category").rows()}
        plain = Counter(tuple(row.values()) for row in snapshot.view("plain").rows())
    last = []
    for worker, number in enumerate(acknowledged):
        mine = {event for event in events if event[0] == worker}
        shown = {id_: categories[id_] for id_ in categories if id_ // PRODUCTS_PER_WORKER == worker}
        fitting = [
            n for n in (number, number + 1) if mine == events_after(worker, n) and shown == categories_after(worker, n)
        ]
        assert fitting, f"worker {worker} was acknowledged {number}, found {sorted(mine)[-12:]} and {shown}"
        last.append(fitting[0])
    expected: dict[object, tuple[int, int]] = {}
    for event in events:
        category = categories[event[3]]
        cost, count = expected.get(category, (0, 0))
        expected[category] = (cost + event[4], count + 1)
    assert by_category == expected, f"the view has {by_category}, its tables give {expected}"
    assert plain == Counter((event[0], event[4] + 1) for event in events if categories[event[3]] == "c1")
    for name in db.views():
        assert (verified := db.view(name).verify()).ok, verified
    return last


def work(db: vt.Database, worker: int, number: int) -> None:
    try:
        while True:
            number += 1
            with db.transaction() as tx:
                write(tx, worker, number)
            report("ack", worker, number)
    except BaseException:
        report("broken", traceback.format_exc())
        os._exit(1)


def run(path: str, mode: str, acknowledged: list[int]) -> None:
    report("opening")
    if mode == "elsewhere":
        driver.ELSEWHERE_ROWS_MIN = 0
    db = vt.connect(path, cache_rows=CACHE_ROWS)
    set_up(db)
    last = check(db, acknowledged)
    report("recovered", json.dumps(last))
    if "extra" in db.views():
        db.drop_view("extra")
    for worker, number in enumerate(last):
        threading.Thread(target=work, args=(db, worker, number), daemon=True).start()
    while True:
        if mode in ("checkpoint", "elsewhere"):
            report("checkpointing")
            db._engine.checkpoint()
        elif mode == "view":
            report("building")
            db.create_view("extra", EXTRA)
            report("built")
            db.drop_view("extra")
        else:
            threading.Event().wait()


def main() -> None:
    for line in sys.stdin:
        cycle = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                run(cycle["path"], cycle["mode"], cycle["acknowledged"])
            except BaseException:
                report("broken", traceback.format_exc())
            os._exit(1)
        # The child may be quicker than this line, so the reader takes it wherever it comes.
        report("pid", child)
        _, status = os.waitpid(child, 0)
        report("ended", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
