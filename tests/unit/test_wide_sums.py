"""SUM of integers has more than 64 bits where it needs them: such a sum is a key like others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import viewtide as vt

BIG = 2**63 - 1


@pytest.fixture
def db(db_path: Path) -> Iterator[vt.Database]:
    with vt.connect(db_path) as opened:
        opened.create_table("t", {"id": int, "g": int, "x": int}, key="id")
        opened.create_view("sums", "SELECT g, SUM(x) AS s FROM t GROUP BY g")
        with opened.transaction() as tx:
            values = {1: [BIG, BIG, 5], 2: [-BIG, -BIG], 3: [BIG], 4: [1], 5: [BIG, 1], 6: [-BIG, -1, -1], 7: [1]}
            pairs = [(g, x) for g, some in values.items() for x in some]
            tx.insert("t", [{"id": number, "g": g, "x": x} for number, (g, x) in enumerate(pairs)])
        yield opened


SUMS = {1: 2 * BIG + 5, 2: -2 * BIG, 3: BIG, 4: 1, 5: BIG + 1, 6: -BIG - 2, 7: 1}


def test_they_are_ordered_and_limited(db: vt.Database) -> None:
    down = db.create_view("down", "SELECT g, SUM(x) AS s FROM t GROUP BY g ORDER BY s DESC LIMIT 4")
    up = db.create_view("up", "SELECT g, s FROM sums ORDER BY s LIMIT 4")
    assert [row.g for row in down.rows()] == [1, 5, 3, 4]
    assert [row.g for row in up.rows()] == [2, 6, 4, 7]
    with db.transaction() as tx:
        tx.delete("t", 0)
        assert [row.s for row in tx.view("down").rows()] == [BIG + 5, BIG + 1, BIG, 1]
    assert down.verify().ok and up.verify().ok


def test_they_are_keys_of_groups_sets_and_joins(db: vt.Database, db_path: Path) -> None:
    by_sum = db.create_view("by_sum", "SELECT s, COUNT(*) AS n FROM sums GROUP BY s")
    distinct = db.create_view("distinct_sums", "SELECT DISTINCT s FROM sums")
    union = db.create_view("all_sums", "SELECT s FROM sums UNION SELECT g FROM sums")
    chosen = db.create_view("chosen", "SELECT g, s FROM sums", key="s")
    ends = db.create_view("ends", "SELECT MIN(s) AS low, MAX(s) AS high, COUNT(DISTINCT s) AS n FROM sums")
    selves = db.create_view("selves", "SELECT a.g AS a, b.g AS b FROM sums a JOIN sums b ON a.s = b.s")
    # Tables have no such integers: nothing is found there, whatever the path.
    by_key = db.create_view("by_key", "SELECT sums.g, t.id FROM sums JOIN t ON t.id = sums.s")
    by_index = db.create_view("by_index", "SELECT sums.g, t.id FROM sums JOIN t ON t.x = sums.s")
    absent = db.create_view("absent", "SELECT g FROM sums WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.x = sums.s)")
    views = (by_sum, distinct, union, chosen, ends, selves, by_key, by_index, absent)

    def check() -> None:
        assert [row.s for row in by_sum.rows()] == sorted(set(SUMS.values()))
        assert by_sum.get(2 * BIG + 5) == {"s": 2 * BIG + 5, "n": 1} and by_sum.get(1).n == 2
        assert [row.s for row in by_sum.scan(start=BIG, stop=2**70)] == [BIG, BIG + 1, 2 * BIG + 5]
        assert [row.s for row in distinct.rows()] == sorted(set(SUMS.values()))
        assert {row.s for row in union.rows()} == {*SUMS.values(), *SUMS}
        assert chosen.get(-2 * BIG) == {"g": 2, "s": -2 * BIG}
        assert ends.get() == {"low": -2 * BIG, "high": 2 * BIG + 5, "n": 6}
        assert sorted(tuple(row.values()) for row in selves.rows()) == [
            *((1, 1), (2, 2), (3, 3), (4, 4), (4, 7), (5, 5), (6, 6), (7, 4), (7, 7))
        ]
        assert {row.g for row in by_key.rows()} == {4, 7}
        assert {row.g for row in by_index.rows()} == {3, 4, 7}
        assert {row.g for row in absent.rows()} == {1, 2, 5, 6}
        for view in views:
            assert view.verify().ok, view

    check()
    with db.transaction() as tx:
        tx.insert("t", [{"id": 90 + n, "g": n, "x": BIG} for n in range(1, 8)])
        assert tx.view("ends").get() == {"low": -BIG, "high": 3 * BIG + 5, "n": 6}
    with db.transaction() as tx:
        for n in range(1, 8):
            tx.delete("t", 90 + n)
    check()
    rows = {name: list(map(dict, db.view(name).rows())) for name in db.views()}
    db.close()
    with vt.connect(db_path) as reopened:
        assert {name: list(map(dict, reopened.view(name).rows())) for name in reopened.views()} == rows


def test_queries_look_them_up(db: vt.Database) -> None:
    def pairs(sql: str) -> list[tuple[object, ...]]:
        return sorted(tuple(row.values()) for row in db.sql(sql))

    assert pairs("SELECT sums.g, t.id FROM sums JOIN t ON t.id = sums.s") == [(4, 1), (7, 1)]
    db.create_table("pair", {"a": int, "b": int}, key=["a", "b"], indexes=["b"])
    db.sql(f"INSERT INTO pair VALUES ({BIG}, 1), (1, {BIG})")
    assert pairs("SELECT sums.g, p.b FROM sums JOIN pair p ON p.a = sums.s") == [(3, 1), (4, BIG), (7, BIG)]
    assert pairs("SELECT sums.g, p.a FROM sums JOIN pair p ON p.b = sums.s") == [(3, 1), (4, BIG), (7, BIG)]
    assert pairs("SELECT g FROM sums WHERE s > 9223372036854775806") == [(1,), (3,), (5,)]
