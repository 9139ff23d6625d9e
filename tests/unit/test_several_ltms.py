"""Several LTMs in one process: the same database, with two-phase commit over logs of their own."""

from __future__ import annotations

import itertools
import random
import threading
from pathlib import Path
from typing import cast

import pytest

import viewtide as vt
from viewtide.coordinator import several as several_module
from viewtide.coordinator.several import SeveralEngine
from viewtide.coordinator.transaction import Transaction
from viewtide.ltm import driver as driver_module
from viewtide.ltm.outputs import CommitRecord

LTMS = 3


def several(db: vt.Database) -> SeveralEngine:
    return cast(SeveralEngine, db._engine)


def make_shop(db: vt.Database) -> None:
    db.create_table("products", {"id": int, "category": str}, key="id")
    db.create_table("events", {"id": int, "product": int, "cost": int}, key="id", indexes=["product"])
    db.create_view(
        "by_category",
        "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n, MIN(e.cost) AS lowest, MAX(e.cost) AS highest"
        " FROM events e JOIN products p ON e.product = p.id GROUP BY p.category",
    )
    db.create_view("by_count", "SELECT n, COUNT(*) AS categories FROM by_category GROUP BY n")
    db.create_view("late", "SELECT product, COUNT(*) AS n FROM events GROUP BY product", refresh="manual")
    with db.transaction() as tx:
        tx.insert("products", [{"id": number, "category": "abc"[number % 3]} for number in range(9)])


def all_right(db: vt.Database) -> bool:
    db.view("late").refresh()
    return all(db.view(name).verify().ok for name in ("by_category", "by_count", "late"))


def ltm_bytes(path: Path) -> list[bool]:
    """Whether each LTM's log has a record: segments are filled with zeros ahead of need."""
    return [
        any(any(segment.read_bytes()) for segment in (path / f"ltm-{number}").iterdir())
        for number in range(1, LTMS + 1)
    ]


def test_all_ltms_vote_and_the_commit_is_there_after_a_restart(db_path: Path) -> None:
    with vt.connect(db_path, ltms=LTMS) as db:
        make_shop(db)
        with db.transaction() as tx:
            tx.insert("events", [{"id": number, "product": number % 9, "cost": number} for number in range(30)])
        assert set(several(db).ranges.logs) == {"ltm-1", "ltm-2", "ltm-3"}
        assert ltm_bytes(db_path) == [True] * LTMS
        shown = [dict(row) for row in db.view("by_category").rows()]
        assert sum(cast(int, row["n"]) for row in shown) == 30
    with vt.connect(db_path, ltms=LTMS) as db:
        assert [dict(row) for row in db.view("by_category").rows()] == shown
        assert all_right(db)


@pytest.mark.parametrize("ltms", [1, 2, 5])
def test_the_number_of_ltms_can_change(db_path: Path, ltms: int) -> None:
    with vt.connect(db_path, ltms=LTMS) as db:
        make_shop(db)
        with db.transaction() as tx:
            tx.insert("events", {"id": 1, "product": 1, "cost": 5})
    with vt.connect(db_path, ltms=ltms) as db:
        with db.transaction() as tx:
            tx.insert("events", {"id": 2, "product": 1, "cost": 6})
        assert db.view("by_category").get("b")["cost"] == 11  # type: ignore[index]
        assert all_right(db)


def test_a_commit_that_only_the_votes_have_is_done_again(db_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All votes are durable: it is committed, whatever happened then."""
    db = vt.connect(db_path, ltms=LTMS)
    make_shop(db)

    def fail(*_: object) -> int:
        raise vt.OperationalError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(db._engine.ltm._log, "append", fail)
        with pytest.raises(vt.CommitUnknown), db.transaction() as tx:
            tx.insert("events", [{"id": 1, "product": 1, "cost": 5}, {"id": 2, "product": 2, "cost": 7}])
    db.close()
    for _ in range(2):  # not twice
        with vt.connect(db_path, ltms=LTMS) as db:
            with db.snapshot() as snapshot:
                assert [row["id"] for row in snapshot.scan("events")] == [1, 2]
                assert [row["id"] for row in snapshot.find("events", product=2)] == [2]
            assert [row["n"] for row in db.view("by_category").rows()] == [1, 1]
            assert all_right(db)


def test_a_commit_without_all_votes_is_aborted(db_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = vt.connect(db_path, ltms=LTMS)
    make_shop(db)

    def fail(*_: object) -> int:
        raise vt.OperationalError("no space left")

    with monkeypatch.context() as patched:
        last = several(db)._logs["ltm-3"].log
        patched.setattr(last, "append", fail)
        with pytest.raises(vt.CommitUnknown), db.transaction() as tx:
            tx.insert("events", [{"id": number, "product": number % 9, "cost": number} for number in range(9)])
    db.close()
    with vt.connect(db_path, ltms=LTMS) as db:
        with db.snapshot() as snapshot:
            assert snapshot.scan("events") == []
        assert all_right(db)
        with db.transaction() as tx:
            tx.insert("events", {"id": 1, "product": 1, "cost": 5})
        assert all_right(db)


def test_tables_are_divided_as_they_grow() -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        make_shop(db)
        for first in range(0, 600, 50):
            with db.transaction() as tx:
                tx.insert(
                    "events", [{"id": each, "product": each % 9, "cost": each} for each in range(first, first + 50)]
                )
        engine = several(db)
        events = engine.ltm.tables.by_name["events"].table.id.to_bytes(4, "big")
        owners = {
            log for start, log in zip(engine.ranges.starts, engine.ranges.logs, strict=True) if start[:4] == events
        }
        assert len(owners) == LTMS
        with db.transaction() as tx:
            assert [row["id"] for row in tx.scan("events", start=195, stop=205)] == list(range(195, 205))
            assert len(tx.find("events", product=4)) == 67
            tx.delete("events", 0)
            tx.delete("events", 599)
        assert {(row["category"], row["lowest"], row["highest"]) for row in db.view("by_category").rows()} == {
            ("a", 3, 597),
            ("b", 1, 598),
            ("c", 2, 596),
        }
        assert all_right(db)


def test_writers_that_conflict_all_get_through() -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        db.create_table("accounts", {"id": int, "owner": int, "balance": int}, key="id")
        db.create_view("totals", "SELECT SUM(balance) AS total, COUNT(*) AS n FROM accounts")
        db.create_view("owners", "SELECT owner, SUM(balance) AS total FROM accounts GROUP BY owner")
        with db.transaction() as tx:
            tx.insert("accounts", [{"id": number, "owner": number % 3, "balance": 100} for number in range(12)])
        seen: list[object] = []
        failed: list[BaseException] = []

        def transfer(seed: int) -> None:
            chance = random.Random(seed)

            def once(tx: vt.Transaction) -> None:
                giver, taker = chance.sample(range(12), 2)
                rows = tx.get_many("accounts", [giver, taker])
                amount = chance.randrange(20)
                tx.update("accounts", giver, {"balance": rows[0]["balance"] - amount})  # type: ignore[index,operator]
                tx.update("accounts", taker, {"balance": rows[1]["balance"] + amount})  # type: ignore[index,operator]

            try:
                for _ in range(25):
                    db.run(once)
                    seen.append(db.view("totals").get()["total"])  # type: ignore[index]
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=transfer, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert seen == [1200] * 150
        assert db.view("owners").verify().ok
        assert len(several(db).coordinator.work) == 0
        assert all(len(participant.holds) == 0 for participant in several(db).participants.values())


def test_a_refused_transaction_leaves_nothing_behind() -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        make_shop(db)
        with db.transaction() as tx:
            tx.insert("events", {"id": 1, "product": 1, "cost": 5})
        with pytest.raises(vt.IntegrityError, match="exists already"), db.transaction() as tx:
            tx.insert("events", [{"id": 2, "product": 2, "cost": 5}, {"id": 1, "product": 1, "cost": 6}])
        with db.snapshot() as snapshot:
            assert [row["id"] for row in snapshot.scan("events")] == [1]
        assert all(len(participant.holds) == 0 for participant in several(db).participants.values())
        assert all_right(db)


@pytest.mark.parametrize("ltms", [0, -1, 65, True, "3", 2.0])
def test_a_wrong_number_of_ltms_is_refused(ltms: object) -> None:
    with pytest.raises(vt.InterfaceError, match="ltms must be a whole number from 1 to 64"):
        vt.connect("memory:", ltms=ltms)  # type: ignore[arg-type]


def test_the_environment_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIEWTIDE_LTMS", "2")
    with vt.connect("memory:") as db:
        assert several(db).ltm_names == ("ltm-1", "ltm-2")
    monkeypatch.setenv("VIEWTIDE_LTMS", "many")
    with pytest.raises(vt.InterfaceError, match="VIEWTIDE_LTMS must be a whole number"):
        vt.connect("memory:")


def test_a_look_up_of_nothing_is_answered() -> None:
    """A view that others build on is looked at although none of its rows changed."""
    with vt.connect("memory:", ltms=LTMS) as db:
        db.create_table("t", {"id": int, "ref": int}, key="id")
        db.create_table("u", {"id": int}, key="id")
        db.create_view(
            "v",
            "WITH w AS (SELECT a.z AS x, MIN(a.z) AS lowest FROM (VALUES (2)) AS a(z)"
            " WHERE a.z IN (SELECT u.id FROM u) GROUP BY a.z) SELECT t.id, w.lowest FROM t JOIN w ON t.ref = w.x",
        )
        with db.transaction() as tx:
            tx.insert("t", [{"id": 1, "ref": 2}, {"id": 2, "ref": 3}])
            tx.insert("u", [{"id": 0}, {"id": 2}])
        assert [row["id"] for row in db.view("v").rows()] == [1]
        with db.transaction() as tx:
            tx.delete("t", 1)
            tx.delete("u", 0)
            tx.insert("u", {"id": 3})
            tx.insert("t", {"id": 4, "ref": 2})
        assert [row["id"] for row in db.view("v").rows()] == [4]
        assert db.view("v").verify().ok


def test_nothing_is_kept_of_transactions_that_are_over() -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        db.create_table("t", {"id": int, "x": int}, key="id")
        for number in range(300):
            with db.transaction() as tx:
                tx.upsert("t", {"id": number % 10, "x": number})
        engine = several(db)
        for participant in engine.participants.values():
            assert len(participant.committed) + len(participant.parts) + len(participant.holds) < 10
        assert len(engine.coordinator.work) + len(engine.coordinator._settling) < 10


def test_the_log_of_the_node_is_in_the_order_of_commit_ts(db_path: Path) -> None:
    """Whoever reads the log relies on it: deferred views after a restart, the change feed."""
    with vt.connect(db_path, ltms=LTMS) as db:
        make_shop(db)
        places = range(6)

        def work(place: int) -> None:
            for number in range(20):
                event = place * 100 + number
                db.run(lambda tx, event=event: tx.upsert("events", {"id": event, "product": event % 9, "cost": event}))
                db.run(lambda tx, event=event: tx.upsert("products", {"id": event % 9, "category": "abc"[event % 3]}))

        threads = [threading.Thread(target=work, args=(place,)) for place in places]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        logged = [record.commit_ts for _, record in db._engine.ltm.read_log(0) if isinstance(record, CommitRecord)]
        assert len(logged) > 50
        assert all(before < after for before, after in itertools.pairwise(logged))
    with vt.connect(db_path, ltms=LTMS) as db:
        assert all_right(db)


def test_a_transaction_that_is_too_large_is_refused_before_it_is_voted_for(
    db_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with vt.connect(db_path, ltms=LTMS) as db:
        db.create_table("t", {"id": int, "x": str}, key="id")
        monkeypatch.setattr(several_module, "TRANSACTION_BYTES_MAX", 10_000)
        with pytest.raises(vt.DataError, match="too large"), db.transaction() as tx:
            tx.insert("t", {"id": 1, "x": "x" * 20_000})
        with db.transaction() as tx:
            tx.insert("t", {"id": 2, "x": "small"})
    with vt.connect(db_path, ltms=LTMS) as db, db.snapshot() as snapshot:
        assert [row["id"] for row in snapshot.scan("t")] == [2]


def test_a_batch_that_is_larger_than_a_flush_takes_several(db_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several_module, "FLUSH_BYTES", 1_000)
    monkeypatch.setattr(driver_module, "FLUSH_BYTES", 1_000)
    with vt.connect(db_path, ltms=LTMS) as db:
        db.create_table("t", {"id": int, "x": str}, key="id")
        for number in range(3):
            with db.transaction() as tx:
                tx.insert("t", [{"id": number * 10 + each, "x": "x" * 400} for each in range(10)])
            with db.snapshot() as snapshot:
                assert len(snapshot.scan("t")) == (number + 1) * 10
    with vt.connect(db_path, ltms=LTMS) as db, db.snapshot() as snapshot:
        assert len(snapshot.scan("t")) == 30


def test_a_plan_that_fails_concerns_its_transaction_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        make_shop(db)

        def fail(*_: object) -> None:
            raise ZeroDivisionError("a defect")

        with monkeypatch.context() as patched:
            patched.setattr(Transaction, "old_rows", fail)
            with pytest.raises(vt.InternalError, match="a defect"), db.transaction() as tx:
                tx.insert("events", {"id": 1, "product": 1, "cost": 1})
        with db.transaction() as tx:
            tx.insert("events", {"id": 1, "product": 1, "cost": 1})
        assert all_right(db)


def test_fewer_ltms_than_before_own_all_keys(db_path: Path) -> None:
    with vt.connect(db_path, ltms=5) as db:
        make_shop(db)
    (db_path / "ltm-notes").mkdir()  # nobody's business
    with vt.connect(db_path, ltms=2) as db:
        assert db.status().ltms == ("ltm-1", "ltm-2")
        with db.transaction() as tx:
            tx.insert("events", {"id": 1, "product": 1, "cost": 1})
        assert set(several(db).ranges.logs) == {"ltm-1", "ltm-2"}


def test_a_row_that_is_there_is_known_to_who_writes_it_with_a_new_one() -> None:
    with vt.connect("memory:", ltms=LTMS) as db:
        db.create_table("t", {"id": int, "cost": int}, key="id")
        db.create_view("costs", "SELECT cost, COUNT(*) AS n FROM t GROUP BY cost", layout="local")
        with db.transaction() as tx:
            tx.insert("t", {"id": 0, "cost": 1})
        with pytest.raises(vt.IntegrityError), db.transaction() as tx:
            tx.insert("t", [{"id": 0, "cost": 1}, {"id": 1, "cost": 1}])
        with db.transaction() as tx:
            tx.upsert("t", [{"id": 0, "cost": 2}, {"id": 1, "cost": 2}])
        assert db.view("costs").rows() == [{"cost": 2, "n": 2}]
        assert not dict.__len__(several(db).participants["ltm-1"].cells.chains), "the node has its rows"
