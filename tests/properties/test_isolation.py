"""Strict serializability of interactive transactions, anomaly by anomaly, then at random.

Every anomaly has two tests: that it cannot happen, and that the same interleaving shows it once the mechanism which
prevents it is taken out. So the first kind is known to test something. Interleavings are two transaction objects in
one thread: nothing depends on timing.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

import pytest

import viewtide as vt
from viewtide.coordinator.embedded import Engine
from viewtide.coordinator.transaction import Request
from viewtide.ltm.ports import Cell
from viewtide.ltm.two_phase.participant import Participant
from viewtide.ltm.versions import Horizon
from viewtide.reads import Reads

#: What happens between the reads of one transaction and its commit, besides the other transaction.
Between = Callable[[vt.Database], None]

pytestmark = pytest.mark.several_ltms


def nothing(db: vt.Database) -> None:
    """All versions stay in memory."""


def checkpoint(db: vt.Database) -> None:
    """Versions are in the store, the newest in memory, too."""
    db._engine.checkpoint()


def checkpoint_and_forget(db: vt.Database) -> None:
    """Versions are in the store only."""
    ltm = db._engine.ltm
    db._engine.checkpoint()
    with ltm.lock:
        for versions in ltm.tables.versions.values():
            versions.age()
            versions.age()


BETWEEN = pytest.mark.parametrize("between", [nothing, checkpoint, checkpoint_and_forget], ids=lambda f: f.__name__)


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as opened:
        opened.create_table("accounts", {"id": int, "branch": str, "balance": int, "note": str}, key="id")
        opened.create_index("accounts", "branch")
        opened.create_view(
            "by_branch", "SELECT branch, SUM(balance) AS total, COUNT(*) AS n FROM accounts GROUP BY branch"
        )
        with opened.transaction() as tx:
            tx.insert("accounts", [_account(1), _account(2), _account(5, "south")])
        yield opened


@pytest.fixture
def unvalidated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit without looking whether what was read still holds."""

    def accept(self: Engine, request: Request) -> None:
        return None

    monkeypatch.setattr(Engine, "_validate", accept)
    monkeypatch.setattr(Participant, "_has_changed", lambda self, ask: False)


def _account(number: int, branch: str = "north", balance: int = 50) -> dict[str, object]:
    return {"id": number, "branch": branch, "balance": balance}


def _balance(reads: vt.Transaction | vt.Snapshot, number: int) -> int:
    row = reads.get("accounts", number)
    assert row is not None
    return cast(int, row["balance"])


def _total(reads: vt.Transaction | vt.Snapshot, branch: str) -> int:
    row = reads.view("by_branch").get(branch)
    return 0 if row is None else cast(int, row["total"])


def _balances(db: vt.Database) -> dict[object, object]:
    with db.snapshot() as snapshot:
        return {row["id"]: row["balance"] for row in snapshot.scan("accounts")}


# --- write skew: each of two transactions may take 60 as long as both accounts together hold 100


def _skew(db: vt.Database, between: Between) -> None:
    first, second = db.transaction(), db.transaction()
    for tx, mine in ((first, 1), (second, 2)):
        if _balance(tx, 1) + _balance(tx, 2) >= 100:
            tx.update("accounts", mine, {"balance": -10})
    first.commit()
    between(db)
    second.commit()


@BETWEEN
def test_no_write_skew(db: vt.Database, between: Between) -> None:
    with pytest.raises(vt.TransactionConflict) as raised:
        _skew(db, between)
    assert raised.value.retryable
    assert _balances(db) == {1: -10, 2: 50, 5: 50}
    assert db.view("by_branch").verify().ok


@BETWEEN
def test_write_skew_without_validation(db: vt.Database, between: Between, unvalidated: None) -> None:
    _skew(db, between)
    assert _balances(db) == {1: -10, 2: -10, 5: 50}


# --- lost update: two increments of one balance


def _increments(db: vt.Database, between: Between) -> None:
    first, second = db.transaction(), db.transaction()
    balances = [_balance(tx, 1) for tx in (first, second)]
    for tx, balance in zip((first, second), balances, strict=True):
        tx.update("accounts", 1, {"balance": balance + 1})
    first.commit()
    between(db)
    second.commit()


@BETWEEN
def test_no_lost_update(db: vt.Database, between: Between) -> None:
    with pytest.raises(vt.TransactionConflict):
        _increments(db, between)
    assert _balances(db)[1] == 51


@BETWEEN
def test_lost_update_without_validation(db: vt.Database, between: Between, unvalidated: None) -> None:
    _increments(db, between)
    assert _balances(db)[1] == 51, "two increments were acknowledged, one is lost"


# --- phantoms: the sum of what was found is stored, while somebody adds to it


def _by_range(tx: vt.Transaction) -> vt.Result:
    return tx.scan("accounts", 1, 4)


def _by_index_prefix(tx: vt.Transaction) -> vt.Result:
    return tx.find("accounts", branch="north")


def _by_empty_range(tx: vt.Transaction) -> vt.Result:
    return tx.scan("accounts", 3, 4)


def _by_empty_index_prefix(tx: vt.Transaction) -> vt.Result:
    return tx.find("accounts", branch="west")


def _by_absent_key(tx: vt.Transaction) -> list[vt.Row]:
    row = tx.get("accounts", 3)
    return [] if row is None else [row]


def _by_join(tx: vt.Transaction) -> vt.Result:
    query = vt.query(
        vt.JoinTable("accounts", "a"), vt.JoinTable("accounts", "b"), on=[vt.JoinEdge("a.branch", "b.branch")],
        select={"id": "b.id", "balance": "b.balance"},
    )  # fmt: skip
    return tx.join(query, start={"a.id": 1})


PHANTOMS = pytest.mark.parametrize(
    ("read", "branch"),
    [
        (_by_range, "north"),
        (_by_index_prefix, "north"),
        (_by_empty_range, "north"),
        (_by_empty_index_prefix, "west"),
        (_by_absent_key, "north"),
        (_by_join, "north"),
    ],
    ids=["range", "index_prefix", "empty_range", "empty_index_prefix", "absent_key", "join"],
)
Read = Callable[[vt.Transaction], "vt.Result | list[vt.Row]"]


def _store_sum(db: vt.Database, between: Between, read: Read, branch: str) -> int:
    """The first transaction stores the number of rows that it read under a key of its own."""
    first = db.transaction()
    count = len(read(first))
    first.insert("accounts", _account(100, "archive", count))
    with db.transaction() as second:
        second.insert("accounts", _account(3, branch))
    between(db)
    first.commit()
    return count


@BETWEEN
@PHANTOMS
def test_no_phantom(db: vt.Database, between: Between, read: Read, branch: str) -> None:
    with pytest.raises(vt.TransactionConflict):
        _store_sum(db, between, read, branch)
    assert 100 not in _balances(db)


@BETWEEN
@PHANTOMS
def test_phantom_without_validation(
    db: vt.Database, between: Between, read: Read, branch: str, unvalidated: None
) -> None:
    count = _store_sum(db, between, read, branch)
    assert _balances(db)[100] == count
    with db.transaction() as tx:
        assert len(read(tx)) == count + 1, "in token order the stored count is wrong"


@BETWEEN
@PHANTOMS
def test_a_deleted_row_is_a_phantom_too(db: vt.Database, between: Between, read: Read, branch: str) -> None:
    with db.transaction() as tx:
        tx.insert("accounts", _account(3, branch))
    first = db.transaction()
    first.insert("accounts", _account(100, "archive", len(read(first))))
    with db.transaction() as second:
        assert second.delete("accounts", 3)
    between(db)
    with pytest.raises(vt.TransactionConflict):
        first.commit()


def test_a_range_read_with_a_limit_ends_at_its_last_row(db: vt.Database) -> None:
    first = db.transaction()
    assert [row["id"] for row in first.scan("accounts", limit=2)] == [1, 2]
    first.insert("accounts", _account(100))
    with db.transaction() as second:
        second.insert("accounts", _account(3))
    first.commit()
    assert set(_balances(db)) == {1, 2, 3, 5, 100}


def test_changes_outside_of_what_was_read_are_no_conflict(db: vt.Database) -> None:
    first = db.transaction()
    first.get("accounts", 1)
    first.scan("accounts", 1, 3)
    first.find("accounts", branch="north")
    first.view("by_branch").get("north")
    first.insert("accounts", _account(100, "archive"))
    with db.transaction() as second:
        second.insert("accounts", _account(7, "south"))
        second.update("accounts", 5, {"balance": 1})
    first.commit()
    assert {7, 100} <= set(_balances(db))


# --- the anomaly of a read-only transaction (Fekete, O'Neil, O'Neil 2004): a withdrawal that costs 1 if it is short


def _read_only_anomaly(db: vt.Database, between: Between) -> dict[str, int]:
    with db.transaction() as tx:
        tx.update("accounts", 1, {"balance": 0})
        tx.update("accounts", 2, {"balance": 0})
    withdrawal = db.transaction()
    short = _balance(withdrawal, 1) + _balance(withdrawal, 2) < 10
    withdrawal.update("accounts", 1, {"balance": -11 if short else -10})
    with db.transaction() as deposit:
        deposit.update("accounts", 2, {"balance": 20})
    with db.snapshot() as report:
        seen = {"checking": _balance(report, 1), "savings": _balance(report, 2)}
    between(db)
    withdrawal.commit()
    return seen


@BETWEEN
def test_no_read_only_anomaly(db: vt.Database, between: Between) -> None:
    with pytest.raises(vt.TransactionConflict):
        _read_only_anomaly(db, between)
    assert (_balances(db)[1], _balances(db)[2]) == (0, 20)


@BETWEEN
def test_read_only_anomaly_without_validation(db: vt.Database, between: Between, unvalidated: None) -> None:
    assert _read_only_anomaly(db, between) == {"checking": 0, "savings": 20}
    assert _balances(db)[1] == -11, "a fee, although the report saw the deposit before the withdrawal"


# --- dirty read: nobody sees what is not committed, or committed and not yet durable


def _look_before_durable(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Balances of account 1 as new readers see them: uncommitted, while the log is written, acknowledged."""
    seen: list[int] = []

    def look() -> None:
        with db.snapshot() as snapshot:
            seen.append(_balance(snapshot, 1))
            assert _total(snapshot, "north") == 50 + seen[-1]

    log = db._engine.ltm._log
    append = log.append

    def look_before_sync(payload: bytes) -> int:
        look()
        return append(payload)

    tx = db.transaction()
    tx.update("accounts", 1, {"balance": 99})
    look()
    with monkeypatch.context() as patched:
        patched.setattr(log, "append", look_before_sync)
        tx.commit()
    look()
    return seen


def test_no_dirty_read(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _look_before_durable(db, monkeypatch) == [50, 50, 99]


def test_dirty_read_if_readers_do_not_wait_for_the_log(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def pin_newest(self: Horizon, reader: int) -> int:
        self.pins[reader] = self.sealed_ts
        return self.sealed_ts

    monkeypatch.setattr(Horizon, "pin", pin_newest)
    assert _look_before_durable(db, monkeypatch) == [50, 99, 99]


def test_a_transaction_that_was_rolled_back_is_never_seen(db: vt.Database) -> None:
    tx = db.transaction()
    tx.update("accounts", 1, {"balance": 99})
    tx.insert("accounts", _account(9))
    tx.rollback()
    assert _balances(db) == {1: 50, 2: 50, 5: 50}
    assert db.view("by_branch").get("north") == {"branch": "north", "total": 100, "n": 2}


# --- non-repeatable read, read skew


def _read_twice(db: vt.Database, between: Between) -> list[list[object]]:
    """Everything that a reader sees before and after another transaction."""
    seen: list[list[object]] = []
    with db.transaction() as reader:
        for _ in range(2):
            seen.append(
                [
                    reader.get("accounts", 1),
                    reader.get("accounts", 3),
                    reader.get_many("accounts", [1, 3]),
                    list(reader.scan("accounts")),
                    list(reader.find("accounts", branch="north")),
                    list(_by_join(reader)),
                    reader.view("by_branch").get("north"),
                    list(reader.view("by_branch").rows()),
                ]
            )
            if len(seen) == 1:
                with db.transaction() as writer:
                    writer.update("accounts", 1, {"balance": 1})
                    writer.insert("accounts", _account(3))
                    writer.delete("accounts", 5)
                between(db)
    return seen


@BETWEEN
def test_no_non_repeatable_read(db: vt.Database, between: Between) -> None:
    before, after = _read_twice(db, between)
    assert before == after
    assert before[-1] == [{"branch": "north", "total": 100, "n": 2}, {"branch": "south", "total": 50, "n": 1}]


@BETWEEN
def test_non_repeatable_read_without_a_fixed_snapshot(
    db: vt.Database, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_anew(self: Reads) -> int:
        self._snapshot = self._ltm.horizon.pin(self._reader)
        return self._snapshot

    monkeypatch.setattr(Reads, "_begin", begin_anew)
    before, after = _read_twice(db, between)
    assert all(first != second for first, second in zip(before, after, strict=True))


# --- what else counts as read


@BETWEEN
def test_a_view_row_that_was_read_is_validated(db: vt.Database, between: Between) -> None:
    first = db.transaction()
    first.insert("accounts", _account(100, "archive", _total(first, "north")))
    with db.transaction() as second:
        second.update("accounts", 1, {"balance": 1})
    between(db)
    with pytest.raises(vt.TransactionConflict):
        first.commit()


@BETWEEN
def test_a_view_row_that_was_absent_is_validated(db: vt.Database, between: Between) -> None:
    first = db.transaction()
    assert first.view("by_branch").get("west") is None
    first.insert("accounts", _account(100, "archive"))
    with db.transaction() as second:
        second.insert("accounts", _account(3, "west"))
    between(db)
    with pytest.raises(vt.TransactionConflict):
        first.commit()


@BETWEEN
def test_a_range_of_a_view_is_validated(db: vt.Database, between: Between) -> None:
    first = db.transaction()
    assert first.view("by_branch").scan("t", "z") == []
    first.insert("accounts", _account(100, "archive"))
    with db.transaction() as second:
        second.insert("accounts", _account(3, "west"))
    between(db)
    with pytest.raises(vt.TransactionConflict):
        first.commit()


def test_view_skew_without_validation(db: vt.Database, unvalidated: None) -> None:
    first = db.transaction()
    first.insert("accounts", _account(100, "archive", _total(first, "north")))
    with db.transaction() as second:
        second.update("accounts", 1, {"balance": 1})
    first.commit()
    assert _balances(db)[100] == 100
    assert db.view("by_branch").get("north") == {"branch": "north", "total": 51, "n": 2}


@BETWEEN
def test_a_view_read_with_own_writes_is_validated(db: vt.Database, between: Between) -> None:
    first = db.transaction()
    first.update("accounts", 1, {"balance": 0})
    first.insert("accounts", _account(100, "archive", _total(first, "north")))
    with db.transaction() as second:
        second.update("accounts", 2, {"balance": 1})
    between(db)
    with pytest.raises(vt.TransactionConflict):
        first.commit()


def _own_update_then_read(db: vt.Database, read: Callable[[vt.Transaction], vt.Row]) -> None:
    """A transaction writes one column, then reads the others of that row: those are reads of the snapshot."""
    first = db.transaction()
    assert first.update("accounts", 1, {"note": "seen"})
    first.insert("accounts", _account(100, "archive", cast(int, read(first)["balance"])))
    with db.transaction() as second:
        second.update("accounts", 1, {"balance": 1})
    first.commit()


OWN_ROW_READS = pytest.mark.parametrize(
    "read",
    [
        lambda tx: tx.get("accounts", 1),
        lambda tx: tx.get_many("accounts", [1])[0],
        lambda tx: tx.find("accounts", id=1)[0],
        lambda tx: next(row for row in tx.find("accounts", branch="north") if row["id"] == 1),
        lambda tx: tx.scan("accounts", 1, 2)[0],
        lambda tx: next(row for row in _by_join(tx) if row["id"] == 1),
    ],
    ids=["get", "get_many", "find_key", "find_index", "scan", "join"],
)


@OWN_ROW_READS
def test_other_columns_of_a_row_that_was_updated_are_validated(
    db: vt.Database, read: Callable[[vt.Transaction], vt.Row]
) -> None:
    with pytest.raises(vt.TransactionConflict):
        _own_update_then_read(db, read)


@OWN_ROW_READS
def test_other_columns_of_a_row_that_was_upserted_are_validated(
    db: vt.Database, read: Callable[[vt.Transaction], vt.Row]
) -> None:
    first = db.transaction()
    first.upsert("accounts", {"id": 1, "note": "seen"})
    first.insert("accounts", _account(100, "archive", cast(int, read(first)["balance"])))
    with db.transaction() as second:
        second.update("accounts", 1, {"balance": 1})
    with pytest.raises(vt.TransactionConflict):
        first.commit()


def test_an_upsert_that_showed_a_new_row_conflicts_with_its_insert(db: vt.Database) -> None:
    first = db.transaction()
    first.upsert("accounts", {"id": 3, "branch": "north"})
    shown = first.get("accounts", 3)
    assert shown is not None and shown["balance"] is None
    with db.transaction() as second:
        second.insert("accounts", _account(3))
    with pytest.raises(vt.TransactionConflict):
        first.commit()


def test_updates_of_different_columns_without_reads_are_no_conflict(db: vt.Database) -> None:
    first = db.transaction()
    first.update("accounts", 1, {"note": "a"})
    with db.transaction() as second:
        second.update("accounts", 1, {"balance": 1})
    first.commit()
    with db.snapshot() as snapshot:
        assert snapshot.get("accounts", 1) == {"id": 1, "branch": "north", "balance": 1, "note": "a"}


def test_the_answer_of_update_and_delete_is_a_read(db: vt.Database) -> None:
    writes: list[Callable[[vt.Transaction], bool]] = [
        lambda tx: tx.update("accounts", 3, {"note": "x"}),
        lambda tx: tx.delete("accounts", 3),
    ]
    for write in writes:
        first = db.transaction()
        assert write(first) is False
        first.insert("accounts", _account(100))
        with db.transaction() as second:
            second.insert("accounts", _account(3))
        with pytest.raises(vt.TransactionConflict):
            first.commit()
        first = db.transaction()
        assert write(first) is True
        with db.transaction() as second:
            second.delete("accounts", 3)
        with pytest.raises(vt.TransactionConflict):
            first.commit()


def test_a_refused_insert_is_a_read(db: vt.Database) -> None:
    """Each of two transactions inserts its account or, if it exists, deletes the other one. In a serial order the
    second finds its account gone and inserts it: one is left."""
    first, second = db.transaction(), db.transaction()
    for tx, mine, other in ((first, 1, 2), (second, 2, 1)):
        with pytest.raises(vt.IntegrityError):
            tx.insert("accounts", _account(mine))
        assert tx.delete("accounts", other)
    first.commit()
    with pytest.raises(vt.TransactionConflict):
        second.commit()
    assert set(_balances(db)) == {1, 5}


def test_a_key_that_was_moved_away_and_taken_again_is_a_conflict(db: vt.Database) -> None:
    first = db.transaction()
    assert first.update("accounts", 1, {"id": 3})
    with db.transaction() as second:
        second.update("accounts", 1, {"balance": 7})
    with pytest.raises(vt.TransactionConflict):
        first.commit()


# --- readers are never disturbed


@BETWEEN
def test_read_only_transactions_never_abort(db: vt.Database, between: Between) -> None:
    reader = db.transaction()
    reader.scan("accounts")
    reader.find("accounts", branch="north")
    reader.view("by_branch").rows()
    with db.transaction() as writer:
        writer.update("accounts", 1, {"balance": 1})
        writer.insert("accounts", _account(3))
    between(db)
    token = reader.commit()
    assert token < writer.token


def test_snapshots_are_repeatable_while_writers_go_on_over_checkpoints_and_pruning() -> None:
    """Old versions leave memory, the store prunes what nobody reads: each open snapshot keeps exactly its own state."""
    with vt.connect("memory:", cache_rows=100) as db:
        db.create_table("t", {"id": int, "g": int, "x": int}, key="id", indexes=["g"])
        db.create_view("sums", "SELECT g, SUM(x) AS x, COUNT(*) AS n FROM t GROUP BY g")
        choose = random.Random(7)
        open_snapshots: list[tuple[vt.Snapshot, dict[int, tuple[int, int]]]] = []
        model: dict[int, tuple[int, int]] = {}
        for step in range(400):
            with db.transaction() as tx:
                for _ in range(choose.randint(1, 4)):
                    key = choose.randrange(60)
                    if choose.random() < 0.3:
                        assert tx.delete("t", key) == (model.pop(key, None) is not None)
                    else:
                        model[key] = (choose.randrange(4), choose.randrange(100))
                        tx.upsert("t", {"id": key, "g": model[key][0], "x": model[key][1]})
            if step % 25 == 0:
                snapshot = db.snapshot().__enter__()
                open_snapshots.append((snapshot, dict(model)))
            if step % 40 == 0:
                choose.choice([checkpoint, checkpoint_and_forget])(db)
            if step % 60 == 0 and open_snapshots:
                closed, _ = open_snapshots.pop(choose.randrange(len(open_snapshots)))
                closed.close()
            if step % 20 == 0:
                for snapshot, expected in open_snapshots:
                    _check_snapshot(snapshot, expected)
        for snapshot, expected in open_snapshots:
            _check_snapshot(snapshot, expected)
            snapshot.close()
        assert db.view("sums").verify().ok
        assert db.status().checkpoints > 5


@pytest.mark.parametrize("read", ["scan", "find", "view"])
def test_a_scan_in_the_middle_of_which_checkpoints_complete_sees_its_snapshot(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """A reader that is held up between its look into the store and its look into memory: meanwhile the versions that
    it needs go from memory to the store and newer ones take their place in memory."""
    checkpoint_and_forget(db)
    with db.transaction() as tx:
        tx.update("accounts", 1, {"balance": 51})
        tx.insert("accounts", _account(3))
        tx.update("accounts", 5, {"branch": "north"})
    reads: dict[str, Callable[[vt.Snapshot], vt.Result]] = {
        "scan": lambda snapshot: snapshot.scan("accounts"),
        "find": lambda snapshot: snapshot.find("accounts", branch="north"),
        "view": lambda snapshot: snapshot.view("by_branch").rows(),
    }
    store = db._engine.ltm._store
    scan = store.scan

    def scan_then_wait(start: bytes, stop: bytes, at: int, limit: int) -> list[Cell]:
        cells = scan(start, stop, at, limit)
        monkeypatch.setattr(store, "scan", scan)
        for balance in (60, 70, 80):
            checkpoint(db)
            with db.transaction() as tx:
                tx.upsert("accounts", [_account(number, "south", balance) for number in (1, 2, 3, 5)])
        checkpoint(db)
        return cells

    with db.snapshot() as snapshot:
        monkeypatch.setattr(store, "scan", scan_then_wait)
        first = reads[read](snapshot)
        assert first == reads[read](snapshot)
    if read == "view":
        assert first == [{"branch": "north", "total": 201, "n": 4}]
    else:
        assert [(row["id"], row["balance"]) for row in first] == [(1, 51), (2, 50), (3, 50), (5, 50)]


def _check_snapshot(snapshot: vt.Snapshot, expected: dict[int, tuple[int, int]]) -> None:
    assert {row["id"]: (row["g"], row["x"]) for row in snapshot.scan("t")} == expected
    for key in range(0, 60, 7):
        row = snapshot.get("t", key)
        assert (None if row is None else (row["g"], row["x"])) == expected.get(key)
    for group in range(4):
        members = {key: value for key, value in expected.items() if value[0] == group}
        assert {row["id"] for row in snapshot.find("t", g=group)} == set(members)
        row = snapshot.view("sums").get(group)
        if members:
            assert row == {"g": group, "x": sum(x for _, x in members.values()), "n": len(members)}
        else:
            assert row is None


def test_nothing_that_was_read_is_lost(tmp_path: Path) -> None:
    """While writers commit, a reader notes the newest value that it saw; then the directory is copied as a crash would
    leave it. The copy has at least that value."""
    path = tmp_path / "live"
    with vt.connect(path) as db:
        db.create_table("t", {"id": int, "x": int}, key="id")
        db.create_view("total", "SELECT SUM(x) AS x, COUNT(*) AS n FROM t")
        stop = threading.Event()

        def write(number: int) -> None:
            value = 0
            while not stop.is_set():
                value += 1
                with db.transaction() as tx:
                    tx.upsert("t", {"id": number, "x": value})

        writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        seen: list[tuple[dict[object, object], Path]] = []
        while len(seen) < 3:
            with db.snapshot() as snapshot:
                rows = {row["id"]: row["x"] for row in snapshot.scan("t")}
            # The log only: no checkpoint runs, and a store that is not written is a stable copy.
            copy = tmp_path / f"copy{len(seen)}"
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.tmp", "socket"))
            if len(rows) == 4:
                seen.append((rows, copy))
            else:
                shutil.rmtree(copy)
        stop.set()
        for writer in writers:
            writer.join()
    for rows, copy in seen:
        with vt.connect(copy) as db, db.snapshot() as snapshot:
            recovered = {row["id"]: row["x"] for row in snapshot.scan("t")}
            assert all(cast(int, recovered[number]) >= cast(int, value) for number, value in rows.items())
            total = snapshot.view("total").get()
            assert total == {"x": sum(cast(int, value) for value in recovered.values()), "n": 4}


# --- many threads

ACCOUNTS = 20
OPENING_BALANCE = 1000
TRANSFER_SECONDS = 1.0


@pytest.mark.parametrize("cache_rows", [200_000, 100], ids=["in_memory", "through_the_store"])
def test_transfers_of_8_threads_keep_the_sum_at_every_snapshot(tmp_path: Path, cache_rows: int) -> None:
    with vt.connect(tmp_path / "bank", cache_rows=cache_rows) as db:
        db.create_table("accounts", {"id": int, "branch": int, "balance": int}, key="id")
        db.create_view("total", "SELECT SUM(balance) AS total, COUNT(*) AS n FROM accounts")
        db.create_view("branches", "SELECT branch, SUM(balance) AS total FROM accounts GROUP BY branch")
        with db.transaction() as tx:
            tx.insert("accounts", [{"id": i, "branch": i % 3, "balance": OPENING_BALANCE} for i in range(ACCOUNTS)])
        until = time.monotonic() + TRANSFER_SECONDS
        done = [0] * 8
        checked = [0]
        failures: list[BaseException] = []

        def transfer(tx: vt.Transaction, source: int, target: int, amount: int) -> None:
            tx.update("accounts", source, {"balance": _balance(tx, source) - amount})
            tx.update("accounts", target, {"balance": _balance(tx, target) + amount})

        def move(number: int) -> None:
            choose = random.Random(number)
            while time.monotonic() < until:
                source, target = choose.sample(range(ACCOUNTS), 2)
                db.run(transfer, source, target, choose.randrange(100))
                done[number] += 1

        def check() -> None:
            while time.monotonic() < until:
                with db.snapshot() as snapshot:
                    balances = [cast(int, row["balance"]) for row in snapshot.scan("accounts")]
                    assert sum(balances) == ACCOUNTS * OPENING_BALANCE
                    assert snapshot.view("total").get() == {"total": ACCOUNTS * OPENING_BALANCE, "n": ACCOUNTS}
                    branches = [cast(int, row["total"]) for row in snapshot.view("branches").rows()]
                    assert branches == [sum(balances[branch::3]) for branch in range(3)]
                assert db.view("total").get() == {"total": ACCOUNTS * OPENING_BALANCE, "n": ACCOUNTS}
                checked[0] += 1

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(lambda n=n: move(n),)) for n in range(8)]
        threads.append(threading.Thread(target=guarded, args=(check,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert min(done) > 0 and checked[0] > 0
        assert db.view("total").verify().ok and db.view("branches").verify().ok


class Seen(NamedTuple):
    """What one transaction did. `after` is the newest token that was acknowledged anywhere before it began."""

    token: vt.Token
    after: vt.Token | None
    operations: list[tuple[str, object, object]]
    wrote: bool


KEYS = range(12)
GROUPS = range(3)


def _random_transaction(
    tx: vt.Transaction, choose: random.Random, operations: list[tuple[str, object, object]]
) -> bool:
    wrote = False
    put: set[int] = set()
    for _ in range(choose.randint(1, 5)):
        key, group = choose.choice(KEYS), choose.choice(GROUPS)
        what = choose.choice(["get", "find", "scan", "view", "total", "put", "put", "update", "delete"])
        if what == "delete" and key in put:
            what = "get"  # A transaction whose writes cancel out has no place of its own in the order.
        if what == "get":
            row = tx.get("t", key)
            operations.append((what, key, None if row is None else (row["g"], row["x"])))
        elif what == "find":
            operations.append((what, group, {row["id"]: row["x"] for row in tx.find("t", g=group)}))
        elif what == "scan":
            rows = tx.scan("t", key, key + 3)
            operations.append((what, key, [(row["id"], row["g"], row["x"]) for row in rows]))
        elif what == "view":
            row = tx.view("sums").get(group)
            operations.append((what, group, None if row is None else (row["x"], row["n"])))
        elif what == "total":
            operations.append((what, None, [tuple(row.values()) for row in tx.view("sums").rows()]))
        elif what == "put":
            value = (group, choose.randrange(1000))
            tx.upsert("t", {"id": key, "g": value[0], "x": value[1]})
            operations.append((what, key, value))
            put.add(key)
            wrote = True
        elif what == "update":
            value = (group, choose.randrange(1000))
            existed = tx.update("t", key, {"x": value[1]})
            operations.append((what, (key, value[1]), existed))
            wrote = wrote or existed
        else:
            existed = tx.delete("t", key)
            operations.append((what, key, existed))
            wrote = wrote or existed
    return wrote


def _replay(seen: Seen, model: dict[int, tuple[int, int]]) -> None:
    """Run one transaction on the model; everything that it saw must be what the model has."""
    for what, about, answer in seen.operations:
        sums = {
            group: (sum(x for g, x in model.values() if g == group), sum(g == group for g, _ in model.values()))
            for group in {g for g, _ in model.values()}
        }
        if what == "get":
            assert model.get(cast(int, about)) == answer
        elif what == "find":
            assert {key: x for key, (g, x) in model.items() if g == about} == answer
        elif what == "scan":
            low = cast(int, about)
            assert [(key, *model[key]) for key in sorted(model) if low <= key < low + 3] == answer
        elif what == "view":
            assert sums.get(cast(int, about)) == answer
        elif what == "total":
            assert [(group, *sums[group]) for group in sorted(sums)] == answer
        elif what == "put":
            model[cast(int, about)] = cast(tuple[int, int], answer)
        elif what == "update":
            key, x = cast(tuple[int, int], about)
            assert (key in model) == answer
            if key in model:
                model[key] = (model[key][0], x)
        else:
            assert (model.pop(cast(int, about), None) is not None) == answer


def test_a_phantom_is_seen_whenever_the_entries_of_an_index_are_made() -> None:
    """Entries are made when somebody looks: here by the reader itself, after the other transaction."""
    with vt.connect("memory:") as db:
        db.create_table("t", {"id": int, "g": int}, key="id", indexes=["g"])
        with db.transaction() as tx:
            tx.insert("t", {"id": 10, "g": 1})
        with db.snapshot() as snapshot:
            assert len(snapshot.find("t", g=1)) == 1
        with db.transaction() as tx:
            tx.update("t", 10, {"g": 2})
        reader = db.transaction()
        assert reader.get("t", 1) is None  # fixes the snapshot
        with db.transaction() as tx:
            tx.insert("t", {"id": 3, "g": 1})
        assert reader.find("t", g=1) == []
        reader.insert("t", {"id": 4, "g": 3})
        with pytest.raises(vt.TransactionConflict):
            reader.commit()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("cache_rows", [200_000, 100], ids=["in_memory", "through_the_store"])
def test_random_transactions_are_strictly_serializable(seed: int, cache_rows: int) -> None:
    """Replayed one by one in the order of their tokens, all transactions see what they saw; and who began after
    another was acknowledged comes after it."""
    with vt.connect("memory:", cache_rows=cache_rows) as db:
        db.create_table("t", {"id": int, "g": int, "x": int}, key="id", indexes=["g"])
        db.create_view("sums", "SELECT g, SUM(x) AS x, COUNT(*) AS n FROM t GROUP BY g")
        history: list[Seen] = []
        newest: list[vt.Token | None] = [None]
        lock = threading.Lock()
        failures: list[BaseException] = []

        def work(number: int) -> None:
            choose = random.Random(seed * 100 + number)
            for _ in range(120):
                with lock:
                    after = newest[0]
                operations: list[tuple[str, object, object]] = []
                tx = db.transaction()
                try:
                    wrote = _random_transaction(tx, choose, operations)
                    token = tx.commit()
                except vt.TransactionConflict:
                    if tx._ended is None:
                        tx.rollback()
                    continue
                with lock:
                    history.append(Seen(token, after, operations, wrote))
                    newest[0] = token if newest[0] is None else max(newest[0], token)
                if choose.random() < 0.02:
                    db._engine.checkpoint()

        def guarded(number: int) -> None:
            try:
                work(number)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []

        writers = [seen for seen in history if seen.wrote]
        assert len({seen.token for seen in writers}) == len(writers)
        assert len(writers) > 50
        for seen in history:
            if seen.after is not None:
                assert seen.token.commit_ts >= seen.after.commit_ts
                assert not seen.wrote or seen.token.commit_ts > seen.after.commit_ts
        model: dict[int, tuple[int, int]] = {}
        for seen in sorted(history, key=lambda item: (item.token.commit_ts, not item.wrote)):
            _replay(seen, model)
        with db.snapshot() as snapshot:
            assert {row["id"]: (row["g"], row["x"]) for row in snapshot.scan("t")} == model
        assert db.view("sums").verify().ok


def test_random_transactions_are_not_serializable_without_validation(unvalidated: None) -> None:
    """The replay does find anomalies: the same check on an engine that validates nothing. One thread, so that the
    interleaving is the same every time."""
    with vt.connect("memory:") as db:
        db.create_table("t", {"id": int, "g": int, "x": int}, key="id", indexes=["g"])
        db.create_view("sums", "SELECT g, SUM(x) AS x, COUNT(*) AS n FROM t GROUP BY g")
        choose = random.Random(11)
        history: list[Seen] = []
        for _ in range(30):
            running = []
            for _ in range(4):
                operations: list[tuple[str, object, object]] = []
                tx = db.transaction()
                tx.get("t", 0)  # Fixes the snapshot before the others commit.
                running.append((tx, operations, _random_transaction(tx, choose, operations)))
            for tx, operations, wrote in running:
                try:
                    history.append(Seen(tx.commit(), None, operations, wrote))
                except vt.TransactionConflict:
                    continue
        model: dict[int, tuple[int, int]] = {}
        with pytest.raises(AssertionError):
            for seen in sorted(history, key=lambda item: (item.token.commit_ts, not item.wrote)):
                _replay(seen, model)
