"""Bulk load: all rows of the input as one transaction, as if they had been inserted one by one."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

import viewtide as vt

pa = pytest.importorskip("pyarrow")

COLUMNS = {
    "id": int,
    "name": str,
    "price": Decimal,
    "weight": float,
    "seen": datetime.datetime,
    "day": datetime.date,
    "raw": bytes,
    "fine": bool,
    "more": dict,
    "zoned": "timestamptz",
}
ROW = {
    "id": 1,
    "name": 'a "quoted", text',
    "price": Decimal("1.50"),
    "weight": 0.1,
    "seen": datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    "day": datetime.date(2026, 1, 2),
    "raw": b"\x00\xff",
    "fine": True,
    "more": {"a": [1, None]},
    "zoned": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
}
EMPTY: dict[str, object] = {**dict.fromkeys(COLUMNS), "id": 2, "name": ""}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[vt.Database]:
    with vt.connect(tmp_path / "db") as database:
        yield database


def _events(count: int, first: int = 0) -> object:
    return pa.table({"id": range(first, first + count), "cost": [number % 7 for number in range(count)]})


def test_all_rows_at_one_commit_ts_with_their_views(db: vt.Database) -> None:
    db.create_table("events", {"id": int, "cost": int}, key="id", indexes=["cost"])
    view = db.create_view("costs", "SELECT cost, COUNT(*) AS n FROM events GROUP BY cost")
    late = db.create_view("late", "SELECT SUM(cost) AS s FROM events", refresh="manual")
    seen: list[int] = []
    result = db.table("events").load([_events(20_000), _events(5, 20_000)], progress=seen.append)
    assert result.rows == 20_005 and seen[-1] == 20_005
    assert sum(row.n for row in view.rows()) == 20_005
    late.refresh()
    assert late.get().s == sum(number % 7 for number in range(20_000)) + 10
    with db.snapshot() as snapshot:
        assert len(snapshot.find("events", cost=3)) == 2_858
        assert snapshot.token.commit_ts >= result.commit_ts
    assert view.verify().ok and late.verify().ok


def test_a_key_that_exists_or_comes_twice_changes_nothing(db: vt.Database) -> None:
    db.create_table("events", {"id": int, "cost": int}, key="id")
    db.table("events").load(_events(3))
    with pytest.raises(vt.IntegrityError, match="row 2 of table 'events' exists already"):
        db.table("events").load([_events(100, 10), _events(1, 2)])
    with pytest.raises(vt.IntegrityError, match="row 5 "):
        db.table("events").load([_events(2, 5), _events(2, 5)])
    with db.snapshot() as snapshot:
        assert len(snapshot.scan("events")) == 3


def test_a_bad_value_is_named_with_its_row(db: vt.Database) -> None:
    db.create_table("t", {"id": int, "n": vt.column(int, nullable=False), "p": Decimal}, key="id")
    with pytest.raises(vt.IntegrityError, match=r"row 12: column t\.n may not be NULL"):
        db.table("t").load([pa.table({"id": range(10), "n": range(10)}), pa.table({"id": [10, 11], "n": [1, None]})])
    with pytest.raises(vt.DataError, match=r"row 2: column t\.p: invalid input syntax"):
        db.table("t").load(pa.table({"id": [1, 2], "n": [1, 1], "p": ["1.5", "x"]}))
    with pytest.raises(vt.ProgrammingError, match="no column 'm'"):
        db.table("t").load(pa.table({"id": [1], "m": [1]}))
    with pytest.raises(vt.InterfaceError, match="record batches"):
        db.table("t").load([{"id": 1}])
    with pytest.raises(vt.ProgrammingError, match="no table 'u'"):
        db.table("u")


def test_every_type_comes_in_as_a_transaction_takes_it(db: vt.Database) -> None:
    db.create_table("t", COLUMNS, key="id")
    plain = {**ROW, "more": '{"a": [1, null]}'}
    db.table("t").load(pa.Table.from_pylist([plain, EMPTY]))
    assert [dict(row) for row in db.sql("SELECT * FROM t ORDER BY id")] == [ROW, EMPTY]


@pytest.mark.served
def test_a_task_loads(tmp_path: Path) -> None:
    async def test() -> None:
        async with await vt.aio.connect(tmp_path / "db") as db:
            await db.create_table("t", {"id": int, "cost": int}, key="id")
            assert (await db.table("t").load(_events(10))).rows == 10
            with pytest.raises(vt.IntegrityError):
                await db.table("t").load([_events(1, 10), _events(1)])
            assert (await db.sql("SELECT COUNT(*) AS n FROM t"))[0].n == 10

    asyncio.run(test())
