"""The first contents of a view by rows: what many rows refer to is looked up once, and tells their group once."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest

import viewtide as vt
from viewtide.changetables.errors import DataError
from viewtide.changetables.evaluators.whole import WholeCosts
from viewtide.changetables.plan import ViewPlan

FROM = "FROM e JOIN p ON p.id = e.p"
VIEWS = (
    f"SELECT p.c, COUNT(*) AS n, SUM(e.x) AS s {FROM} GROUP BY p.c",
    # What is added up needs the row that was found.
    f"SELECT p.c, SUM(e.x % 1000 * p.f) AS s, AVG(p.f) AS a {FROM} GROUP BY p.c",
    # The group is told by a part of what was found, by an expression, and by nothing at all.
    f"SELECT p.c, p.f, SUM(e.x) AS s {FROM} WHERE p.f > 2 GROUP BY p.c, p.f",
    f"SELECT upper(p.c) AS c, COUNT(e.x) AS n {FROM} GROUP BY upper(p.c)",
    f"SELECT COUNT(*) AS n, SUM(e.x) AS s, SUM(e.d) AS d, SUM(e.r) AS r {FROM}",
    # It needs the row itself, in the group or in a condition.
    f"SELECT p.c, e.x, COUNT(*) AS n {FROM} GROUP BY p.c, e.x",
    f"SELECT p.c, SUM(e.x) AS s {FROM} WHERE e.x > p.f GROUP BY p.c",
    # No groups.
    f"SELECT e.id, p.c {FROM}",
)


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as made:
        made.create_table("p", {"id": int, "c": str, "f": int}, key="id")
        made.create_table("e", {"id": int, "p": int, "x": int, "d": "decimal(9,2)", "r": float}, key="id")
        yield made


def _fill(db: vt.Database, *, nulls: bool) -> None:
    rows = [
        {"id": n, "p": None if nulls and n % 50 == 0 else n % 12, "x": None if n % 7 == 0 else 2**62 + n}
        | {"d": Decimal(f"{n}.25"), "r": n / 3}
        for n in range(1_000)
    ]
    with db.transaction() as tx:
        # Some refer to nothing.
        tx.insert("p", [{"id": n, "c": "abc"[n % 3], "f": n % 5} for n in range(10)])
        tx.insert("e", rows)


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("sql", VIEWS)
def test_contents_are_those_of_the_query(db: vt.Database, sql: str, nulls: bool) -> None:
    _fill(db, nulls=nulls)
    db.create_view("v", sql, evaluator="rows")
    found, expected = (sorted(map(repr, rows)) for rows in (db.view("v").rows(), db.sql(sql)))
    assert found == expected
    assert db.view("v").verify().ok


def test_what_many_refer_to_is_asked_for_once(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    _fill(db, nulls=False)
    asked: list[int] = []
    contribute = ViewPlan.contribute_from

    def counting(self: ViewPlan, *args: object) -> Iterator[object]:
        asking = contribute(self, *args)  # type: ignore[arg-type]
        wanted = next(asking)
        asked.extend(len(each.keys) for each in wanted)
        while True:
            try:
                wanted = asking.send((yield wanted))
            except StopIteration as done:
                return done.value

    monkeypatch.setattr(ViewPlan, "contribute_from", counting)
    db.create_view("v", VIEWS[0], evaluator="rows")
    assert asked and max(asked) == 12


@pytest.mark.parametrize("sql", [f"SELECT 1 / p.f AS g, COUNT(*) AS n {FROM} GROUP BY 1 / p.f",
                                 f"SELECT p.c, SUM(e.x / p.f) AS s {FROM} GROUP BY p.c"])  # fmt: skip
def test_the_first_row_that_fails_is_blamed(db: vt.Database, sql: str) -> None:
    _fill(db, nulls=False)
    db.sql("UPDATE p SET f = 1 WHERE id <> 5")
    with pytest.raises(DataError, match=r"row \(5,\) of table 'e'.*zero"):
        db.create_view("v", sql, evaluator="rows")
    assert not db.views()


def test_only_what_was_not_asked_for_says_what_rows_cost(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for rows may get the dearer one of rows and columns."""
    _fill(db, nulls=False)
    recorded: list[str] = []
    monkeypatch.setattr(WholeCosts, "record", lambda _, evaluator, *__: recorded.append(evaluator))
    db.create_view("asked", VIEWS[0], evaluator="rows")
    assert not recorded
    db.create_view("chosen", VIEWS[0])
    assert recorded == ["rows"]
