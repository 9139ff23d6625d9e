"""The API on a cluster: three LTMs and two view managers in one thread of this process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence

import pytest

import viewtide as vt
from tests.cluster_database import TestCluster, open_cluster
from viewtide.coordinator.cluster.catalog_follower import CatalogFollower
from viewtide.coordinator.cluster.requests import Requests, error_of
from viewtide.coordinator.two_phase.messages import FAILED, Outcome, RowsAt
from viewtide.ltm.cluster.member import Member

BY_CATEGORY = (
    "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n FROM events e JOIN products p ON e.product = p.id "
    "GROUP BY p.category"
)


@pytest.fixture
def cluster() -> Iterator[TestCluster]:
    with open_cluster() as opened:
        yield opened


@pytest.fixture
def db(cluster: TestCluster) -> vt.Database:
    database = cluster.database(1)
    database.create_table("products", {"id": int, "category": str}, key="id")
    database.create_table("events", {"id": int, "product": int, "cost": int}, key="id", indexes=["product"])
    return database


def fill(db: vt.Database) -> vt.Token:
    """Rows on both sides of where ranges begin."""
    with db.transaction() as tx:
        tx.insert("products", [{"id": number, "category": "ab"[number % 2]} for number in range(10)])
        tx.insert("events", [{"id": number, "product": number % 10, "cost": number} for number in range(40)])
    return tx.token


#: One hidden view is made from another one by its name.
OF_HIDDEN = (
    "WITH w AS (SELECT DISTINCT 2 AS c0, a.c0 AS c1"
    " FROM (SELECT SUM(cost) AS c0 FROM events HAVING SUM(cost) >= 1) AS a WHERE a.c0 IN (SELECT product FROM events))"
    " SELECT a.c1 AS c0, COUNT(*) AS n FROM w AS b JOIN w AS a ON a.c0 = b.c0"
    " RIGHT JOIN events AS d ON CAST(b.c0 IS NULL AS int) = CAST(d.id IS NULL AS int) GROUP BY a.c1"
)


def test_hidden_views_of_hidden_views(db: vt.Database) -> None:
    db.create_view("v", OF_HIDDEN)
    with db.transaction() as tx:
        tx.insert("events", [{"id": 1, "product": 5, "cost": 2}, {"id": 2, "product": 3, "cost": 3}])
    assert db.view("v").rows() == [{"c0": 5, "n": 2}]
    with db.transaction() as tx:
        tx.delete("events", 2)
    assert db.view("v").rows() == [{"c0": None, "n": 1}]
    assert db.view("v").verify().ok


def test_rows_are_written_and_read_over_several_ltms(db: vt.Database) -> None:
    fill(db)
    with db.transaction() as tx:
        assert tx.get("events", 7) == {"id": 7, "product": 7, "cost": 7}
        assert tx.get("events", 70) is None
        assert [row and row["cost"] for row in tx.get_many("events", [1, 70, 30])] == [1, None, 30]
        assert [row["id"] for row in tx.find("events", product=3)] == [3, 13, 23, 33]
        assert [row["id"] for row in tx.scan("events", start=2, stop=9, limit=5)] == [2, 3, 4, 5, 6]
        assert tx.update("events", 7, {"cost": 700}) and tx.delete("events", 8)
        assert tx.get("events", 7)["cost"] == 700
    assert db.sql("SELECT COUNT(*) AS n, SUM(cost) AS c, MAX(id) AS m FROM events").to_arrow().to_pylist() == [
        {"n": 39, "c": sum(range(40)) - 7 - 8 + 700, "m": 39}
    ]
    joined = db.sql("SELECT e.id FROM events e JOIN products p ON e.product = p.id WHERE p.id = 4 ORDER BY e.id DESC")
    assert [row["id"] for row in joined] == [34, 24, 14, 4]


def test_scans_take_pages(db: vt.Database) -> None:
    with db.transaction() as tx:
        tx.insert("events", [{"id": number, "product": 0, "cost": 1} for number in range(3_000)])
    with db.snapshot() as snapshot:
        assert [row["id"] for row in snapshot.scan("events")] == list(range(3_000))
        assert len(snapshot.find("events", product=0)) == 3_000
    last = db.sql("SELECT id FROM events ORDER BY id DESC LIMIT 3")
    assert [row["id"] for row in last] == [2_999, 2_998, 2_997]


def test_errors_are_those_of_the_embedded_database(db: vt.Database) -> None:
    fill(db)
    with pytest.raises(vt.IntegrityError, match="exists already"), db.transaction() as tx:
        tx.insert("events", {"id": 1, "product": 1, "cost": 1})
    with pytest.raises(vt.ProgrammingError, match="there is no table 'event'"), db.transaction() as tx:
        tx.insert("event", {"id": 1})
    first, second = db.transaction(), db.transaction()
    assert first.get("events", 1) is not None and second.get("events", 1) is not None
    first.update("events", 1, {"cost": 5})
    second.update("events", 1, {"cost": 6})
    first.commit()
    with pytest.raises(vt.TransactionConflict):
        second.commit()
    assert isinstance(error_of(Outcome((1, 1), FAILED, 0, ("DataError", "no", ""))), vt.DataError)
    assert isinstance(error_of(Outcome((1, 1), FAILED, 0, ("os", "no", ""))), vt.InternalError)


def test_sync_views_are_read_at_the_snapshot_with_own_writes(db: vt.Database) -> None:
    db.create_view("by_category", BY_CATEGORY)
    db.create_view("extremes", "SELECT product, MIN(cost) AS low, MAX(cost) AS high FROM events GROUP BY product")
    fill(db)
    with db.snapshot() as before, db.transaction() as tx:
        tx.update("events", 3, {"cost": 1_000})
        assert tx.view("by_category").get("b")["cost"] == sum(range(1, 40, 2)) - 3 + 1_000
        assert tx.view("extremes").get(3) == {"product": 3, "low": 13, "high": 1_000}
        assert before.view("by_category").get("b")["cost"] == sum(range(1, 40, 2))
        tx.rollback()
    assert len(db.view("extremes").rows()) == 10
    assert db.view("by_category").verify().ok and db.view("extremes").verify().ok
    assert db.view("by_category").status().state == "live"
    assert "events" in db.view("by_category").explain()


def test_verify_asks_for_many_rows_at_once(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """One question for each row that is joined would take a message to an LTM and back."""
    db.create_view("by_category", BY_CATEGORY)
    with db.transaction() as tx:
        tx.insert("products", [{"id": number, "category": "ab"[number % 2]} for number in range(300)])
        tx.insert("events", [{"id": number, "product": number % 300, "cost": 1} for number in range(600)])
    asked: list[int] = []
    read = Requests.read

    def counted(requests: Requests, at: int, keys: Sequence[bytes], *args: object, **kwargs: object) -> RowsAt:
        asked.append(len(keys))
        return read(requests, at, keys, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Requests, "read", counted)
    assert db.view("by_category").verify().ok
    assert sum(asked) >= 300 and len(asked) < 40


def test_deferred_views_are_read_at_their_watermark_and_as_fresh_as_asked_for(db: vt.Database) -> None:
    db.create_view("manual", BY_CATEGORY, refresh="manual")
    db.create_view("quick", BY_CATEGORY, refresh="50ms")
    token = fill(db)
    assert len(db.view("manual").rows()) == 0
    assert db.view("quick").get("a", at_least=token)["n"] == 20
    watermark = db.view("manual").refresh()
    assert watermark >= token.commit_ts
    result = db.view("manual").rows()
    assert result.watermark == watermark and {row["n"] for row in result} == {20}
    with db.transaction() as tx:
        tx.delete("events", 0)
    assert db.view("manual").get("a")["n"] == 20
    assert db.view("manual").get("a", latest=True)["n"] == 19
    assert db.view("quick").rows(max_lag="1s").lag_ms <= 1_000
    assert db.view("quick").get("a", latest=True)["n"] == 19
    status = db.view("quick").status()
    assert status.mode == "interval" and status.steps >= 1 and status.together == ("quick",)
    assert db.view("quick").verify().ok and db.view("manual").verify().ok
    with db.snapshot(views=["manual"]) as snapshot:
        assert snapshot.view("manual").get("a")["n"] == 19
        assert len(snapshot.scan("events")) == 39
    with db.snapshot(views=["manual", "quick"]) as snapshot:
        assert snapshot.view("manual").get("a")["n"] == snapshot.view("quick").get("a")["n"] == 19


def test_view_managers_are_withdrawn_and_assigned(db: vt.Database) -> None:
    db.create_view("late", BY_CATEGORY, refresh="20ms")
    managers = db.view_managers
    assert [each.id for each in managers.status()] == [1, 2]
    managers.withdraw(2)
    assert {each.id: each.ltm is None for each in managers.status()} == {1: False, 2: True}
    token = fill(db)
    assert db.view("late").get("a", at_least=token)["n"] == 20
    managers.reassign(2)
    assert all(each.ltm for each in managers.status())
    with pytest.raises(vt.ProgrammingError, match="no view manager 9"):
        managers.withdraw(9)
    with pytest.raises(vt.NotSupportedError, match="process"):
        managers.add()


def test_what_one_process_changes_the_others_know(cluster: TestCluster, db: vt.Database) -> None:
    other = cluster.database(2)
    fill(db)
    assert other.tables() == ["products", "events"]
    db.create_table("notes", {"id": int, "text": str}, key="id")
    with other.transaction() as tx:
        tx.insert("notes", {"id": 1, "text": "from the other one"})
    db.add_column("notes", "size", vt.column(int, default=7))
    assert other.sql("SELECT * FROM notes").to_arrow().to_pylist() == [
        {"id": 1, "text": "from the other one", "size": 7}
    ]
    with other.transaction() as tx:
        tx.update("notes", 1, {"text": "changed"})
    assert db.sql("SELECT text, size FROM notes").to_arrow().to_pylist() == [{"text": "changed", "size": 7}]
    with other.transaction() as tx:
        tx.insert("notes", {"id": 2, "text": "late"})
        db.drop_table("notes")
        with pytest.raises(vt.TransactionConflict, match="dropped"):
            tx.commit()
    with pytest.raises(vt.ProgrammingError, match="there is no table 'notes'"):
        other.drop_table("notes")


def test_two_processes_change_the_catalog_at_the_same_time(cluster: TestCluster, db: vt.Database) -> None:
    databases = [cluster.database(number) for number in (1, 2, 3)]

    def make(database: vt.Database, number: int) -> None:
        for each in range(3):
            database.create_table(f"t{number}_{each}", {"id": int}, key="id")

    threads = [threading.Thread(target=make, args=(each, number)) for number, each in enumerate(databases)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    expected = {"products", "events", *(f"t{number}_{each}" for number in range(3) for each in range(3))}
    assert all(set(database.tables()) == expected for database in databases)
    ids = [table.id for table in db._catalog().tables.values()]
    assert len(set(ids)) == len(ids)


def test_another_ltm_takes_over_and_nothing_is_lost(cluster: TestCluster, db: vt.Database) -> None:
    db.create_view("by_category", BY_CATEGORY)
    db.create_view("late", BY_CATEGORY, refresh="50ms")
    fill(db)
    cluster.kill(2)
    with db.transaction() as tx:
        tx.insert("events", [{"id": 100 + number, "product": number, "cost": 1} for number in range(10)])
    assert sum(row["n"] for row in db.view("by_category").rows()) == 50
    assert sum(row["n"] for row in db.view("late").rows(at_least=tx.token)) == 50
    assert db.view("by_category").verify().ok and db.view("late").verify().ok


def test_a_snapshot_that_is_too_old_is_a_conflict(cluster: TestCluster, db: vt.Database) -> None:
    fill(db)
    with db.snapshot() as snapshot:
        assert snapshot.get("events", 1) is not None

        def forget() -> None:
            for process in cluster.cluster.processes.values():
                if isinstance(process.machine, Member):
                    for hosted in process.machine.hosted.values():
                        assert hosted.machine is not None
                        hosted.machine._forget_versions(hosted.machine._newest_ts + 1)

        cluster.cluster.do(forget)
        with pytest.raises(vt.TransactionConflict, match="too old"):
            snapshot.get("events", 2)


def test_processes_give_different_row_ids(cluster: TestCluster, db: vt.Database) -> None:
    db.sql("CREATE TABLE lines (text text)")
    databases = [cluster.database(number) for number in (1, 2, 3)]

    def insert(database: vt.Database) -> None:
        for number in range(20):
            with database.transaction() as tx:
                tx.insert("lines", [{"text": f"line {number}"}] * 3)

    threads = [threading.Thread(target=insert, args=(each,)) for each in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with db.transaction() as tx:
        tx.insert("lines", [{"text": "many"}] * 600)
    assert db.sql("SELECT COUNT(*) AS n FROM lines").to_arrow().to_pylist() == [{"n": 3 * 20 * 3 + 600}]


def test_a_closed_database_does_nothing(db: vt.Database) -> None:
    db.close()
    for call in (db.tables, db.status, lambda: db.sql("SELECT 1"), lambda: db.create_table("t", {"id": int}, key="id")):
        with pytest.raises(vt.InterfaceError, match="closed"):
            call()


def test_views_and_indexes_are_made_over_rows_and_switched(db: vt.Database) -> None:
    fill(db)
    db.create_index("events", "cost")
    with db.snapshot() as snapshot:
        assert [row["id"] for row in snapshot.find("events", cost=7)] == [7]
    db.create_view("by_category", BY_CATEGORY)
    db.create_view("late", BY_CATEGORY, refresh="manual")
    assert db.view("by_category").get("a")["n"] == db.view("late").get("a")["n"] == 20
    db.view("by_category").set_refresh("50ms")
    db.view("late").set_refresh("sync")
    with db.transaction() as tx:
        tx.delete("events", 0)
    assert db.view("late").get("a")["n"] == 19
    assert db.view("by_category").get("a", at_least=tx.token)["n"] == 19
    assert db.view("late").verify().ok and db.view("by_category").verify().ok
    with pytest.raises(vt.DataError):
        db.create_view("broken", "SELECT id, 1 / (cost - 3) AS x FROM events")
    assert db.views() == ["by_category", "late"]


def test_status_and_what_is_not_there(db: vt.Database) -> None:
    fill(db)
    status = db.status()
    assert status.ltms == ("ltm-1", "ltm-2", "ltm-3") and status.commits == 1 and status.tables == 2


def test_a_view_is_there_all_the_time_while_it_is_switched(cluster: TestCluster, db: vt.Database) -> None:
    """By its handle, in a transaction that is retried, in SQL, and in the list of views; from another process, too."""
    fill(db)
    db.create_view("totals", BY_CATEGORY, refresh="manual")
    other = cluster.database(2)
    done, errors, reads = threading.Event(), [], [0]

    def read(base: vt.Database) -> None:
        view = base.view("totals")
        try:
            while not done.is_set():
                assert view.get("a")["n"] == 20
                assert base.view("totals").rows().rowcount == 2
                assert base.sql("SELECT n FROM totals WHERE category = 'b'")[0].n == 20
                assert base.run(lambda tx: tx.view("totals").get("b"))["n"] == 20
                assert base.views() == ["totals"]
                reads[0] += 1
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=read, args=(base,)) for base in (db, other)]
    for thread in threads:
        thread.start()
    try:
        for refresh in ("sync", "manual", "sync", "20ms", "sync"):
            db.view("totals").set_refresh(refresh)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not errors and reads[0] >= 2
    assert db.view("totals").verify().ok


def test_snapshots_over_several_groups_have_one_watermark(db: vt.Database) -> None:
    """Groups that go on at their own paces, under a writer: each snapshot shows one state of all and of the table."""
    fill(db)
    db.create_view("sums", "SELECT SUM(cost) AS s FROM events", refresh="0ms")
    db.create_view("counts", "SELECT product, COUNT(*) AS n FROM events GROUP BY product", refresh="manual")
    db.create_view("highest", "SELECT MAX(cost) AS m FROM events", refresh="sync")
    stop = threading.Event()

    def write() -> None:
        for number in itertools.count(101):
            if stop.is_set():
                return
            with db.transaction() as tx:
                tx.insert("events", {"id": number, "product": number % 3, "cost": number})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = set()
        for _ in range(4):
            with db.snapshot(views=["sums", "counts", "highest"]) as snapshot:
                rows = snapshot.scan("events")
                assert snapshot.view("sums").get() == {"s": sum(row["cost"] for row in rows)}
                assert sum(row["n"] for row in snapshot.view("counts").rows()) == rows.rowcount
                assert snapshot.view("highest").get() == {"m": max(row["cost"] for row in rows)}
                marks = {snapshot.view(name).rows().watermark for name in ("sums", "counts", "highest")}
                assert marks == {snapshot.token.commit_ts}
                seen.add(rows.rowcount)
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 1, "no write came between two snapshots"


def test_who_follows_the_catalog_waits_also_for_the_first_one(cluster: TestCluster) -> None:
    """Processes that serve clients spent all their time on it before there was a table."""
    follower = CatalogFollower(Requests(cluster.cluster, "ltm-1.coordinator"))
    assert follower.version == 0
    answered = threading.Event()
    threading.Thread(target=lambda: (follower.follow(), answered.set()), daemon=True).start()
    assert not answered.wait(0.3)
    cluster.database(1).create_table("t", {"id": int}, key="id")
    assert answered.wait(10) and follower.version > 0
