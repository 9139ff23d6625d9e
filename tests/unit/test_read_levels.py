"""Read levels: what `at_least`, `latest` and `max_lag` promise, on views and tables, inside snapshots, and over several
deferred views at one watermark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

import viewtide as vt
from viewtide import freshness

pytestmark = pytest.mark.served

SUMS = "SELECT g, SUM(v) AS s, COUNT(*) AS n FROM e GROUP BY g"
FAR_MS = 3_600_000


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as database:
        database.create_table("e", {"id": int, "g": int, "v": int}, key="id", indexes=["g"])
        with database.transaction() as tx:
            tx.insert("e", [{"id": i, "g": i % 2, "v": i} for i in range(10)])
        yield database


def write(db: vt.Database, id: int, v: int = 100) -> vt.Token:
    with db.transaction() as tx:
        tx.upsert("e", {"id": id, "g": 0, "v": v})
    return tx.token


def total(rows: vt.Result) -> int:
    return sum(int(str(row["s"])) for row in rows)


# --- views ---


def test_the_default_is_the_published_watermark(db: vt.Database) -> None:
    v = db.create_view("d", SUMS, refresh="manual")
    before = v.rows()
    write(db, 100)
    after = v.rows()
    assert after == before
    assert after.watermark == before.watermark
    assert after.lag_ms >= before.lag_ms >= 0


@pytest.mark.parametrize("mode", ["manual", "1h", "20ms", "0ms"])
def test_at_least_waits_for_a_commit(db: vt.Database, mode: str) -> None:
    v = db.create_view("d", SUMS, refresh=mode)
    for number in range(5):
        token = write(db, 100, v=number)
        rows = v.rows(at_least=token)
        assert rows.watermark >= token.commit_ts
        assert total(rows) == 45 + number
        row = v.get(0, at_least=token)
        assert row is not None
        assert row.s == 20 + number
        assert v.scan(start=0, stop=1, at_least=token)[0].s == 20 + number


def test_latest_has_every_acknowledged_commit(db: vt.Database) -> None:
    v = db.create_view("d", SUMS, refresh="manual")
    write(db, 100, v=1000)
    assert total(v.rows(latest=True)) == 1045
    assert total(v.rows()) == 1045  # it was refreshed for that


def test_max_lag_refreshes_and_is_kept(db: vt.Database) -> None:
    v = db.create_view("d", SUMS, refresh="manual")
    for number in range(20):
        write(db, 100, v=number)
        rows = v.rows(max_lag="200ms")
        assert rows.lag_ms <= 200
        assert v.scan(max_lag=200.0).lag_ms <= 200
    assert v.rows(max_lag="1h").lag_ms < FAR_MS


def test_a_bound_that_cannot_be_met_is_a_stale_read(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    v = db.create_view("d", SUMS, refresh="manual")
    monkeypatch.setattr(freshness, "READ_MS_MAX", 50.0)
    monkeypatch.setattr(freshness, "LAG_WAIT_MS_MIN", 50.0)
    refresher = db._node.refresher
    with refresher.held(["d"]):
        token = write(db, 100)
        with pytest.raises(vt.StaleRead, match="'d' did not get as far as asked for within 50 ms") as refused:
            v.rows(at_least=token)
        assert refused.value.retryable
        with pytest.raises(vt.StaleRead, match="did not get as far"):
            v.rows(latest=True)
        with pytest.raises(vt.StaleRead, match=r"did not get as far|could not be brought below 0 ms"):
            v.rows(max_lag=0)
        assert total(v.rows()) == 45
    assert total(v.rows(at_least=token)) == 145


def test_a_token_of_another_database_is_refused_at_once(db: vt.Database) -> None:
    v = db.create_view("d", SUMS, refresh="manual")
    s = db.create_view("s", SUMS)
    ahead = vt.Token(write(db, 100).commit_ts + (FAR_MS << 20))
    for view in (v, s):
        with pytest.raises(vt.StaleRead, match="ahead of this database"):
            view.rows(at_least=ahead)
    with pytest.raises(vt.StaleRead, match="ahead of this database"):
        db.snapshot(at_least=ahead)
    with db.snapshot() as snapshot, pytest.raises(vt.StaleRead, match="ahead of this database"):
        snapshot.get("e", 1, at_least=ahead)


def test_a_row_that_is_read_alone_says_how_old_it_is(db: vt.Database) -> None:
    db.create_view("d", SUMS, refresh="manual")
    db.create_view("s", SUMS)
    db.create_table("marks", {"id": int, "watermark": int}, key="id")
    token = write(db, 100)
    old, new = db.view("d").get(0), db.view("s").get(0)
    assert old is not None and new is not None
    assert old.watermark < token.commit_ts <= new.watermark
    assert old.lag_ms >= 0 == new.lag_ms
    fresh = db.view("d").get(0, at_least=token)
    assert fresh is not None and fresh.watermark >= token.commit_ts
    with db.transaction() as tx:
        tx.insert("marks", {"id": 1, "watermark": 7})
        row, mark = tx.get("e", 1), tx.get("marks", 1)
        assert row is not None and mark is not None
        assert token.commit_ts <= row.watermark <= tx.scan("e").watermark
        assert mark.watermark == 7 and mark.lag_ms == 0  # a column of such a name is the column
        with pytest.raises(AttributeError, match="no column 'watermark'; there are id, g, v"):
            tx.scan("e")[0].watermark  # noqa: B018  # the result has it


def test_a_synchronous_view_meets_every_level(db: vt.Database) -> None:
    v = db.create_view("s", SUMS)
    for number in range(50):
        token = write(db, 100, v=number)
        rows = v.rows(at_least=token, latest=True, max_lag=0)
        assert (total(rows), rows.lag_ms) == (45 + number, 0.0)


def test_levels_of_the_wrong_kind_are_refused(db: vt.Database) -> None:
    v = db.create_view("d", SUMS, refresh="manual")
    with pytest.raises(vt.InterfaceError, match="at_least takes the token"):
        v.rows(at_least=5)  # type: ignore[arg-type]
    with pytest.raises(vt.InterfaceError, match="latest is True or False"):
        v.get(0, latest="yes")  # type: ignore[arg-type]
    with pytest.raises(vt.InterfaceError, match="is no duration"):
        v.rows(max_lag="soon")
    with pytest.raises(vt.InterfaceError, match="views must be a list"):
        db.snapshot(views="d")


# --- inside snapshots and transactions ---


def test_tables_of_a_snapshot_are_at_its_timestamp(db: vt.Database) -> None:
    with db.snapshot() as s:
        s.get("e", 1)
        assert s.scan("e", latest=True, max_lag=0).rowcount == 10  # nothing newer was committed
        token = write(db, 100)
        assert s.get("e", 1, max_lag="1h") is not None
        reads = {
            "get": lambda **levels: s.get("e", 1, **levels),
            "get_many": lambda **levels: s.get_many("e", [1], **levels),
            "find": lambda **levels: s.find("e", g=1, **levels),
            "scan": lambda **levels: s.scan("e", **levels),
        }
        for read in reads.values():
            with pytest.raises(vt.StaleRead, match="table 'e' in this snapshot does not have the commit") as refused:
                read(at_least=token)
            assert refused.value.hint == "begin a new snapshot"
            with pytest.raises(vt.StaleRead, match="is not the latest"):
                read(latest=True)
            with pytest.raises(vt.StaleRead, match="ms behind, not at most 0 ms"):
                read(max_lag=0)
    with db.snapshot() as s:
        assert s.get("e", 100, at_least=token, latest=True, max_lag=0) == {"id": 100, "g": 0, "v": 100}


def test_a_snapshot_after_a_long_silence_is_fresh(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lag of a snapshot is that since it was begun, not since the commit before it."""
    with db.snapshot() as s:
        watermark = s.scan("e").watermark
        write(db, 100)
        # As if the commit before the snapshot had been long ago.
        monkeypatch.setattr(db._node, "lag_ms", lambda mark: 1e9)
        assert s.scan("e", max_lag="1h").watermark == watermark


def test_a_transaction_refuses_what_it_does_not_have(db: vt.Database) -> None:
    tx = db.transaction()
    assert tx.get("e", 1) is not None
    token = write(db, 100)
    with pytest.raises(vt.StaleRead, match="in this transaction does not have") as refused:
        tx.get("e", 1, at_least=token)
    assert refused.value.hint == "begin a new transaction"
    tx.rollback()


def test_columns_that_are_named_like_levels_are_columns(db: vt.Database) -> None:
    db.create_table("t", {"latest": int, "at_least": str, "max_lag": int}, key=["latest", "at_least"])
    with db.transaction() as tx:
        tx.insert("t", {"latest": 1, "at_least": "a", "max_lag": 9})
        assert tx.get("t", latest=1, at_least="a") == {"latest": 1, "at_least": "a", "max_lag": 9}
        assert tx.find("t", latest=1).rowcount == 1
        assert tx.find("t", latest=2).rowcount == 0


def test_deferred_views_in_a_snapshot_stay_where_they_were_first_read(db: vt.Database) -> None:
    db.create_view("d", SUMS, refresh="manual")
    with db.snapshot() as s:
        first = write(db, 100)
        rows = s.view("d").rows(at_least=first)  # it was not read yet, so it is waited for
        assert total(rows) == 145
        second = write(db, 100, v=200)
        db.view("d").refresh()
        assert s.view("d").rows() == rows
        assert s.view("d").rows(at_least=first, max_lag="1h") == rows
        with pytest.raises(vt.StaleRead, match="view 'd' in this snapshot does not have the commit"):
            s.view("d").get(0, at_least=second)
        with pytest.raises(vt.StaleRead, match="is not the latest"):
            s.view("d").scan(latest=True)
    with db.snapshot() as s:
        assert total(s.view("d").rows()) == 245


def test_levels_of_a_snapshot_hold_for_all_its_reads(db: vt.Database) -> None:
    db.create_view("d", SUMS, refresh="manual")
    token = write(db, 100)
    with db.snapshot() as s:
        assert total(s.view("d").rows()) == 45
    with db.snapshot(at_least=token) as s:
        assert total(s.view("d").rows()) == 145
    write(db, 100, v=200)
    with db.snapshot(latest=True) as s:
        assert s.sql("SELECT SUM(s) AS s FROM d")[0].s == 245
    write(db, 100, v=300)
    with db.snapshot(max_lag="100ms") as s:
        assert s.view("d").rows().lag_ms <= 100


def test_a_result_says_how_old_its_own_sources_are(db: vt.Database) -> None:
    db.create_view("d", SUMS, refresh="manual")
    db.create_view("s", SUMS)
    token = write(db, 100)
    with db.snapshot() as s:
        behind = s.view("d").rows()
        assert behind.watermark < token.commit_ts
        assert s.sql("SELECT * FROM d").watermark == behind.watermark
        joined = s.sql("SELECT d.s, s.s AS now FROM d JOIN s ON d.g = s.g")
        assert (joined.watermark, joined.lag_ms) == (behind.watermark, behind.lag_ms)
        for fresh in (s.scan("e"), s.find("e", g=1), s.view("s").rows(), s.sql("SELECT * FROM e"), s.sql("TABLE s")):
            assert fresh.watermark >= token.commit_ts
            assert fresh.lag_ms == 0.0


# --- several deferred views at one watermark ---


def test_a_snapshot_over_several_deferred_views_has_one_watermark(db: vt.Database) -> None:
    db.create_view("a", SUMS, refresh="manual")
    db.create_view("b", "SELECT COUNT(*) AS n FROM e", refresh="1h")
    db.create_view("other", SUMS, refresh="manual")
    db.create_view("s", SUMS)
    write(db, 100)
    db.view("a").refresh()
    write(db, 101)
    with db.snapshot(views=["a", "b", "s"]) as s:
        assert s.view("a").rows() == s.view("s").rows()
        assert s.view("b").get() == {"n": 12}
        assert s.scan("e").rowcount == 12
        marks = {s.view(name).rows().watermark for name in ("a", "b", "s")} | {s.scan("e").watermark}
        assert marks == {s.token.commit_ts}
        assert total(s.view("other").rows()) == 45  # nobody asked for it
        token = write(db, 102)
        db.view("b").refresh()
        assert s.view("b").get() == {"n": 12}
        with pytest.raises(vt.StaleRead):
            s.scan("e", at_least=token)
        with db.transaction() as tx:
            assert tx.get("e", 1, at_least=s.token) is not None
    with pytest.raises(vt.ProgrammingError, match="no view 'c'"), db.snapshot(views=["a", "c"]):
        pass


def test_common_watermarks_under_writers(db: vt.Database) -> None:
    """Three groups at different paces and the table itself: every snapshot shows one state."""
    db.create_view("a", SUMS, refresh="0ms")
    db.create_view("b", "SELECT SUM(v) AS s FROM e", refresh="manual")
    db.create_view("c", "SELECT MAX(v) AS m FROM e", refresh="20ms")
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            write(db, 100 + number % 7, v=number)

    writer = threading.Thread(target=work)
    writer.start()
    try:
        seen: set[int] = set()
        rounds, give_up = 0, time.monotonic() + 30
        # On a busy machine the writer may not have had its turn in so many rounds.
        while rounds < 40 or (len(seen) < 2 and time.monotonic() < give_up):
            rounds += 1
            with db.snapshot(views=["a", "b", "c"]) as s:
                rows = s.scan("e")
                everything = sum(int(str(row["v"])) for row in rows)
                assert total(s.view("a").rows()) == everything
                assert s.view("b").get() == {"s": everything}
                assert s.view("c").get() == {"m": max(int(str(row["v"])) for row in rows)}
                seen.add(everything)
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 1, "no write came between two snapshots"


@pytest.mark.embedded("the node hears of the end a moment later")
def test_pins_of_snapshots_go_with_them(db: vt.Database) -> None:
    db.create_view("a", SUMS, refresh="manual")
    db.create_view("b", SUMS, refresh="manual")
    pins = db._engine.ltm.horizon.pins
    before = {reader for reader in pins if reader > 0}
    with db.snapshot(views=["a", "b"]) as s:
        s.view("a").rows()
        assert {reader for reader in pins if reader > 0} > before
    del s
    assert {reader for reader in pins if reader > 0} == before
