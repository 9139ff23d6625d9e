"""Tables and views of a cluster read straight from HBase, in parts, while writers go on."""

from __future__ import annotations

import itertools
import threading

import pytest

import viewtide as vt
from viewtide import stored
from viewtide.changetables.types import Row
from viewtide.cluster_stored import ClusterPin, ClusterRows, cluster_pin
from viewtide.development import Development
from viewtide.remote import RemoteDatabase

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("divided")]

ROWS = 1_500
PARTS = 5
ACCOUNTS = 10
TOTAL = 1_000 * ACCOUNTS


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small table has several parts, too."""
    monkeypatch.setattr(stored, "SMALL_CELLS", ROWS)


def pinned(db: vt.Database, name: str) -> ClusterPin:
    assert isinstance(db, RemoteDatabase)
    pin = cluster_pin(db, name)
    assert pin is not None
    return pin


def parts_read(name: str, pin: ClusterPin) -> list[Row]:
    """Each part by a reader of its own, as tasks do it."""
    with ClusterRows(name, pin) as rows:
        parts = rows.divided(rows.whole(), PARTS)
    found: list[Row] = []
    for part in parts:
        with ClusterRows(name, pin) as rows:
            found += itertools.chain.from_iterable(rows.pages(part))
    return found


class Moving(threading.Thread):
    """Moves money between accounts until it is stopped: their sum is always the same."""

    def __init__(self, url: str) -> None:
        super().__init__(name="moving")
        self._url = url
        self.stopped = threading.Event()
        self.moves = 0

    def run(self) -> None:
        with vt.connect(self._url) as db:
            while not self.stopped.is_set():
                one, other = self.moves % ACCOUNTS, (self.moves * 3 + 1) % ACCOUNTS
                if one != other:
                    db.run(lambda tx, one=one, other=other: move(tx, one, other))
                self.moves += 1


def move(tx: vt.Transaction, one: int, other: int) -> None:
    for number, change in ((one, -1), (other, 1)):
        row = tx.get("accounts", number)
        assert row is not None
        tx.update("accounts", number, {"money": row["money"] + change})


def test_a_cluster_is_read_from_its_store_at_one_timestamp(hbase_cluster: Development) -> None:
    url = f"zk://{hbase_cluster.zookeeper}"
    with vt.connect(url) as db:
        db.create_table("accounts", {"id": int, "money": int}, key="id")
        db.create_table("events", {"id": int, "day": int, "cost": int}, key="id")
        db.create_view("money", "SELECT id % 2 AS parity, SUM(money) AS money FROM accounts GROUP BY id % 2")
        db.create_view("late", "SELECT day, SUM(cost) AS cost FROM events GROUP BY day", refresh="manual")
        db.create_view("dearest", "SELECT day, MAX(cost) AS cost FROM events GROUP BY day")
        with db.transaction() as tx:
            tx.insert("accounts", [{"id": number, "money": 1_000} for number in range(ACCOUNTS)])
        with db.transaction() as tx:
            tx.insert("events", [{"id": n, "day": n % 3, "cost": n} for n in range(ROWS)])
        moving = Moving(url)
        moving.start()
        try:
            before = -1
            while before < 2 or moving.moves < 20:
                accounts, money = pinned(db, "accounts"), pinned(db, "money")
                assert sum(row[1] for row in parts_read("accounts", accounts)) == TOTAL  # type: ignore[misc]
                assert sum(row[1] for row in parts_read("money", money)) == TOTAL  # type: ignore[misc]
                before += 1
        finally:
            moving.stopped.set()
            moving.join()

        events = pinned(db, "events")
        everything = [(n, n % 3, n) for n in range(ROWS)]
        with ClusterRows("events", events) as rows:
            assert len(rows.divided(rows.whole(), PARTS)) == PARTS
        assert parts_read("events", events) == everything
        db.view("late").refresh()
        late = pinned(db, "late")
        with db.transaction() as tx:
            tx.delete("events", 0)
            tx.update("events", 1, {"cost": 0})
        # What is deleted and changed later is there at the earlier timestamps, for as long as they are read.
        now = pinned(db, "events")
        assert parts_read("events", now) == [(1, 1, 0), *everything[2:]]
        assert parts_read("events", events) == everything
        assert sorted(parts_read("late", late)) == [(day, sum(range(day, ROWS, 3))) for day in range(3)]
        assert isinstance(db, RemoteDatabase)
        assert cluster_pin(db, "dearest") is None, "its values are looked up row by row: the client does that better"
        with pytest.raises(vt.ProgrammingError, match="no table 'nothing'"):
            cluster_pin(db, "nothing")
        with pytest.raises(vt.StaleRead, match="another store"):
            ClusterRows("events", now._replace(identity=b"another one"))


@pytest.mark.spark
def test_the_data_source_divides_a_cluster_into_parts(hbase_cluster: Development) -> None:
    from viewtide.spark.options import options_from
    from viewtide.spark.reading import StoredPart, ViewtideReader, schema_of

    url = f"zk://{hbase_cluster.zookeeper}"
    with vt.connect(url) as db:
        db.create_table("events", {"id": int, "cost": int}, key="id")
        db.create_view("dearest", "SELECT MAX(cost) AS cost FROM events")
        with db.transaction() as tx:
            tx.insert("events", [{"id": n, "cost": 1} for n in range(ROWS)])
    options = options_from({"url": url, "table": "events", "columns": "cost", "partitions": str(PARTS)})
    reader = ViewtideReader(options, schema_of(options))
    parts = reader.partitions()
    assert len(parts) == PARTS and all(isinstance(each, StoredPart) for each in parts)
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == ROWS
    options = options_from({"url": url, "view": "dearest"})
    reader = ViewtideReader(options, schema_of(options))
    (part,) = reader.partitions()
    assert not isinstance(part, StoredPart)
    assert [batch.to_pylist() for batch in reader.read(part)] == [[{"cost": 1}]]
