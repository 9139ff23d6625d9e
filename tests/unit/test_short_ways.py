"""Common cases are written out to be cheap: each must do exactly what the long way does."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import threading
from collections.abc import Callable, Iterator, KeysView, Mapping
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType

import pyarrow
import pytest

import viewtide as vt
from viewtide.changetables.errors import Error
from viewtide.changetables.refresh import by_columns, contributions_of
from viewtide.changetables.rows import row_codec
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.types import BOOL, DECIMAL, FLOAT, INT, STR, TIMESTAMP, Type
from viewtide.coordinator import inserting
from viewtide.ltm.versions import Horizon, TableVersions

PLAIN = Table(
    1,
    "t",
    (
        Column("id", INT, nullable=False),
        Column("name", Type("str", length=3)),
        Column("cost", INT, default=7),
        Column("share", FLOAT),
        Column("seen", TIMESTAMP),
        Column("on", BOOL, nullable=False),
    ),
    (0,),
)
WITH_DECIMAL = Table(2, "d", (Column("name", STR, nullable=False), Column("sum", DECIMAL)), (0,))
ONE_COLUMN = Table(3, "o", (Column("name", STR, nullable=False),), (0,))
DROPPED = Table(4, "g", (Column("id", INT, nullable=False), Column("gone", INT, dropped=True)), (0,))

FULL: dict[str, object] = {"id": 1, "name": "abc", "cost": 2, "share": 0.5, "seen": None, "on": True}
MAPPINGS: dict[Table, list[Mapping[str, object]]] = {
    PLAIN: [
        FULL,
        MappingProxyType(FULL),
        {"id": 2, "on": False},
        {**FULL, "id": True},
        {**FULL, "id": None},
        {**FULL, "id": 2**63},
        {**FULL, "id": -(2**63)},
        {**FULL, "cost": "2"},
        {**FULL, "name": "abc  "},
        {**FULL, "name": "abcd"},
        {**FULL, "name": "\ud800"},
        {**FULL, "name": "äöü"},
        {**FULL, "share": 1},
        {**FULL, "share": float("nan")},
        {**FULL, "seen": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)},
        {**FULL, "on": 1},
        {**{name: value for name, value in FULL.items() if name != "cost"}, "price": 2},
        {**FULL, "price": 2},
        {},
    ],
    WITH_DECIMAL: [{"name": "a", "sum": Decimal("1.50")}, {"name": "a", "sum": 1.5}, {"name": "\0\1", "sum": None}],
    ONE_COLUMN: [{"name": "a"}, {"name": 1}, {"other": "a"}, {"name": "x" * 600}],
    DROPPED: [{"id": 1}, {"id": 1, "gone": 1}],
}
CASES = [(table, mapping) for table, mappings in MAPPINGS.items() for mapping in mappings]


def outcome(call: Callable[[], object]) -> object:
    """What a call gives, or its error."""
    try:
        return call()
    except Error as error:
        return type(error), str(error)


@pytest.mark.parametrize(("table", "mapping"), CASES, ids=range(len(CASES)))
def test_many_rows_are_made_as_one_is(table: Table, mapping: Mapping[str, object]) -> None:
    codec = row_codec(table)
    alone = outcome(lambda: codec.row(mapping))
    together = outcome(lambda: codec.rows([mapping, mapping]))
    assert repr(together) == repr(alone if _is_error(alone) else [alone, alone])
    if not _is_error(alone):
        row = codec.row(mapping)
        key = outcome(lambda: codec.key(row))
        assert outcome(lambda: codec.keys_of([row, row])) == (key if _is_error(key) else [key, key])


def _is_error(found: object) -> bool:
    return isinstance(found, tuple) and bool(found) and isinstance(found[0], type)


def test_the_first_wrong_row_is_the_one_that_is_told() -> None:
    codec = row_codec(PLAIN)
    wrong = [{**FULL, "cost": "x"}, {**FULL, "price": 1}]
    for order in (wrong, wrong[::-1]):
        assert outcome(lambda order=order: codec.rows([FULL, *order])) == outcome(  # type: ignore[misc]
            lambda order=order: codec.row(order[0])  # type: ignore[misc]
        )


@pytest.fixture
def db() -> Iterator[vt.Database]:
    db = vt.connect("memory:")
    db.sql(
        "CREATE TABLE e (id int PRIMARY KEY, kind text, cost int);"
        "CREATE MATERIALIZED VIEW v AS SELECT kind, SUM(cost) AS cost, COUNT(*) AS n FROM e GROUP BY kind;"
        "CREATE MATERIALIZED VIEW h AS SELECT kind, SUM(cost) AS cost FROM e GROUP BY kind HAVING SUM(cost) > 10;"
        "CREATE MATERIALIZED VIEW r AS SELECT id, cost FROM e WHERE cost > 2;"
        "CREATE MATERIALIZED VIEW d AS SELECT DISTINCT kind FROM e;"
        "CREATE MATERIALIZED VIEW o AS SELECT id, cost FROM e ORDER BY cost DESC LIMIT 2;"
        "CREATE MATERIALIZED VIEW a AS SELECT COUNT(*) AS n, MAX(cost) AS most FROM e"
    )
    with db:
        yield db


@pytest.mark.parametrize("name", ["v", "h", "r", "d", "o", "a"])
def test_a_view_is_read_as_a_snapshot_reads_it(db: vt.Database, name: str) -> None:
    def compare() -> None:
        with db.snapshot() as snapshot:
            assert db.view(name).rows() == snapshot.view(name).rows()
            assert db.view(name).rows().watermark == snapshot.token.commit_ts

    compare()
    for step in range(6):
        with db.transaction() as tx:
            tx.insert("e", [{"id": 10 * step + i, "kind": f"k{i % 3}", "cost": i + step} for i in range(10)])
            compare()
        if step == 2:
            db._engine.checkpoint()
        if step == 4:
            db.sql("DELETE FROM e WHERE kind = 'k1'")
        compare()
    with db.transaction() as tx:
        tx.insert("e", [{"id": 1_000 + i, "kind": f"many {i}", "cost": i} for i in range(400)])
    compare()


def test_a_view_that_grew_or_was_replaced_is_read_anew(db: vt.Database) -> None:
    db.sql("INSERT INTO e VALUES (1, 'b', 1)")
    assert [row["kind"] for row in db.view("v").rows()] == ["b"]
    db.sql("INSERT INTO e VALUES (2, 'a', 1)")
    assert [row["kind"] for row in db.view("v").rows()] == ["a", "b"]
    view = db.view("v")
    db.sql(
        "DROP MATERIALIZED VIEW v; CREATE MATERIALIZED VIEW v AS SELECT kind, MIN(cost) AS least FROM e GROUP BY kind"
    )
    assert [dict(row) for row in view.rows()] == [{"kind": "a", "least": 1}, {"kind": "b", "least": 1}]


def test_keys_are_not_absent_while_a_checkpoint_moves_them() -> None:
    """A transaction looks without the lock, and its look may be the only one."""

    class Moving(dict[bytes, tuple[int, tuple[int, ...], None]]):
        """The checkpoint ends just when somebody looks at what was written since it began."""

        def keys(self) -> KeysView[bytes]:
            versions.checkpointed(b"k")
            return super().keys()

    versions = TableVersions[tuple[int, ...]](1, Horizon(), bytes, tuple)
    versions.put_many([(b"k", None, (1,))], 1)
    versions.freeze()
    versions.dirty = Moving()  # type: ignore[assignment]
    assert not versions.surely_absent([b"k"])


def test_several_inserts_in_one_transaction_are_one(db: vt.Database) -> None:
    with db.transaction() as tx:
        tx.insert("e", {"id": 1, "kind": "a", "cost": 1})
        tx.insert("e", [])
        tx.insert("e", [{"id": 2, "kind": "a", "cost": 2}, {"id": 3, "kind": "b", "cost": 3}])
        with pytest.raises(vt.IntegrityError):
            tx.insert("e", {"id": 2, "kind": "c", "cost": 9})
        tx.delete("e", 3)
        tx.update("e", 1, {"cost": 5})
        tx.insert("e", {"id": 4, "kind": "b", "cost": 4})
    assert [tuple(row.values()) for row in db.view("v").rows()] == [("a", 7, 2), ("b", 4, 1)]
    assert db.view("v").verify().ok


def test_inserts_of_keys_that_somebody_else_took_are_refused(db: vt.Database) -> None:
    tx = db.transaction()
    tx.insert("e", [{"id": 1, "kind": "a", "cost": 1}, {"id": 2, "kind": "a", "cost": 1}])
    db.sql("INSERT INTO e VALUES (2, 'b', 1)")
    with pytest.raises(vt.IntegrityError, match="row 2 of table 'e' exists already"):
        tx.commit()
    assert [tuple(row.values()) for row in db.view("v").rows()] == [("b", 1, 1)]


JOINED = {
    "inner": "SELECT k.grp, SUM(e.cost) AS cost, COUNT(*) AS n FROM e JOIN k ON e.kind = k.name GROUP BY k.grp",
    "filtered": "SELECT k.grp, AVG(e.cost) AS cost FROM e JOIN k ON e.kind = k.name AND k.grp > 1 GROUP BY k.grp",
    "rows": "SELECT e.id, k.grp, e.cost FROM e JOIN k ON e.kind = k.name",
    "grouped": "SELECT kind, SUM(cost) AS cost FROM e GROUP BY kind",
    "doubled": "SELECT e.id, e.cost + e.cost AS twice FROM e",
}
#: Those that are not for the short way: a filter of the rows themselves, several steps, an index, one source twice.
LONG = {
    "selected": "SELECT kind, SUM(cost) AS cost FROM e WHERE cost > 2 GROUP BY kind",
    "left": "SELECT e.id, k.grp FROM e LEFT JOIN k ON e.kind = k.name",
    "by index": "SELECT e.id, g.id AS other FROM e JOIN g ON e.kind = g.kind",
    "self": "SELECT a.id, b.cost FROM e a JOIN e b ON a.cost = b.id",
    "distinct": "SELECT kind, COUNT(DISTINCT cost) AS n FROM e GROUP BY kind",
}


@pytest.mark.parametrize(("name", "is_short"), [*((name, True) for name in JOINED), *((name, False) for name in LONG)])
@pytest.mark.parametrize("kinds", [("a", "b", "nowhere"), ("a", None)], ids=["given", "null"])
def test_blind_inserts_are_propagated_as_any_other_transaction(
    name: str, is_short: bool, kinds: tuple[str | None, ...]
) -> None:
    with vt.connect("memory:") as db:
        db.create_table("e", {"id": int, "kind": str, "cost": int}, key="id")
        db.create_table("k", {"name": str, "grp": int}, key="name")
        db.create_table("g", {"id": int, "kind": str}, key="id")
        with db.transaction() as tx:
            tx.insert("k", [{"name": "a", "grp": 1}, {"name": "b", "grp": 2}])
            tx.insert("g", [{"id": 1, "kind": "a"}, {"id": 2, "kind": "a"}])
        db.create_view("v", {**JOINED, **LONG}[name])
        tx = db.transaction()
        tx.insert("e", [{"id": id_, "kind": kinds[id_ % len(kinds)], "cost": id_ or None} for id_ in range(8)])
        engine, tables = db._engine, db._engine.ltm.tables
        with engine.ltm.lock:
            short = engine._inserted(tx._request, tables)
            again = engine._inserted(tx._request, tables)  # with what the first one found
            long = engine._propagated(tx._request, tables).record(tx._request.tx_ids, 0)
        if is_short and (None not in kinds or " JOIN " not in JOINED[name]):
            assert short is not None and again is not None
            version = tables.catalog.version
            assert short._replace(commit_ts=0).record(version) == again._replace(commit_ts=0).record(version) == long
        else:
            assert short is None and again is None
        tx.commit()
        assert db.view("v").verify().ok


@pytest.mark.parametrize("known_max", [2, 10_000])
def test_what_blind_inserts_are_joined_with_is_never_outdated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_max: int
) -> None:
    monkeypatch.setattr(inserting, "KNOWN_ROWS_MAX", known_max)
    ids = itertools.count()
    with vt.connect(tmp_path) as db:
        db.create_table("e", {"id": int, "kind": str, "part": int, "cost": int}, key="id")
        db.create_table("k", {"name": str, "part": int, "grp": int}, key=["name", "part"])
        on = "FROM e JOIN k ON e.kind = k.name AND e.part = k.part"
        db.create_view("v", f"SELECT k.grp, SUM(e.cost) AS cost, COUNT(*) AS n {on} GROUP BY k.grp")
        db.create_view("r", f"SELECT e.id, k.grp {on}")

        def insert_and_compare(*kinds: str) -> None:
            with db.transaction() as tx:
                tx.insert("e", [{"id": next(ids), "kind": kind, "part": 1, "cost": 3} for kind in kinds])
            assert db.view("v").verify().ok
            assert db.view("r").verify().ok

        insert_and_compare("a", "b", "c")
        db.sql("INSERT INTO k VALUES ('a', 1, 1), ('b', 1, 2), ('b', 2, 3)")
        for kinds in (("a", "b", "c"), ("a", "b", "c"), ("b",), ("d", "a")):
            insert_and_compare(*kinds)
        for change in (
            "UPDATE k SET grp = 7 WHERE name = 'b'",
            "INSERT INTO k VALUES ('c', 1, 4)",
            "DELETE FROM k WHERE name = 'a'",
            "ALTER TABLE k ADD COLUMN note TEXT DEFAULT 'x'",
            "DROP MATERIALIZED VIEW v; CREATE MATERIALIZED VIEW v AS SELECT k.note, MIN(k.grp + e.cost) AS least, "
            f"COUNT(*) AS n {on} GROUP BY k.note",
            "UPDATE k SET note = 'y' WHERE name = 'b'",
        ):
            db.sql(change)
            insert_and_compare("a", "b", "c")
            db._engine.checkpoint()
            insert_and_compare("a", "b", "c", "d")
        columns = {"name": ["d", "a"], "part": [1, 1], "grp": [8, 9], "note": ["z", None]}
        db.table("k").load([pyarrow.RecordBatch.from_pydict(columns)])
        insert_and_compare("a", "b", "c", "d")


def test_an_error_in_a_blind_insert_names_view_and_row(db: vt.Database) -> None:
    db.create_view("inverse", "SELECT id, 10 / cost AS x FROM e")
    with pytest.raises(vt.DataError, match=r"'inverse'.*row .*2"), db.transaction() as tx:
        tx.insert("e", [{"id": 1, "kind": "a", "cost": 1}, {"id": 2, "kind": "a", "cost": 0}])
    with db.snapshot() as snapshot:
        assert snapshot.scan("e") == []


def test_contributions_are_refreshed_together_as_one_by_one(db: vt.Database) -> None:
    db.sql("INSERT INTO e VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    for name in ("v", "r"):
        plan = db._engine.ltm.tables.views[name].plan
        changes = {"e": [((1, "a", 1), -1), ((2, "b", 2), 1), ((9, "z", 3), 1)]}
        asking = plan.propagate(changes)
        with pytest.raises(StopIteration) as finished:
            next(asking)
        contributions = finished.value.value
        rows = db._engine.ltm.tables.views[name].versions.newest_rows([item.key for item in contributions])
        assert contributions
        assert contributions_of(by_columns(contributions)) == contributions
        assert plan.refresh_all(by_columns(contributions), rows) == [
            (item.key, row, plan.refresh(row, item)) for item, row in zip(contributions, rows, strict=True)
        ]


def test_tasks_of_several_loops_are_all_served(db: vt.Database) -> None:
    """A loop is called once a turn; the loops of several threads take turns at that."""

    def work(first: int) -> None:
        async def main() -> None:
            shared = vt.aio.AsyncDatabase(db)

            async def one(number: int) -> None:
                async with shared.transaction() as tx:
                    await tx.insert("e", {"id": number, "kind": "a", "cost": 1})

            for turn in range(20):
                await asyncio.gather(*(one(first + 10 * turn + place) for place in range(5)))

        asyncio.run(main())

    threads = [threading.Thread(target=work, args=(1_000 * number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [tuple(row.values()) for row in db.view("v").rows()] == [("a", 300, 300)]
