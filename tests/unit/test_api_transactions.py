"""Transactions and snapshots: writes and what they return, own writes, the end, tokens, retries."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest

import viewtide as vt
from viewtide import database
from viewtide.database import Database

pytestmark = pytest.mark.served


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as opened:
        opened.create_table(
            "t", {"id": int, "g": str, "x": vt.column(int, default=1), "y": int}, key="id", indexes=["g"]
        )
        opened.create_table("names", {"g": str, "name": str}, key="g")
        opened.create_view("sums", "SELECT g, SUM(x) AS x, COUNT(*) AS n FROM t GROUP BY g")
        opened.create_view("named", "SELECT n.name, SUM(t.x) AS x FROM t JOIN names n ON t.g = n.g GROUP BY n.name")
        with opened.transaction() as tx:
            tx.insert("t", [_row(1, "a", 10, 100), _row(2, "a", 20, 200), _row(3, "b", 30, 300)])
            tx.insert("names", [{"g": "a", "name": "A"}, {"g": "b", "name": "B"}])
        yield opened


def _row(number: int, group: str, x: int, y: int | None = None) -> dict[str, object]:
    return {"id": number, "g": group, "x": x, "y": y}


def _all(db: vt.Database) -> dict[object, tuple[object, ...]]:
    with db.snapshot() as snapshot:
        return {row["id"]: tuple(row.values())[1:] for row in snapshot.scan("t")}


def _right(db: vt.Database) -> bool:
    return all(db.view(name).verify().ok for name in db.views())


# --- writes


def test_insert_one_many_and_any_iterable(db: vt.Database) -> None:
    with db.transaction() as tx:
        tx.insert("t", {"id": 4, "g": "c"})
        tx.insert("t", [_row(5, "c", 5), _row(6, "c", 6)])
        tx.insert("t", (_row(number, "d", number) for number in (7, 8)))
        row = tx.get("t", 4)
        assert row is not None
        tx.insert("t", {**row, "id": 9})
        tx.insert("t", [])
    assert set(_all(db)) == set(range(1, 10))
    assert _all(db)[4] == _all(db)[9] == ("c", 1, None)
    assert _right(db)


def test_rows_of_other_reads_can_be_inserted(db: vt.Database) -> None:
    db.create_table("copy", {"id": int, "g": str, "x": int, "y": int}, key="id")
    with db.transaction() as tx:
        tx.insert("copy", tx.scan("t"))
        assert tx.scan("copy") == list(tx.scan("t"))


def test_upsert_inserts_or_changes_the_columns_given(db: vt.Database) -> None:
    with db.transaction() as tx:
        tx.upsert("t", [{"id": 1, "y": 7}, {"id": 9, "g": "z"}, _row(2, "b", 0)])
        tx.upsert("t", {"id": 9, "y": 3})
    assert _all(db) == {1: ("a", 10, 7), 2: ("b", 0, None), 3: ("b", 30, 300), 9: ("z", 1, 3)}
    assert _right(db)


def test_update_says_whether_the_row_existed(db: vt.Database) -> None:
    with db.transaction() as tx:
        assert tx.update("t", 1, {"x": 11}) is True
        assert tx.update("t", 99, {"x": 11}) is False
        assert tx.update("t", 1, {"y": None}) is True
        assert tx.update("t", 2, {}) is True
    assert _all(db) == {1: ("a", 11, None), 2: ("a", 20, 200), 3: ("b", 30, 300)}
    assert _right(db)


def test_delete_says_whether_the_row_existed(db: vt.Database) -> None:
    with db.transaction() as tx:
        assert tx.delete("t", 1) is True
        assert tx.delete("t", 1) is False
        assert tx.delete("t", id=99) is False
        assert tx.delete("t", id=3) is True
    assert set(_all(db)) == {2}
    assert _right(db)


def test_an_update_may_change_the_key(db: vt.Database) -> None:
    with db.transaction() as tx:
        assert tx.update("t", 1, {"id": 10, "x": 11}) is True
        assert tx.update("t", 99, {"id": 100}) is False
        assert tx.get("t", 1) is None and tx.get("t", 10) == _row(10, "a", 11, 100)
        assert tx.update("t", 10, {"id": 10, "x": 12}) is True
        with pytest.raises(vt.IntegrityError):
            tx.update("t", 10, {"id": 2})
        assert sorted(row["x"] for row in tx.find("t", g="a")) == [12, 20]  # type: ignore[type-var]
    assert _all(db) == {2: ("a", 20, 200), 3: ("b", 30, 300), 10: ("a", 12, 100)}
    assert _right(db)


def test_keys_can_be_swapped_within_a_transaction(db: vt.Database) -> None:
    with db.transaction() as tx:
        assert tx.update("t", 1, {"id": 0})
        assert tx.update("t", 3, {"id": 1})
        assert tx.update("t", 0, {"id": 3})
    assert _all(db) == {1: ("b", 30, 300), 2: ("a", 20, 200), 3: ("a", 10, 100)}
    assert _right(db)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_that_has_ended_is_not_entered_again(db: vt.Database, end: str) -> None:
    """What stood in the block was run, and refused only by its first read or write."""
    with db.transaction() as tx:
        tx.update("t", 1, {"x": 11})
        if end == "rollback":
            tx.rollback()
    with pytest.raises(vt.InterfaceError, match=r"committed|rolled back") as raised, tx:
        pytest.fail("entered")
    assert "db.transaction()" in raised.value.hint


@pytest.mark.embedded("an insert is kept aside: a key that exists is found at the commit, or by the next read")
def test_writes_of_one_row_follow_each_other(db: vt.Database) -> None:
    """All sequences of four writes on one row, existing and not, against a dict."""
    for number, start in ((1, dict(_row(1, "a", 10, 100))), (50, None)):
        for names in itertools.product(("insert", "upsert", "part", "update", "delete", "move"), repeat=3):
            tx = db.transaction()
            model: dict[str, object] | None = None if start is None else dict(start)
            for place, name in enumerate(names):
                if name == "insert":
                    if model is None:
                        tx.insert("t", _row(number, "c", place))
                        model = _row(number, "c", place)
                    else:
                        with pytest.raises(vt.IntegrityError):
                            tx.insert("t", _row(number, "c", place))
                elif name == "upsert":
                    tx.upsert("t", _row(number, "d", place))
                    model = _row(number, "d", place)
                elif name == "part":
                    tx.upsert("t", {"id": number, "y": place})
                    model = {**(model or {"id": number, "g": None, "x": 1}), "y": place}
                elif name == "update":
                    assert tx.update("t", number, {"x": place + 100}) == (model is not None)
                    model = None if model is None else {**model, "x": place + 100}
                elif name == "move":
                    assert tx.update("t", number, {"id": 77}) == (model is not None)
                    assert tx.update("t", 77, {"id": number}) == (model is not None)
                else:
                    assert tx.delete("t", number) == (model is not None)
                    model = None
                assert tx.get("t", number) == model, names
            group = None if model is None else model["g"]
            assert [row for row in tx.find("t", g=group) if row["id"] == number] == ([] if model is None else [model])
            before = tx.view("sums").rows()
            tx.commit()
            assert _all(db).get(number) == (None if model is None else tuple(model.values())[1:]), names
            assert db.view("sums").rows() == list(before), names
            with db.transaction() as tx:
                if start is None:
                    tx.delete("t", number)
                else:
                    tx.upsert("t", start)
    assert set(_all(db)) == {1, 2, 3}
    assert _right(db)


@pytest.mark.embedded("an insert is kept aside: a key that exists is found at the commit, or by the next read")
def test_a_statement_that_fails_changes_nothing_and_the_transaction_goes_on(db: vt.Database) -> None:
    with db.transaction() as tx:
        with pytest.raises(vt.IntegrityError):
            tx.insert("t", [_row(8, "z", 1), _row(1, "z", 1)])
        with pytest.raises(vt.IntegrityError):
            tx.insert("t", [_row(8, "z", 1), _row(8, "z", 2)])
        with pytest.raises(vt.DataError):
            tx.upsert("t", [_row(9, "z", 1), {"id": 10, "g": 5}])
        with pytest.raises(vt.DataError):
            tx.update("t", 1, {"x": 1, "y": "no"})
        assert tx.get_many("t", [8, 9]) == [None, None]
        assert tx.get("t", 1) == _row(1, "a", 10, 100)
        tx.insert("t", _row(4, "c", 4))
    assert set(_all(db)) == {1, 2, 3, 4}
    assert _right(db)


# --- own writes


def test_own_writes_are_seen_by_every_read_and_by_nobody_else(db: vt.Database) -> None:
    query = vt.query(
        vt.JoinTable("t"), vt.JoinTable("names", "n"), on=[vt.JoinEdge("t.g", "n.g")],
        select={"id": "t.id", "name": "n.name", "x": "t.x"},
    )  # fmt: skip
    tx = db.transaction()
    tx.insert("t", _row(4, "b", 40))
    tx.update("t", 1, {"x": 11})
    tx.delete("t", 2)
    tx.update("t", 3, {"g": "c"})
    tx.insert("names", {"g": "c", "name": "C"})

    assert tx.get("t", 4) == _row(4, "b", 40) and tx.get("t", 2) is None
    assert [row and row["x"] for row in tx.get_many("t", [1, 2, 3, 4])] == [11, None, 30, 40]
    assert [row["id"] for row in tx.find("t", g="a")] == [1]
    assert [row["id"] for row in tx.find("t", g="b")] == [4]
    assert [row["id"] for row in tx.find("t", g="c")] == [3]
    assert [row["id"] for row in tx.scan("t")] == [1, 3, 4]
    assert [row["id"] for row in tx.scan("t", 2, 5, 1)] == [3]
    assert tx.view("sums").rows() == [
        {"g": "a", "x": 11, "n": 1}, {"g": "b", "x": 40, "n": 1}, {"g": "c", "x": 30, "n": 1},
    ]  # fmt: skip
    assert tx.view("sums").get("c") == {"g": "c", "x": 30, "n": 1}
    assert tx.view("sums").scan("b", "c") == [{"g": "b", "x": 40, "n": 1}]
    assert tx.view("named").rows() == [{"name": "A", "x": 11}, {"name": "B", "x": 40}, {"name": "C", "x": 30}]
    assert sorted(tuple(row.values()) for row in tx.join(query)) == [(1, "A", 11), (3, "C", 30), (4, "B", 40)]
    assert [row["id"] for row in tx.join(query, start={"n.g": "b"})] == [4]

    assert _all(db) == {1: ("a", 10, 100), 2: ("a", 20, 200), 3: ("b", 30, 300)}
    assert db.view("sums").rows() == [{"g": "a", "x": 30, "n": 2}, {"g": "b", "x": 30, "n": 1}]
    seen = list(tx.view("sums").rows())
    tx.commit()
    assert db.view("sums").rows() == seen
    assert _right(db)


def test_a_view_inside_the_transaction_follows_each_write(db: vt.Database) -> None:
    with db.transaction() as tx:
        view = tx.view("sums")
        for x in range(5):
            tx.upsert("t", _row(1, "a", x))
            assert view.get("a") == {"g": "a", "x": 20 + x, "n": 2}
        tx.delete("t", 1)
        tx.delete("t", 2)
        assert view.get("a") is None
        assert [row["g"] for row in view.rows()] == ["b"]


@pytest.mark.embedded("looks inside the database of this process")
def test_reading_after_many_writes_does_not_take_time_for_each_write(db: vt.Database) -> None:
    """Work per read, counted: 20 times the writes must not make a read 20 times as dear."""

    def calls(writes_count: int) -> int:
        counted = 0
        with db.transaction() as tx:
            tx.upsert("t", [{"id": 1000 + number, "y": 1} for number in range(writes_count)])
            read = tx._ltm.read

            def counting(*args: object) -> object:
                nonlocal counted
                counted += 1
                return read(*args)  # type: ignore[arg-type]

            tx._ltm.read = counting  # type: ignore[method-assign,assignment]
            try:
                for number in range(20):
                    assert tx.get("t", 1000 + number) is not None
            finally:
                tx._ltm.read = read  # type: ignore[method-assign]
            tx.rollback()
        return counted

    assert calls(400) <= 2 * calls(20) + 20 * 2 + 400


# --- the end


def test_an_exception_rolls_back_and_goes_on_up(db: vt.Database) -> None:
    with pytest.raises(ZeroDivisionError), db.transaction() as tx:
        tx.insert("t", _row(4, "a", 1))
        raise ZeroDivisionError
    assert 4 not in _all(db)
    with pytest.raises(vt.InterfaceError):
        tx.get("t", 1)


def test_commit_and_rollback_by_hand(db: vt.Database) -> None:
    tx = db.transaction()
    tx.insert("t", _row(4, "a", 1))
    token = tx.commit()
    assert token == tx.token and 4 in _all(db)
    with db.transaction() as tx:
        tx.delete("t", 4)
        tx.rollback()
    assert 4 in _all(db)
    with db.transaction() as tx:
        tx.delete("t", 4)
        tx.commit()
    assert 4 not in _all(db)


USES: dict[str, Callable[[vt.Transaction], object]] = {
    "get": lambda tx: tx.get("t", 1),
    "get_many": lambda tx: tx.get_many("t", [1]),
    "find": lambda tx: tx.find("t", g="a"),
    "scan": lambda tx: tx.scan("t"),
    "join": lambda tx: tx.join(vt.query(vt.JoinTable("t"))),
    "view_get": lambda tx: tx.view("sums").get("a"),
    "view_rows": lambda tx: tx.view("sums").rows(),
    "insert": lambda tx: tx.insert("t", _row(9, "a", 1)),
    "upsert": lambda tx: tx.upsert("t", _row(9, "a", 1)),
    "update": lambda tx: tx.update("t", 1, {"x": 1}),
    "delete": lambda tx: tx.delete("t", 1),
    "commit": lambda tx: tx.commit(),
    "rollback": lambda tx: tx.rollback(),
}


@pytest.mark.parametrize("read_before", [False, True], ids=["fresh", "after_a_read"])
@pytest.mark.parametrize("how", ["commit", "rollback", "conflict"])
@pytest.mark.parametrize("use", USES)
def test_a_finished_transaction_is_an_interface_error(db: vt.Database, use: str, how: str, read_before: bool) -> None:
    tx = db.transaction()
    if read_before:
        tx.scan("t")
    if how == "conflict":
        tx.get("t", 1)
        tx.update("t", 2, {"x": 1})
        with db.transaction() as other:
            other.update("t", 1, {"x": 99})
        with pytest.raises(vt.TransactionConflict):
            tx.commit()
    elif how == "commit":
        tx.commit()
    else:
        tx.rollback()
    before = _all(db)
    with pytest.raises(vt.InterfaceError) as raised:
        USES[use](tx)
    assert raised.value.hint and not raised.value.retryable
    assert _all(db) == before


@pytest.mark.parametrize("use", ["get", "get_many", "find", "scan", "join", "view_get", "view_rows"])
def test_a_closed_snapshot_is_an_interface_error(db: vt.Database, use: str) -> None:
    with db.snapshot() as snapshot:
        USES[use](snapshot)  # type: ignore[arg-type]
        view = snapshot.view("sums")
    with pytest.raises(vt.InterfaceError):
        USES[use](snapshot)  # type: ignore[arg-type]
    with pytest.raises(vt.InterfaceError):
        view.get("a")
    snapshot.close()


def test_an_ended_reader_holds_no_versions(db: vt.Database) -> None:
    pins = db._engine.ltm.horizon.pins
    before = dict(pins)
    with db.snapshot() as snapshot:
        assert len(pins) == len(before) + 1
        snapshot.scan("t")
    with db.transaction() as tx:
        tx.get("t", 1)
        tx.insert("t", _row(4, "a", 1))
    tx = db.transaction()
    tx.get("t", 1)
    tx.update("t", 2, {"x": 0})
    with db.transaction() as other:
        other.update("t", 1, {"x": 0})
    with pytest.raises(vt.TransactionConflict):
        tx.commit()
    tx = db.transaction()
    tx.scan("t")
    tx.rollback()
    with pytest.raises(vt.IntegrityError), db.transaction() as tx:
        tx.insert("t", _row(1, "a", 1))
    db.view("sums").verify()
    assert pins == before


@pytest.mark.embedded("the node lets go of what a client forgot when its lease ends")
def test_a_reader_that_was_forgotten_holds_no_versions(db: vt.Database) -> None:
    """Nobody can end it any more, so it must not keep superseded versions for ever."""
    pins = db._engine.ltm.horizon.pins
    before = dict(pins)
    tx = db.transaction()
    tx.get("t", 1)
    snapshot = db.snapshot()
    snapshot.get("t", 1)
    del tx, snapshot
    assert pins == before


# --- tokens


def test_tokens_are_in_the_order_of_commits(db: vt.Database) -> None:
    tokens = []
    for number in range(10, 30):
        with db.transaction() as tx:
            tx.insert("t", _row(number, "a", 1))
        tokens.append(tx.token)
    assert tokens == sorted(tokens) and len(set(tokens)) == 20
    assert all(isinstance(token, vt.Token) for token in tokens)


def test_the_token_of_a_read_only_transaction_is_its_read_timestamp(db: vt.Database) -> None:
    with db.transaction() as first:
        first.insert("t", _row(4, "a", 1))
    with db.transaction() as reader:
        reader.get("t", 1)
        with db.transaction() as second:
            second.insert("t", _row(5, "a", 1))
    assert first.token.commit_ts == reader.token.commit_ts < second.token.commit_ts
    if isinstance(db, Database):  # a served node's clients do not know what a session wrote
        assert first.token < reader.token < second.token
    with db.snapshot() as snapshot:
        assert snapshot.token.commit_ts == second.token.commit_ts == snapshot.scan("t").watermark


def test_a_result_that_has_a_commit_is_not_before_it(db: vt.Database) -> None:
    with db.transaction() as tx:
        tx.insert("t", _row(4, "a", 1))
    with db.snapshot() as snapshot:
        assert snapshot.token == snapshot.scan("t").token > tx.token
    assert db.sql("SELECT * FROM t").token >= tx.token
    with db.transaction() as later:
        later.insert("t", _row(5, "a", 1))
    assert later.token > tx.token


def test_a_token_exists_after_the_commit_only(db: vt.Database) -> None:
    tx = db.transaction()
    with pytest.raises(vt.InterfaceError):
        _ = tx.token
    tx.rollback()
    with pytest.raises(vt.InterfaceError):
        _ = tx.token


def test_what_was_acknowledged_is_seen_by_every_later_reader(db: vt.Database) -> None:
    for number in range(10, 40):
        with db.transaction() as tx:
            tx.insert("t", _row(number, "a", 1))
        with db.snapshot() as snapshot:
            assert snapshot.token >= tx.token and not snapshot.token < tx.token
            assert snapshot.get("t", number) is not None
        assert db.view("sums").get("a", at_least=tx.token) is not None


# --- snapshots


def test_a_snapshot_is_one_moment_of_tables_and_views(db: vt.Database) -> None:
    with db.snapshot() as snapshot:
        with db.transaction() as tx:
            tx.delete("t", 1)
            tx.update("names", "a", {"name": "Z"})
        assert snapshot.get("t", 1) is not None
        assert snapshot.view("sums").get("a") == {"g": "a", "x": 30, "n": 2}
        assert snapshot.view("named").rows() == [{"name": "A", "x": 30}, {"name": "B", "x": 30}]
    with db.snapshot() as snapshot:
        assert snapshot.view("named").rows() == [{"name": "B", "x": 30}, {"name": "Z", "x": 20}]


def test_a_snapshot_has_no_writes(db: vt.Database) -> None:
    with db.snapshot() as snapshot:
        assert not any(hasattr(snapshot, name) for name in ("insert", "upsert", "update", "delete", "commit"))


# --- run and transactional


def test_run_returns_and_commits(db: vt.Database) -> None:
    def add(tx: vt.Transaction, number: int, *, x: int) -> str:
        tx.insert("t", _row(number, "a", x))
        return f"added {number}"

    assert db.run(add, 4, x=5) == "added 4"
    assert _all(db)[4] == ("a", 5, None)


def test_transactional_is_a_decorator(db: vt.Database) -> None:
    @db.transactional
    def double(tx: vt.Transaction, number: int) -> int:
        """Twice as much."""
        row = tx.get("t", number)
        assert row is not None and isinstance(row["x"], int)
        tx.update("t", number, {"x": row["x"] * 2})
        return row["x"] * 2

    assert double(1) == 20 and double(1) == 40
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")
    assert _all(db)[1] == ("a", 40, 100)


def test_run_repeats_conflicts(db: vt.Database) -> None:
    attempts = []

    def increment(tx: vt.Transaction) -> None:
        row = tx.get("t", 1)
        assert row is not None and isinstance(row["x"], int)
        attempts.append(row["x"])
        if len(attempts) < 4:
            with db.transaction() as other:
                other.update("t", 1, {"x": row["x"] + 100})
        tx.update("t", 1, {"x": row["x"] + 1})

    db.run(increment)
    assert attempts == [10, 110, 210, 310]
    assert _all(db)[1] == ("a", 311, 100)


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError(), vt.DataError("x"), vt.IntegrityError("x"), vt.CommitUnknown("x"), KeyboardInterrupt()],
)
def test_run_does_not_repeat_what_cannot_be_repeated(db: vt.Database, error: BaseException) -> None:
    attempts = []

    def fail(tx: vt.Transaction) -> None:
        attempts.append(1)
        tx.insert("t", _row(4, "a", 1))
        raise error

    with pytest.raises(type(error)):
        db.run(fail)
    assert len(attempts) == 1 and 4 not in _all(db)


@pytest.mark.parametrize("kind", [vt.TransactionConflict, vt.Busy, vt.Unavailable])
def test_run_repeats_what_may_be_repeated(db: vt.Database, kind: type[vt.Error]) -> None:
    attempts = []

    def fail_twice(tx: vt.Transaction) -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise kind("again")
        return len(attempts)

    assert db.run(fail_twice) == 3


def test_run_gives_up_at_its_deadline(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "RUN_DEADLINE_MS", 20)
    attempts = []

    def conflict(tx: vt.Transaction) -> None:
        attempts.append(1)
        raise vt.TransactionConflict("never")

    with pytest.raises(vt.TransactionConflict):
        db.run(conflict)
    assert len(attempts) > 1


def test_a_transaction_that_ended_inside_run_stays_as_it_is(db: vt.Database) -> None:
    def roll_back(tx: vt.Transaction) -> str:
        tx.insert("t", _row(4, "a", 1))
        tx.rollback()
        return "done"

    assert db.run(roll_back) == "done"
    assert 4 not in _all(db)


# --- many threads


def test_threads_share_a_database_and_flushes(db: vt.Database) -> None:
    before = db.status()
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait()
        for turn in range(40):
            with db.transaction() as tx:
                tx.insert("t", _row(1000 + number * 100 + turn, "a", 1))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = db.status()
    assert after.commits - before.commits == 320
    assert after.flushes - before.flushes <= 320
    assert db.view("sums").get("a") == {"g": "a", "x": 30 + 320, "n": 2 + 320}
    assert _right(db)


def test_status_counts_commits_not_attempts(db: vt.Database) -> None:
    before = db.status()
    tx = db.transaction()
    tx.get("t", 1)
    tx.update("t", 2, {"x": 1})
    with db.transaction() as other:
        other.update("t", 1, {"x": 99})
    with pytest.raises(vt.TransactionConflict):
        tx.commit()
    assert db.status().commits - before.commits == 1


def test_many_rows_through_a_small_cache() -> None:
    """More rows than memory keeps, in one transaction and in many, joined through an index."""
    with vt.connect("memory:", cache_rows=100) as db:
        db.create_table("p", {"id": int, "c": int}, key="id")
        db.create_table("e", {"id": int, "p": int, "x": int}, key="id", indexes=["p"])
        for name, sql in {
            "joined": "SELECT p.c, SUM(e.x) AS x, COUNT(*) AS n FROM e JOIN p ON e.p = p.id GROUP BY p.c",
            "by_p": "SELECT p, SUM(x) AS x FROM e GROUP BY p",
            "plain": "SELECT id, x * 2 AS xx FROM e",
        }.items():
            db.create_view(name, sql)
        with db.transaction() as tx:
            tx.insert("p", [{"id": i, "c": i % 7} for i in range(300)])
            tx.insert("e", [{"id": i, "p": i % 300, "x": i} for i in range(900)])
        with db.transaction() as tx:
            for i in range(300):
                assert tx.update("p", i, {"c": (i + 1) % 5})
            for i in range(0, 900, 2):
                assert tx.update("e", i, {"x": -i})
        for i in range(0, 900, 50):
            with db.transaction() as tx:
                tx.delete("e", i)
                tx.upsert("p", {"id": i % 300, "c": 99})
        assert _right(db)
        assert db.status().checkpoints > 0
