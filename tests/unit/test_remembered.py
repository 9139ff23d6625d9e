"""Rows that a coordinator remembers are relied on only as long as they are the newest."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence

import pytest

import viewtide as vt
from viewtide.coordinator.several import SeveralEngine
from viewtide.coordinator.transaction import ABSENT, Intent
from viewtide.coordinator.two_phase import remembered
from viewtide.coordinator.two_phase.attempt import AttemptAt
from viewtide.coordinator.two_phase.look_ups import Found, Wanted
from viewtide.coordinator.two_phase.messages import FAILED, Outcome, Submit
from viewtide.coordinator.two_phase.remembered import Remembered
from viewtide.ltm.ports import Damaged
from viewtide.ltm.two_phase.messages import Ask, Prepare, Told

LTMS = 3


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:", ltms=LTMS) as opened:
        opened.create_table("products", {"id": int, "category": str, "rate": int}, key="id")
        opened.create_table("events", {"id": int, "product": int, "cost": int}, key="id")
        opened.create_view(
            "by_category",
            "SELECT p.category, SUM(e.cost / p.rate) AS cost, COUNT(*) AS n"
            " FROM events e JOIN products p ON e.product = p.id GROUP BY p.category",
        )
        with opened.transaction() as tx:
            tx.insert("products", [{"id": number, "category": "ab"[number % 2], "rate": 1} for number in range(10)])
        yield opened


def memory_of(db: vt.Database) -> Remembered:
    engine = db._engine
    assert isinstance(engine, SeveralEngine)
    return engine.coordinator.memory


def insert(db: vt.Database, number: int, product: int = 3) -> None:
    with db.transaction() as tx:
        tx.insert("events", {"id": number, "product": product, "cost": 10})


def totals(db: vt.Database) -> dict[str, tuple[int, int]]:
    assert db.view("by_category").verify().ok
    return {row.category: (row.cost, row.n) for row in db.view("by_category").rows()}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Ask]:
    """What was asked for and answered."""
    found: list[Ask] = []
    told = AttemptAt.told

    def noted(self: AttemptAt, log: str, message: Told) -> list[tuple[str, Ask]] | None:
        found.append(self.waiting[log])
        return told(self, log, message)

    monkeypatch.setattr(AttemptAt, "told", noted)
    return found


def test_what_is_remembered_is_not_asked_for(db: vt.Database, asked: list[Ask]) -> None:
    insert(db, 1)
    assert len(asked) == 1 and len(memory_of(db)) == 1
    insert(db, 2)
    assert len(asked) == 1
    insert(db, 3, product=4)
    assert len(asked) == 2
    assert totals(db) == {"b": (20, 2), "a": (10, 1)}


def test_a_row_that_has_changed_is_asked_for_again(db: vt.Database, asked: list[Ask]) -> None:
    insert(db, 1)
    with db.transaction() as tx:
        tx.update("products", 3, {"category": "c"})
    insert(db, 2)
    assert totals(db) == {"c": (20, 2)}
    with db.transaction() as tx:
        tx.delete("products", 3)
    insert(db, 3)
    assert totals(db) == {}
    with db.transaction() as tx:
        tx.insert("products", {"id": 3, "category": "d", "rate": 5})
    insert(db, 4)
    assert totals(db) == {"d": (8, 4)}


def test_an_old_row_makes_no_error(db: vt.Database) -> None:
    insert(db, 1)
    memory = memory_of(db)
    with db.transaction() as tx:
        tx.update("products", 4, {"rate": 0})
    with pytest.raises(vt.DataError):
        insert(db, 2, product=4)
    assert len(memory) == 2, "what it was joined with is remembered"
    with db.transaction() as tx:
        tx.update("products", 4, {"rate": 2})
    insert(db, 2, product=4)
    assert totals(db) == {"b": (10, 1), "a": (5, 1)}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "ROWS_MAX", 3)
    memory = Remembered()
    for number in range(10):
        memory.learn(b"%d" % number, number, (number,))
        assert len(memory) <= 3
    memory.learn(b"large", 1, ("x" * remembered.ROW_BYTES_MAX,))
    assert memory.find(b"large") is None and memory.find(b"9") == (9, (9,))
    memory.forget([b"9", b"unknown"])
    assert memory.find(b"9") is None


TWO_STAGES = (
    "SELECT c.id, SUM(e.cost / c.divisor) AS s, COUNT(*) AS n FROM events e JOIN products p ON e.product = p.id "
    "JOIN categories c ON p.category = c.id GROUP BY c.id"
)


def test_a_transaction_that_cannot_be_done_ends_whatever_is_remembered() -> None:
    """Relying on one row and asking for the other, in turns, it was tried again for ever."""
    with vt.connect("memory:", ltms=LTMS) as db:
        db.create_table("categories", {"id": int, "divisor": int}, key="id")
        db.create_table("products", {"id": int, "category": int}, key="id")
        db.create_table("events", {"id": int, "product": int, "cost": int}, key="id")
        db.create_view("v", TWO_STAGES)
        with db.transaction() as tx:
            tx.insert("categories", {"id": 1, "divisor": 0})
            tx.insert("products", [{"id": 7, "category": 1}, {"id": 8, "category": 1}])
        for number, product in ((1, 7), (2, 8), (3, 7), (4, 8)):
            with pytest.raises(vt.DataError), db.transaction() as tx:
                tx.insert("events", {"id": number, "product": product, "cost": 5})
        with db.transaction() as tx:
            tx.update("categories", 1, {"divisor": 5})
        insert(db, 5, product=8)
        assert db.view("v").rows() == [{"id": 1, "s": 2, "n": 1}]


def test_only_what_is_not_remembered_is_asked_for(db: vt.Database, asked: list[Ask]) -> None:
    insert(db, 1, product=3)
    with db.transaction() as tx:
        tx.insert("events", [{"id": 2, "product": 3, "cost": 1}, {"id": 3, "product": 5, "cost": 1}])
    assert len(asked) == 2 and len(asked[1].keys) == 1
    insert(db, 4, product=5)
    assert len(asked) == 2
    assert totals(db) == {"b": (22, 4)}


def test_a_row_is_relied_on_in_one_version_only(db: vt.Database) -> None:
    """A later look-up of an attempt may find another version: the vote would look at the last one only."""
    engine = db._engine
    assert isinstance(engine, SeveralEngine)
    memory = Remembered()
    memory.learn(b"k", 1, ("old",))
    submit = Submit((1, 1), False, ())
    attempt = AttemptAt(submit, 10, 10, 0, engine.ltm.tables, engine.coordinator.ranges, 0, memory=memory, recalls=True)
    assert attempt._recall([Wanted([b"k"], rows=True)]) == []
    assert attempt._with_recalled([]) == [Found([("old",)])]
    memory.learn(b"k", 2, ("new",))
    assert [each.keys for each in attempt._recall([Wanted([b"j", b"k"], rows=True)])] == [[b"j"]]
    assert attempt._with_recalled([Found([("found",)])]) == [Found([("found",), ("old",)])]
    assert attempt.relied == {b"k": (1, ("old",))}


def test_new_rows_are_taken_in_as_a_propagation_would(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NULL in the join, or if something is not remembered, it is one."""
    db.create_view("by_product", "SELECT product, COUNT(*) AS n, SUM(cost) AS cost FROM events GROUP BY product")
    insert(db, 1, product=3)
    insert(db, 2, product=4)
    engine = db._engine
    assert isinstance(engine, SeveralEngine)
    tables, memory = engine.coordinator.tables, memory_of(db)
    codec = tables.by_name["events"].codec

    def begun(products: Sequence[int | None]) -> tuple[bool, dict[str, Prepare], list[tuple[str, Ask]]]:
        rows = codec.checked(tuple((100 + number, product, 7) for number, product in enumerate(products)))
        intents: list[Intent] = [(ABSENT, row, None, True) for row in rows]
        submit = Submit((1, 1), False, (("events", tuple(zip(codec.keys_of(rows), intents, strict=True))),))
        attempt = AttemptAt(submit, 10, 10, 0, tables, engine.coordinator.ranges, 0, memory=memory, recalls=True)
        taken = attempt._take_in()
        attempt = AttemptAt(submit, 10, 10, 0, tables, engine.coordinator.ranges, 0, memory=memory, recalls=True)
        asks = attempt.begin()
        return taken, {} if asks else dict(attempt.prepare()), asks

    found = {products: begun(products) for products in ((3, 4, 3), (3, None), (None,), (3, 5))}
    monkeypatch.setattr(AttemptAt, "_take_in", lambda attempt: False)
    assert {products: begun(products)[1:] for products in found} == {key: value[1:] for key, value in found.items()}
    assert [taken for taken, _, _ in found.values()] == [True, False, False, False]
    assert sum(len(prepare.relied) for prepare in found[3, 4, 3][1].values()) == 2


def test_random_histories_over_joins_of_three_tables() -> None:
    """Their look-ups take several stages, and what is joined changes all the time."""
    join = "FROM e JOIN p ON e.p = p.id JOIN c ON p.c = c.id"
    for seed in range(6):
        rnd = random.Random(seed)
        with vt.connect("memory:", ltms=rnd.choice([2, 3])) as db:
            db.create_table("c", {"id": int, "name": str, "f": int}, key="id")
            db.create_table("p", {"id": int, "c": int, "name": str}, key="id", indexes=["c"])
            db.create_table("e", {"id": int, "p": int, "cost": int}, key="id", indexes=["p"])
            db.create_view("plain", f"SELECT e.id AS eid, p.name AS pn, c.name AS cn, e.cost AS cost {join}")
            db.create_view("agg", f"SELECT c.name, SUM(e.cost * c.f) AS s, COUNT(*) AS n {join} GROUP BY c.name")
            db.create_view("mm", f"SELECT p.name, MIN(e.cost) AS lo, MAX(e.cost) AS hi {join} GROUP BY p.name")
            db.create_view("over", "SELECT cn, SUM(cost) AS s, COUNT(*) AS n FROM plain GROUP BY cn")
            for _ in range(150):
                with contextlib.suppress(vt.IntegrityError), db.transaction() as tx:
                    for _ in range(rnd.choice([1, 1, 2, 3])):
                        _random_write(tx, rnd)
            for name in ("plain", "agg", "mm", "over"):
                report = db.view(name).verify()
                assert report.ok, (seed, name, report.differences)


def _random_write(tx: vt.Transaction, rnd: random.Random) -> None:
    event = {"id": rnd.randrange(200), "p": rnd.randrange(6), "cost": rnd.randrange(5)}
    match rnd.choice(["insert"] * 4 + ["upsert", "delete", "product", "category", "no product"]):
        case "insert":
            tx.insert("e", event)
        case "upsert":
            tx.upsert("e", event)
        case "delete":
            tx.delete("e", rnd.randrange(200))
        case "product":
            tx.upsert("p", {"id": rnd.randrange(6), "c": rnd.randrange(3), "name": rnd.choice("xyz")})
        case "category":
            tx.upsert("c", {"id": rnd.randrange(3), "name": rnd.choice("ab"), "f": rnd.randrange(3)})
        case _:
            tx.delete("p", rnd.randrange(6))


def test_damage_under_a_new_key_concerns_its_transaction_only(db: vt.Database) -> None:
    engine = db._engine
    assert isinstance(engine, SeveralEngine)
    (damaged,) = engine.ltm.tables.by_name["events"].codec.keys_of([(10, 0, 0)])
    load = engine._cells.load

    def failing(*keys: Sequence[bytes]) -> None:
        if any(damaged in some for some in keys):
            raise Damaged("a stored value is damaged", hint="restore it")
        load(*keys)

    engine._cells.load = failing  # type: ignore[method-assign]
    with pytest.raises(vt.OperationalError, match="damaged"):
        insert(db, 10)
    insert(db, 11)
    assert totals(db) == {"b": (10, 1)}


def test_a_transaction_that_writes_nothing_is_refused_at_once(db: vt.Database) -> None:
    engine = db._engine
    assert isinstance(engine, SeveralEngine)
    out = engine.coordinator.receive("client", Submit((1, 1), False, (("events", ()),)), 0)
    ((client, outcome),) = out.send
    assert client == "client" and isinstance(outcome, Outcome) and outcome.state == FAILED
