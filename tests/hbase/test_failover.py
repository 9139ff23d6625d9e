"""Store and log while parts of HBase die: what was acknowledged stays, nothing is there twice, it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.hbase_servers import is_whole
from viewtide.dev_cluster import DevelopmentHbase
from viewtide.ltm.commit_log.hbase import HbaseLog, create_log_table, read_log
from viewtide.ltm.hbase_client import Hbase
from viewtide.ltm.ports import Cell
from viewtide.ltm.store.hbase import HbaseStore

pytestmark = pytest.mark.slow

#: What each writer has to do before and after a fault, so that the fault is in the middle of work.
APPENDS_AROUND = 30
#: A region server's death is noticed after its session, its log is split, its regions are opened, on a busy machine.
OUTAGE_S_MAX = 60.0
TABLE, END = b"\0\0\0\7", b"\0\0\0\x08"
NOW = 2**64 - 1


class Writer:
    """Appends to a log and now and then writes a checkpoint, as an LTM does, and remembers what was acknowledged."""

    def __init__(self, endpoints: tuple[str, ...], namespace: str, name: str) -> None:
        self.client = Hbase(endpoints)
        self.name = name
        self.table = create_log_table(self.client, namespace)
        self._log = HbaseLog(self.client, self.table, name)
        self.store = HbaseStore(self.client, namespace, name)
        self.appended = self.written = 0
        self.longest_s = 0.0
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(OUTAGE_S_MAX)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def key(self, number: int) -> bytes:
        return TABLE + self.name.encode().ljust(8, b"_") + number.to_bytes(4, "big")

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                begun = time.monotonic()
                number = self.appended + 1
                assert self._log.append(b"%d of %s" % (number, self.name.encode())) == number
                self.appended = number
                if number % 5 == 0:
                    self._checkpoint(number)
                self.longest_s = max(self.longest_s, time.monotonic() - begun)
        except BaseException as error:
            self.failure = error

    def _checkpoint(self, number: int) -> None:
        cells = [Cell(self.key(each), number, b"%d" % each) for each in range(number - 4, number + 1)]
        self.store.write([cells], (), {"lsn": b"%d" % number}, lambda: None)
        self.written = number

    def check(self) -> None:
        """By a client that knows nothing yet."""
        records = list(read_log(self.client, self.table, self.name, 1))
        assert [record.lsn for record in records] == list(range(1, self.appended + 1))
        assert all(record.payload == b"%d of %s" % (record.lsn, self.name.encode()) for record in records)
        keys = [self.key(number) for number in range(1, self.written + 1)]
        found = self.store.get_many(keys, NOW)
        assert [cell and cell.value for cell in found] == [b"%d" % number for number in range(1, self.written + 1)]
        assert self.store.meta("lsn") == b"%d" % self.written


@contextmanager
def writing(servers: DevelopmentHbase, namespace: str, count: int) -> Iterator[list[Writer]]:
    """Writers at work; after the block they have gone on, and have all that was acknowledged."""
    writers = [Writer(servers.thrift, namespace, f"ltm-{number}") for number in range(count)]
    for writer in writers:
        writer.start()
    try:
        wait_until(lambda: all(writer.appended >= APPENDS_AROUND for writer in writers), writers)
        yield writers
        before = [writer.appended for writer in writers]
        wait_until(lambda: progress(writers, before) >= APPENDS_AROUND, writers)
    finally:
        for writer in writers:
            writer.finish()
    for writer in writers:
        writer.check()
        writer.client.close()


def progress(writers: list[Writer], before: list[int]) -> int:
    return min(writer.appended - was for writer, was in zip(writers, before, strict=True))


def wait_until(condition: Callable[[], bool], writers: list[Writer]) -> None:
    deadline = time.monotonic() + OUTAGE_S_MAX
    while not condition():
        assert all(writer.failure is None for writer in writers), [writer.failure for writer in writers]
        assert time.monotonic() < deadline, [(writer.appended, writer.longest_s) for writer in writers]
        time.sleep(0.02)


def report(what: str, writers: list[Writer], record: Callable[[str, object], None]) -> None:
    record(f"outage_s {what}", round(max(writer.longest_s for writer in writers), 2))


def test_regions_are_split_and_moved_under_load(
    hbase_servers: DevelopmentHbase,
    hbase_client: Hbase,
    hbase_namespace: str,
    record_property: Callable[[str, object], None],
) -> None:
    cells, log = f"{hbase_namespace}:viewtide.cells", f"{hbase_namespace}:viewtide.commit_log"
    with writing(hbase_servers, hbase_namespace, 2) as writers:
        split = writers[1].key(0).hex()
        hbase_servers.admin("split", cells, split, "split", log, b"ltm-1".hex(), "move", cells, "move", log)
    report("split and move", writers, record_property)
    where = hbase_servers.admin("where", cells, "where", log)
    assert len(where) == 4, "each table has two regions now"
    # A scan over both regions, and the compaction that cleans up behind deletes.
    store = HbaseStore(hbase_client, hbase_namespace, "ltm-0")
    before = store.scan(TABLE, END, NOW, 100_000)
    assert len(before) == sum(writer.written for writer in writers)
    store.drop_range(writers[0].key(0), writers[0].key(2**32 - 1))
    hbase_servers.admin("compact", cells)
    assert store.scan(TABLE, END, NOW, 100_000) == [cell for cell in before if cell.key >= writers[1].key(0)]


@pytest.fixture(scope="module")
def killable(own_hbase: DevelopmentHbase) -> DevelopmentHbase:
    client = Hbase(own_hbase.thrift)
    for number in range(5):
        client.create_namespace(f"n{number}")
    client.close()
    return own_hbase


def test_a_thrift_server_is_killed(killable: DevelopmentHbase, record_property: Callable[[str, object], None]) -> None:
    with writing(killable, "n0", 2) as writers:
        killable.kill("thrift-1")
    report("thrift", writers, record_property)
    killable.revive("thrift-1")


def test_a_region_server_is_killed(killable: DevelopmentHbase, record_property: Callable[[str, object], None]) -> None:
    with writing(killable, "n1", 2) as writers:
        killable.kill("region-1")
        # It may have held none of the tables: the other one is next, once there is one to take its place.
        killable.revive("region-1")
        before = [writer.appended for writer in writers]
        wait_until(lambda: progress(writers, before) >= APPENDS_AROUND, writers)
        wait_until(lambda: is_whole(killable), writers)
        killable.kill("region-2")
    report("region server", writers, record_property)
    killable.revive("region-2")


def test_the_master_is_killed_and_nobody_notices(
    killable: DevelopmentHbase, record_property: Callable[[str, object], None]
) -> None:
    with writing(killable, "n2", 2) as writers:
        killable.kill("master")
        before = [writer.appended for writer in writers]
        wait_until(lambda: progress(writers, before) >= APPENDS_AROUND, writers)
        killable.revive("master")
    report("master", writers, record_property)
