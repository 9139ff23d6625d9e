"""Views under a key that the user chose: an index over rows, a projection with another key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import viewtide as vt


@pytest.fixture
def db(db_path: Path) -> Iterator[vt.Database]:
    with vt.connect(db_path) as opened:
        opened.create_table("users", {"id": int, "email": str, "city": str, "age": int}, key="id")
        with opened.transaction() as tx:
            people = [(1, "b@x", "Rome", 30), (2, "a@x", "Oslo", 20), (3, "c@x", "Rome", 25), (4, None, "Oslo", 40)]
            tx.insert("users", [dict(zip(("id", "email", "city", "age"), row, strict=True)) for row in people])
        yield opened


def test_rows_are_found_by_the_chosen_key(db: vt.Database) -> None:
    by_email = db.create_view("by_email", "SELECT email, id, city FROM users", key="email")
    assert by_email.get("a@x") == {"email": "a@x", "id": 2, "city": "Oslo"}
    assert by_email.get(email="c@x") == by_email.get(("c@x",)) == {"email": "c@x", "id": 3, "city": "Rome"}
    assert by_email.get("nobody") is None
    assert [row.email for row in by_email.rows()] == ["a@x", "b@x", "c@x", None]
    assert [row.id for row in by_email.scan(start="b@x", stop="d")] == [1, 3]
    with db.transaction() as tx:
        tx.update("users", 2, {"email": "z@x"})
        assert tx.view("by_email").get("z@x") == {"email": "z@x", "id": 2, "city": "Oslo"}
        assert tx.view("by_email").get("a@x") is None
    assert by_email.get("z@x") == {"email": "z@x", "id": 2, "city": "Oslo"} and by_email.get("a@x") is None
    assert by_email.verify().ok


def test_equal_keys_stand_together_in_key_order(db: vt.Database) -> None:
    by_city = db.create_view("by_city", "SELECT id, city, age FROM users", key=["city", "age"])
    assert [(row.city, row.age) for row in by_city.rows()] == [("Oslo", 20), ("Oslo", 40), ("Rome", 25), ("Rome", 30)]
    assert [row.id for row in by_city.scan(start=("Rome",), stop=("Rome", 30))] == [3]
    assert by_city.get(("Oslo", 40)) == {"id": 4, "city": "Oslo", "age": 40}


def test_groups_can_be_kept_under_another_key(db: vt.Database, db_path: Path) -> None:
    sql = "SELECT city, COUNT(*) AS n, MAX(age) AS oldest FROM users GROUP BY city"
    by_age = db.create_view("by_age", sql, key="oldest")
    assert by_age.get(30) == {"city": "Rome", "n": 2, "oldest": 30}
    with db.transaction() as tx:
        tx.delete("users", 1)
    assert by_age.get(25) == {"city": "Rome", "n": 1, "oldest": 25} and by_age.get(30) is None
    assert by_age.verify().ok
    db.close()
    with vt.connect(db_path) as reopened:
        assert reopened.view("by_age").get(40) == {"city": "Oslo", "n": 2, "oldest": 40}


def test_a_view_on_such_a_view_and_a_wrong_key(db: vt.Database) -> None:
    db.create_view("by_city", "SELECT id, city FROM users", key="city")
    above = db.create_view("above", "SELECT city, COUNT(*) AS n FROM by_city GROUP BY city")
    with db.transaction() as tx:
        tx.insert("users", {"id": 5, "city": "Rome"})
    assert above.get("Rome") == {"city": "Rome", "n": 3} and above.verify().ok
    for wrong, kind in (("town", vt.ProgrammingError), ((), vt.InterfaceError), (["city", "city"], vt.InterfaceError)):
        with pytest.raises(kind):
            db.create_view("v", "SELECT id, city FROM users", key=wrong)
    assert db.views() == ["by_city", "above"]


def test_indexes_that_views_made_go_with_the_last_view_that_needs_them(db: vt.Database) -> None:
    db.create_table("cities", {"name": str, "country": str}, key="name")
    sql = "SELECT u.id, c.country FROM users u JOIN cities c ON c.name = u.city"
    for name in ("first", "second"):
        db.create_view(name, sql)

    def columns() -> list[tuple[int, ...]]:
        return [index.columns for index in db._catalog().tables["users"].indexes]

    assert columns() == [(2,)]
    db.drop_view("first")
    assert columns() == [(2,)] and db.view("second").verify().ok
    db.drop_view("second")
    assert columns() == []
    db.create_view("third", sql)
    db.create_index("users", "city")  # now it is the user's
    db.drop_view("third")
    assert columns() == [(2,)]
    db.drop_column("users", "city")  # and with it its index
    assert columns() == []


def test_a_branch_that_is_empty_keeps_nothing_and_harms_nothing(db: vt.Database, db_path: Path) -> None:
    """WHERE rules out the rows that only the left side has, and with them the hidden view that would find these."""
    db.create_table("orders", {"id": int, "user": int}, key="id")
    sql = "SELECT u.id AS u, o.id FROM users u FULL JOIN orders o ON o.user = u.id WHERE o.id > 0"
    view = db.create_view("v", sql)
    read = {name for each in db._catalog().views.values() for name in each.reads}
    assert {each.name for each in db._catalog().views.values() if each.hidden} <= read
    db.create_view("w", "SELECT city, COUNT(*) AS n FROM users GROUP BY city")
    db.drop_view("w")
    db.create_index("users", "age")  # compiles all plans again
    with db.transaction() as tx:
        tx.insert("orders", [{"id": 1, "user": 1}, {"id": 2, "user": 99}, {"id": -1, "user": 2}])
    assert view.rows() == [{"u": 1, "id": 1}, {"u": None, "id": 2}] and view.verify().ok
    db.close()
    with vt.connect(db_path) as reopened:
        assert reopened.view("v").verify().ok


def test_long_keys_are_told_apart(db: vt.Database) -> None:
    """Keys are cut where they are too long for the store; what begins alike is told apart by the values."""
    long = ["p" * 470, "p" * 470 + "x" * 20, "p" * 470 + "x" * 20 + "1"]
    with db.transaction() as tx:
        tx.insert("users", [{"id": 10 + place, "email": text} for place, text in enumerate(long)])
    by_email = db.create_view("by_email", "SELECT email, id FROM users", key="email")
    groups = db.create_view("groups", "SELECT email, COUNT(*) AS n FROM users GROUP BY email")
    for place, text in enumerate(long):
        assert by_email.get(text) == {"email": text, "id": 10 + place}
    assert by_email.get("p" * 470 + "y") is None
    for view in (by_email, groups):
        assert [row.email for row in view.scan(start="b", stop=long[0])] == ["b@x", "c@x"]
        assert [row.email for row in view.scan(start=long[0], stop=long[2])] == long[:2]
        assert view.scan(start=long[2], stop=long[0]).rowcount == 0


def test_an_index_of_another_view_may_come_and_go(db: vt.Database) -> None:
    """A plan keeps to the indexes that were chosen for it, however useful those are that come later."""
    db.create_table("t", {"id": int, "g": int, "h": int, "k": int}, key="id", indexes=["g"])
    db.create_table("r", {"id": int, "g": int, "h": int, "k": int}, key="id")
    db.create_view("a", "SELECT r.id, t.id AS t FROM r JOIN t ON r.g = t.g AND r.h = t.h AND r.k = t.k")
    db.create_view("d", "SELECT r.id, t.id AS t FROM r JOIN t ON r.h = t.h AND r.k = t.k")
    with pytest.raises(vt.ProgrammingError, match="'a'"):
        db.drop_index("t", "g")
    db.drop_view("d")
    with db.transaction() as tx:
        tx.insert("t", {"id": 1, "g": 1, "h": 2, "k": 3})
        tx.insert("r", {"id": 5, "g": 1, "h": 2, "k": 3})
    assert db.view("a").rows() == [{"id": 5, "t": 1}]


def test_a_unique_index_that_is_refused_leaves_the_views_theirs(db: vt.Database) -> None:
    db.create_table("cities", {"name": str}, key="name")
    view = db.create_view("v", "SELECT u.id FROM users u JOIN cities c ON c.name = u.city")
    with pytest.raises(vt.IntegrityError):
        db.sql("CREATE UNIQUE INDEX one ON users (city)")
    with db.transaction() as tx:
        tx.insert("cities", {"name": "Rome"})
    assert [row.id for row in view.rows()] == [1, 3] and view.verify().ok


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) AS n FROM t a RIGHT JOIN t b ON a.id = b.x RIGHT JOIN t c ON b.y = c.y WHERE b.x > a.id",
        "SELECT b.x FROM t a FULL JOIN t b ON a.x = b.id FULL JOIN t c ON c.y = b.y JOIN u d ON a.x = d.id",
    ],
    ids=["right", "full"],
)
def test_an_empty_branch_below_another_outer_join(db: vt.Database, sql: str) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY, x int NOT NULL, y int); CREATE TABLE u (id int PRIMARY KEY)")
    view = db.create_view("v", sql)
    db.sql("INSERT INTO t VALUES (1, 2, 3), (2, 3, 3), (3, 1, NULL); INSERT INTO u VALUES (2), (3)")
    db.create_index("t", "y")
    db.sql("DELETE FROM t WHERE id = 3")
    assert view.verify().ok
