"""The change feed of a table: its own change tables from the commit log, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

import viewtide as vt
from viewtide.remote import RemoteChanges
from viewtide.rows import Token
from viewtide.table_changes import TableChanges


def changes(db: vt.Database, since: Token | None) -> list[tuple[int, list[tuple[dict[str, object], int]]]]:
    with TableChanges(db._node, "t", since, False, None) as found:
        return [(change.watermark, [(dict(row), times) for row, times in change.rows]) for change in found]


@pytest.fixture
def db(db_path: Path) -> vt.Database:
    db = vt.connect(db_path)
    db.create_table("t", {"id": int, "n": int}, key="id")
    db.create_table("other", {"id": int}, key="id")
    return db


@pytest.mark.several_ltms
def test_what_every_commit_did(db: vt.Database, db_path: Path) -> None:
    with db.transaction() as first:
        first.insert("t", [{"id": 1, "n": 1}, {"id": 2, "n": 2}])
    with db.transaction() as tx:
        tx.insert("other", {"id": 1})
    with db.transaction() as second:
        second.update("t", 1, {"n": 5})
        second.update("t", 2, {"n": 2})
        second.insert("other", {"id": 2})
    db.add_column("t", "late", vt.column(int, default=9))
    with db.transaction() as third:
        third.delete("t", 1)
    given = changes(db, Token(first.token.commit_ts - 1))
    assert given == [
        (first.token.commit_ts, [({"id": 1, "n": 1, "late": 9}, 1), ({"id": 2, "n": 2, "late": 9}, 1)]),
        (second.token.commit_ts, [({"id": 1, "n": 1, "late": 9}, -1), ({"id": 1, "n": 5, "late": 9}, 1)]),
        (third.token.commit_ts, [({"id": 1, "n": 5, "late": 9}, -1)]),
    ]
    assert changes(db, second.token) == given[2:]
    assert changes(db, None) == []
    with (
        vt.connect(f"ipc://{db_path}/socket") as other,
        RemoteChanges(other._remote, "t", first.token, False, None) as found,
    ):
        assert [change.watermark for change in found] == [ts for ts, _ in given[1:]]
        assert found.token.commit_ts >= third.token.commit_ts
    db.close()
    db = vt.connect(db_path)
    assert changes(db, Token(first.token.commit_ts - 1)) == given, "the log is kept over a restart"
    db.close()


def test_a_feed_goes_on_where_it_was(db: vt.Database) -> None:
    feed = TableChanges(db._node, "t", None, False, None)
    assert feed._next() is None
    for number in range(3):
        with db.transaction() as tx:
            tx.insert("t", {"id": number, "n": 0})
        change = feed._next()
        assert change is not None and change.token.commit_ts == tx.token.commit_ts
        assert feed._next() is None
    db.drop_table("t")
    with pytest.raises(vt.ProgrammingError, match="was dropped"):
        list(feed)
    with pytest.raises(vt.ProgrammingError, match="no table 't'"):
        changes(db, None)
    db.close()


def test_a_bulk_load_is_no_gap(db_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One LTM: with several, no load goes beside the log."""
    pyarrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr("viewtide.bulk.STAGED_ROWS_MIN", 1)
    with vt.connect(db_path, ltms=1) as db:
        db.create_table("t", {"id": int, "n": int}, key="id")
        db.create_table("other", {"id": int}, key="id")
        with db.transaction() as tx:
            tx.insert("t", {"id": 1, "n": 1})
        feed = TableChanges(db._node, "t", tx.token, False, None)
        other = db.table("other").load([pyarrow.table({"id": list(range(50))})])
        assert list(feed) == [] and feed.token.commit_ts >= other.commit_ts, "that of another table"
        loaded = db.table("t").load([pyarrow.table({"id": list(range(10, 60)), "n": [0] * 50})])
        with pytest.raises(vt.OperationalError, match="50 rows of table 't' were loaded in bulk") as caught:
            changes(db, tx.token)
        assert f"Token({loaded.commit_ts})" in caught.value.hint
        with db.transaction() as tx:
            tx.delete("t", 10)
        assert [ts for ts, _ in changes(db, Token(loaded.commit_ts))] == [tx.token.commit_ts]


def test_a_bulk_load_over_several_ltms_is_in_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it is an ordinary transaction, however large."""
    pyarrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr("viewtide.bulk.STAGED_ROWS_MIN", 1)
    with vt.connect("memory:", ltms=3) as db:
        db.create_table("t", {"id": int, "n": int}, key="id")
        with db.transaction() as tx:
            tx.insert("t", {"id": 1, "n": 1})
        loaded = db.table("t").load([pyarrow.table({"id": list(range(10, 60)), "n": [0] * 50})])
        ((ts, rows),) = changes(db, tx.token)
        assert ts == loaded.commit_ts
        assert sorted((row["id"], times) for row, times in rows) == [(key, 1) for key in range(10, 60)]


def test_what_is_older_than_the_history_is_told() -> None:
    with vt.connect("memory:", history=0) as db:
        db.create_table("t", {"id": int, "n": int}, key="id")
        db.create_table("other", {"id": int}, key="id")
        following = TableChanges(db._node, "t", None, False, None)
        with db.transaction() as first:
            first.insert("t", {"id": 1, "n": 0})
        with db.transaction() as tx:
            tx.insert("other", {"id": 1})
        assert changes(db, first.token) == [], "nothing of it"
        with db.transaction() as second:
            second.insert("t", {"id": 2, "n": 0})
        with pytest.raises(vt.OperationalError, match=r"table 't' since .* not in the log") as caught:
            changes(db, first.token)
        assert f"the oldest token that works is Token({second.token.commit_ts})" in caught.value.hint
        assert changes(db, second.token) == []
        assert len(list(following)) == 2, "who follows is not thrown out"


def test_what_the_log_has_not_any_more_is_told() -> None:
    with vt.connect("memory:", history_bytes=0) as db:
        db.create_table("t", {"id": int, "n": int}, key="id")
        with db.transaction() as tx:
            tx.insert("t", {"id": 1, "n": 0})
        for number in range(2, 5):
            db.sql(f"INSERT INTO t VALUES ({number}, 0)")
            db._engine.checkpoint()
        with pytest.raises(vt.OperationalError, match=r"table 't' since .* not in the log") as caught:
            changes(db, tx.token)
        assert "oldest token" in caught.value.hint
