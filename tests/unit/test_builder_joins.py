"""Queries of JoinTable and JoinEdge: run inside transactions and snapshots, and as views."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pytest

import viewtide as vt


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as opened:
        opened.create_table("products", {"id": int, "category": str, "shop": int}, key="id", indexes=["shop"])
        opened.create_table("shops", {"id": int, "city": str}, key="id", indexes=["city"])
        opened.create_table("events", {"id": int, "product": int, "cost": int}, key="id", indexes=["product"])
        with opened.transaction() as tx:
            tx.insert("shops", [{"id": 1, "city": "Oslo"}, {"id": 2, "city": "Riga"}])
            tx.insert("products", [{"id": i, "category": f"c{i % 2}", "shop": 1 + i % 2} for i in range(4)])
            tx.insert("events", [{"id": i, "product": i % 4, "cost": i} for i in range(12)])
            tx.insert("events", {"id": 99, "product": None, "cost": 0})
        yield opened


E, P, S = vt.JoinTable("events", "e"), vt.JoinTable("products", "p"), vt.JoinTable("shops", "s")
EP, PS = vt.JoinEdge("e.product", "p.id"), vt.JoinEdge("p.shop", "s.id")
ROWS = vt.query(E, P, S, on=[EP, PS], select={"event": "e.id", "category": "p.category", "city": "s.city"})
SUMS = vt.query(
    E, P, on=[EP], where="e.cost > 0", group_by=["p.category"],
    select={"cost": vt.sum("e.cost"), "n": vt.count(), "mean": vt.avg("e.cost")},
)  # fmt: skip


def _events(rows: vt.Result) -> list[object]:
    return sorted(row["event"] for row in rows)  # type: ignore[type-var]


def test_a_join_from_every_row_of_the_first_table(db: vt.Database) -> None:
    with db.snapshot() as snapshot:
        rows = snapshot.join(ROWS)
    assert rows.columns == ("event", "category", "city")
    assert _events(rows) == list(range(12))
    assert {(row["event"], row["category"], row["city"]) for row in rows} == {
        (i, f"c{i % 2}", "Riga" if i % 2 else "Oslo") for i in range(12)
    }


@pytest.mark.parametrize(
    ("start", "events"),
    [
        ({"e.id": 5}, [5]),
        ({"e.id": 77}, []),
        ({"e.id": 99}, []),
        ({"e.product": 1}, [1, 5, 9]),
        ({"e.product": 1, "e.cost": 5}, [5]),
        ({"p.id": 2}, [2, 6, 10]),
        ({"s.id": 2}, [1, 3, 5, 7, 9, 11]),
        ({"s.city": "Oslo"}, [0, 2, 4, 6, 8, 10]),
        ({"p.shop": 2}, [1, 3, 5, 7, 9, 11]),
    ],
    ids=str,
)
def test_a_join_from_the_rows_that_start_names(db: vt.Database, start: Mapping[str, object], events: list[int]) -> None:
    for stored in (False, True):
        if stored:
            db._engine.checkpoint()
        with db.snapshot() as snapshot:
            assert _events(snapshot.join(ROWS, start=start)) == events


def test_a_join_sees_own_writes_on_every_table(db: vt.Database) -> None:
    with db.transaction() as tx:
        tx.insert("shops", {"id": 3, "city": "Bern"})
        tx.update("products", 1, {"shop": 3})
        tx.insert("events", {"id": 20, "product": 1, "cost": 1})
        tx.delete("events", 5)
        assert _events(tx.join(ROWS, start={"s.city": "Bern"})) == [1, 9, 20]
        assert _events(tx.join(ROWS, start={"s.id": 2})) == [3, 7, 11]
        assert _events(tx.join(ROWS, start={"e.id": 5})) == []
        assert len(tx.join(ROWS)) == 12
        tx.delete("shops", 3)
        assert _events(tx.join(ROWS, start={"p.id": 1})) == []


def test_a_join_with_groups(db: vt.Database) -> None:
    with db.snapshot() as snapshot:
        rows = snapshot.join(SUMS)
        assert rows.columns == ("category", "cost", "n", "mean")
        assert sorted(tuple(row.values())[:3] for row in rows) == [("c0", 30, 5), ("c1", 36, 6)]
        assert [tuple(row.values())[:3] for row in snapshot.join(SUMS, start={"e.id": 3})] == [("c1", 3, 1)]
        assert snapshot.join(SUMS, start={"e.id": 0}) == []
    total = vt.query(E, select={"n": vt.count(), "cost": vt.sum("e.cost")})
    with db.snapshot() as snapshot:
        assert snapshot.join(total) == [{"n": 13, "cost": 66}]
        assert snapshot.join(total, start={"e.id": 1000}) == [{"n": 0, "cost": None}]


def test_an_outer_join_from_some_rows_has_what_comes_from_them() -> None:
    """As if WHERE named them, whichever side they are on."""
    kinds = ("inner", "left", "right", "full")
    outputs = {"a": "a.id", "b": "b.id", "c": "c.id"}
    tables = [vt.JoinTable(name) for name in "abc"]
    with vt.connect("memory:") as db, db.transaction() as tx:
        db.create_table("a", {"id": int, "b": int}, key="id", indexes=["b"])
        db.create_table("b", {"id": int, "c": int}, key="id", indexes=["c"])
        db.create_table("c", {"id": int}, key="id")
        tx.insert("a", [{"id": n, "b": n % 3} for n in range(5)])
        tx.insert("b", [{"id": n, "c": n} for n in range(2, 5)])
        tx.insert("c", [{"id": n} for n in range(3, 6)])
        for first, second in itertools.product(kinds, kinds):
            edges = [vt.JoinEdge("a.b", "b.id", kind=first), vt.JoinEdge("b.c", "c.id", kind=second)]
            for column, value in itertools.product(outputs.values(), (2, 3)):
                found = tx.join(vt.query(*tables, on=edges, select=outputs), start={column: value})
                named = tx.join(vt.query(*tables, on=edges, select=outputs, where=f"{column} = {value}"))
                assert sorted(map(repr, found)) == sorted(map(repr, named)), (first, second, column, value)


def test_a_join_is_at_the_snapshot(db: vt.Database) -> None:
    with db.snapshot() as snapshot:
        before = list(snapshot.join(ROWS))
        with db.transaction() as tx:
            tx.delete("shops", 1)
            tx.update("events", 1, {"product": 0})
        assert snapshot.join(ROWS) == before


def test_self_joins_need_aliases(db: vt.Database) -> None:
    pairs = vt.query(
        vt.JoinTable("products", "a"), vt.JoinTable("products", "b"), on=[vt.JoinEdge("a.shop", "b.shop")],
        where="a.id < b.id", select={"first": "a.id", "second": "b.id"},
    )  # fmt: skip
    with db.snapshot() as snapshot:
        assert sorted(tuple(row.values()) for row in snapshot.join(pairs)) == [(0, 2), (1, 3)]
        assert [tuple(row.values()) for row in snapshot.join(pairs, start={"b.id": 3})] == [(1, 3)]
    with pytest.raises(vt.ProgrammingError):
        vt.query(P, P)


def test_without_aliases_tables_go_by_their_names(db: vt.Database) -> None:
    query = vt.query(
        vt.JoinTable("events"), vt.JoinTable("products"), on=[vt.JoinEdge("events.product", "products.id")],
        select={"event": "events.id"},
    )  # fmt: skip
    with db.snapshot() as snapshot:
        assert _events(snapshot.join(query, start={"products.id": 3})) == [3, 7, 11]


def test_the_builder_and_sql_make_the_same_view(db: vt.Database) -> None:
    built = db.create_view("built", SUMS)
    written = db.create_view(
        "written",
        "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n, AVG(e.cost) AS mean"
        " FROM events e JOIN products p ON e.product = p.id WHERE e.cost > 0 GROUP BY p.category",
    )
    with db.transaction() as tx:
        tx.update("products", 0, {"category": "c9"})
        tx.delete("events", 3)
        tx.insert("events", {"id": 50, "product": 3, "cost": 50})
    assert built.rows() == written.rows() and built.rows().columns == written.rows().columns
    with db.snapshot() as snapshot:
        assert sorted(map(repr, snapshot.join(SUMS))) == sorted(map(repr, built.rows()))
    assert built.verify().ok and written.verify().ok
    assert built.explain().partition("\n")[2] == written.explain().partition("\n")[2]
    assert built.status().sql
    # A view that exists also says what the evaluators cost.
    assert db.explain_view(SUMS).splitlines()[1:] == built.explain().splitlines()[1:-1]


@pytest.mark.parametrize("kind", ["left", "right", "full"])
def test_outer_joins_distinct_values_and_having(db: vt.Database, kind: str) -> None:
    built = vt.query(
        E, P, on=[vt.JoinEdge("e.product", "p.id", kind=kind)], group_by=["p.category"], having="count(*) > 1",
        select={"n": vt.count(), "products": vt.count("p.id", distinct=True), "most": vt.max("e.cost")},
    )  # fmt: skip
    sql = (
        "SELECT p.category, count(*) AS n, count(DISTINCT p.id) AS products, max(e.cost) AS most"
        f" FROM events e {kind} JOIN products p ON e.product = p.id GROUP BY p.category HAVING count(*) > 1"
    )
    with db.transaction() as tx:
        tx.insert("events", {"id": 98, "product": None, "cost": 7})
        tx.insert("products", {"id": 50, "category": "c1", "shop": 1})
    unmatched = [] if kind == "right" else [(None, 2, 0, 7)]
    lonely = 0 if kind == "left" else 1
    expected = {("c0", 6, 2, 10), ("c1", 6 + lonely, 2 + lonely, 11), *unmatched}
    view = db.create_view("v", built)
    written = db.create_view("w", sql)
    with db.snapshot() as snapshot:
        assert {tuple(row.values()) for row in snapshot.join(built)} == expected
    assert {tuple(row.values()) for row in view.rows()} == expected
    assert {tuple(row.values()) for row in written.rows()} == expected


def test_a_query_is_a_value() -> None:
    def make() -> vt.Query:
        return vt.query(E, P, on=[EP], select={"n": vt.count("e.id")})

    assert make() == make() and hash(make()) == hash(make()) and make() != SUMS
    assert eval(repr(vt.JoinEdge("a.b", "c.d")), {"JoinEdge": vt.JoinEdge}) == vt.JoinEdge("a.b", "c.d")


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        ({"x.id": 1}, vt.ProgrammingError),
        ({"id": 1}, vt.ProgrammingError),
        ({"e.id": 1, "p.id": 1}, vt.ProgrammingError),
        ({}, vt.ProgrammingError),
        ({"e.nope": 1}, vt.ProgrammingError),
        ({"e.id": "one"}, vt.DataError),
    ],
    ids=str,
)
def test_a_wrong_start_is_refused(db: vt.Database, start: Mapping[str, object], kind: type[vt.Error]) -> None:
    with db.snapshot() as snapshot, pytest.raises(kind) as raised:
        snapshot.join(ROWS, start=start)
    assert type(raised.value) is kind


def test_a_join_gives_the_same_with_and_without_an_index(db: vt.Database) -> None:
    by_cost = vt.query(E, vt.JoinTable("events", "f"), on=[vt.JoinEdge("e.cost", "f.cost")], select={"event": "f.id"})
    with db.snapshot() as snapshot:
        assert len(snapshot.join(by_cost)) == 11 + 4
        assert _events(snapshot.join(by_cost, start={"e.id": 0})) == [0, 99]
    db.create_index("events", "cost")
    with db.snapshot() as snapshot:
        assert len(snapshot.join(by_cost)) == 11 + 4
        assert _events(snapshot.join(by_cost, start={"e.id": 0})) == [0, 99]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: vt.query(), vt.InterfaceError),
        (lambda: vt.query("events"), vt.InterfaceError),  # type: ignore[arg-type]
        (lambda: vt.query(E, on=["e.id = p.id"]), vt.InterfaceError),  # type: ignore[list-item]
        (lambda: vt.query(E, group_by="e.id"), vt.InterfaceError),
        (lambda: vt.query(E, select=["e.id"]), vt.InterfaceError),  # type: ignore[arg-type]
        (lambda: vt.query(E, where=5), vt.InterfaceError),  # type: ignore[arg-type]
        (lambda: vt.JoinEdge("product", "p.id"), vt.ProgrammingError),
        (lambda: vt.JoinEdge("e.product", "p.id", kind="cross"), vt.InterfaceError),
        (lambda: vt.JoinTable(""), vt.InterfaceError),
        (lambda: vt.sum(5), vt.InterfaceError),  # type: ignore[arg-type]
    ],
    ids=range(10),
)
def test_a_wrong_query_is_refused_when_it_is_made(make: object, kind: type[vt.Error]) -> None:
    with pytest.raises(kind):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("query", "kind", "part"),
    [
        (vt.query(vt.JoinTable("event", "e")), vt.ProgrammingError, "events"),
        (vt.query(E, select={"x": "e.price"}), vt.ProgrammingError, "price"),
        (vt.query(E, P), vt.ProgrammingError, "id"),
        (vt.query(E, where="e.cost >"), vt.ProgrammingError, ""),
        (vt.query(E, where="e.cost"), vt.ProgrammingError, ""),
        (vt.query(E, group_by=["e.product"], select={"c": "e.cost"}), vt.ProgrammingError, "cost"),
    ],
    ids=["table", "column", "equal_names", "syntax", "not_boolean", "not_grouped"],
)
def test_a_wrong_query_is_refused_when_it_is_bound(
    db: vt.Database, query: vt.Query, kind: type[vt.Error], part: str
) -> None:
    with db.snapshot() as snapshot:
        for use in (lambda: snapshot.join(query), lambda: db.create_view("v", query), lambda: db.explain_view(query)):
            with pytest.raises(kind) as raised:
                use()
            assert type(raised.value) is kind
            assert part in str(raised.value)
    assert db.views() == []
