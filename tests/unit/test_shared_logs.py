"""Commit logs that others read and seal: a zombie's flush is acknowledged and read by everybody, or by nobody."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from viewtide.changetables.errors import InterfaceError, OperationalError
from viewtide.coordinator.cluster.log_service import LogService
from viewtide.coordinator.cluster.log_writers import FLUSH_BYTES_MAX, InlineWriter, ThreadWriter
from viewtide.ltm.cluster.flushes import decode_flush
from viewtide.ltm.cluster.hosted import Logged
from viewtide.ltm.cluster.log_messages import LogRecords, NoLog, ReadLog, Seal
from viewtide.ltm.cluster.member import LifeOver
from viewtide.ltm.commit_log.elsewhere import LogSealed
from viewtide.ltm.commit_log.hbase import HBASE_PAYLOAD_BYTES_MAX
from viewtide.ltm.commit_log.shared import SharedDirectory
from viewtide.ltm.ports import Damaged
from viewtide.ltm.two_phase.records import Committed, Decided

WAIT_S_MAX = 20


@pytest.fixture
def logs(tmp_path: Path) -> SharedDirectory:
    return SharedDirectory(tmp_path / "logs")


def test_what_was_appended_is_read_by_others(logs: SharedDirectory) -> None:
    mine = logs.create("ltm-1/1")
    assert logs.read("ltm-1/1", 1) == ([], False)
    assert [mine.append(b"one"), mine.append(b"two"), mine.append(b"three")] == [1, 2, 3]
    found = logs.read("ltm-1/1", 2)
    assert found is not None
    assert [record.payload for record in found[0]] == [b"two", b"three"] and not found[1]
    assert logs.read("ltm-1/2", 1) is None
    mine.close()


def test_a_sealed_log_takes_nothing_more(logs: SharedDirectory) -> None:
    mine = logs.create("ltm-1/1")
    mine.append(b"one")
    assert [record.payload for record in logs.seal("ltm-1/1")] == [b"one"]
    with pytest.raises(LogSealed):
        mine.append(b"two")
    with pytest.raises(InterfaceError):
        mine.append(b"three")
    # The flush reached the files, but nobody who seals the log again sees it.
    assert [record.payload for record in logs.seal("ltm-1/1")] == [b"one"]
    found = logs.read("ltm-1/1", 1)
    assert found is not None and found[1] and len(found[0]) == 1


def test_a_log_that_does_not_exist_is_sealed_for_ever(logs: SharedDirectory) -> None:
    assert logs.seal("ltm-1/7") == []
    with pytest.raises(LogSealed):
        logs.create("ltm-1/7")


def test_a_life_has_one_log(logs: SharedDirectory) -> None:
    logs.create("ltm-1/1").close()
    with pytest.raises(LogSealed, match="used before"):
        logs.create("ltm-1/1")


@pytest.mark.parametrize("log", ["", "ltm-1", "../x/1", "a/b/1", "ltm-1/x", "/1", ".x/1"])
def test_names_cannot_leave_the_directory(logs: SharedDirectory, log: str) -> None:
    with pytest.raises(InterfaceError, match="no name of a log"):
        logs.seal(log)


def test_damage_in_the_middle_is_found(logs: SharedDirectory, tmp_path: Path) -> None:
    mine = logs.create("ltm-1/1")
    for number in range(3):
        mine.append(b"flush %d" % number)
    mine.close()
    (segment,) = (tmp_path / "logs" / "ltm-1:1").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"flush 1")] ^= 1
    segment.write_bytes(data)
    with pytest.raises(OperationalError, match="damaged"):
        logs.seal("ltm-1/1")


def test_a_torn_last_flush_is_the_end(logs: SharedDirectory, tmp_path: Path) -> None:
    mine = logs.create("ltm-1/1")
    for number in range(3):
        mine.append(b"flush %d" % number)
    mine.close()
    (segment,) = (tmp_path / "logs" / "ltm-1:1").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"flush 2")] ^= 1
    segment.write_bytes(data)
    assert [record.payload for record in logs.seal("ltm-1/1")] == [b"flush 0", b"flush 1"]


def test_a_writer_and_several_who_seal_agree(logs: SharedDirectory) -> None:
    """Whatever was acknowledged is read by all of them, and all of them read the same."""
    for number in range(1, 21):
        log = f"ltm-1/{number}"
        mine = logs.create(log)
        mine.append(b"first")
        acknowledged = 1
        read: list[int] = []

        def seal(log: str = log, read: list[int] = read) -> None:
            read.append(len(logs.seal(log)))

        threads = [threading.Thread(target=seal, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            while True:
                acknowledged = mine.append(b"more")
        except LogSealed:
            pass
        for thread in threads:
            thread.join(WAIT_S_MAX)
        assert len(set(read)) == 1 and acknowledged <= read[0] <= acknowledged + 1


def records(first: int, last: int) -> list[Logged]:
    return [Logged("a/1", Decided(((number, 5), 6), 7)) for number in range(first, last + 1)]


def test_a_flush_takes_all_that_was_gathered(logs: SharedDirectory) -> None:
    writer = InlineWriter(logs.create("ltm-1/1"), lambda work: None)
    writer.add(records(1, 2))
    writer.add(records(3, 3))
    assert (writer.last_lsn, writer.durable_lsn) == (3, 0)
    writer.flush()
    writer.add(records(4, 4))
    writer.flush()
    assert (writer.last_lsn, writer.durable_lsn, writer.flushes) == (4, 4, 2)
    flushes = [decode_flush(flush.payload) for flush in logs.seal("ltm-1/1")]
    assert flushes == [(1, records(1, 3)), (4, records(4, 4))]
    writer.add(records(5, 5))
    with pytest.raises(LifeOver):
        writer.flush()


def test_a_thread_appends_what_gathers_meanwhile() -> None:
    log = SlowLog()
    writer = ThreadWriter(lambda: log, log.woken.release)
    writer.add(records(1, 1))
    writer.flush()
    assert log.begun.acquire(timeout=WAIT_S_MAX)
    writer.add(records(2, 3))
    writer.flush()
    writer.add(records(4, 4))
    writer.flush()
    assert writer.durable_lsn == 0
    log.go_on.release(2)
    for _ in range(2):
        assert log.woken.acquire(timeout=WAIT_S_MAX)
    assert (writer.durable_lsn, writer.flushes) == (4, 2)
    assert [decode_flush(payload) for payload in log.payloads] == [(1, records(1, 1)), (2, records(2, 4))]
    log.failing = True
    log.go_on.release()
    writer.add(records(5, 5))
    writer.flush()
    assert log.woken.acquire(timeout=WAIT_S_MAX)
    with pytest.raises(LifeOver, match="it failed"):
        writer.flush()
    assert log.closed.wait(WAIT_S_MAX)


#: As large as one record may be in practice: four of them are more than HBase takes at once.
LARGE_BYTES = 11_600_000


def large(number: int, size: int = LARGE_BYTES) -> Logged:
    return Logged("a/1", Committed(((number, 5), 6), 7, 1, ((b"key", None, (number, bytes(size))),), ()))


def test_a_flush_is_cut_by_bytes(logs: SharedDirectory) -> None:
    writer = InlineWriter(logs.create("ltm-1/1"), lambda work: None)
    some = [*records(1, 2), large(3), large(4), *records(5, 5), large(6), large(7, FLUSH_BYTES_MAX + 1), *records(8, 9)]
    writer.add(some)
    writer.flush()
    assert (writer.last_lsn, writer.durable_lsn, writer.flushes) == (9, 9, 5)
    flushes = logs.seal("ltm-1/1")
    assert all(len(flush.payload) <= HBASE_PAYLOAD_BYTES_MAX for flush in flushes)
    assert [decode_flush(flush.payload) for flush in flushes] == [
        (1, some[:3]), (4, some[3:5]), (6, some[5:6]), (7, some[6:7]), (8, some[7:]),
    ]  # fmt: skip


def test_a_thread_cuts_flushes_by_bytes_too() -> None:
    log = SlowLog()
    writer = ThreadWriter(lambda: log, log.woken.release)
    writer.add([large(1), large(2), large(3), large(4)])
    writer.flush()
    assert log.begun.acquire(timeout=WAIT_S_MAX)
    writer.add(records(5, 6))
    writer.flush()
    log.go_on.release(4)
    for _ in range(4):
        assert log.woken.acquire(timeout=WAIT_S_MAX)
    assert (writer.durable_lsn, writer.flushes) == (6, 4)
    assert all(len(payload) <= HBASE_PAYLOAD_BYTES_MAX for payload in log.payloads)
    assert [decode_flush(payload) for payload in log.payloads] == [
        *((number, [large(number)]) for number in (1, 2, 3)),
        (4, [large(4), *records(5, 6)]),
    ]
    writer.close()
    assert log.closed.wait(WAIT_S_MAX)


def test_a_thread_ends_with_its_life() -> None:
    log = SlowLog()
    writer = ThreadWriter(lambda: log, lambda: None)
    writer.close()
    assert log.closed.wait(WAIT_S_MAX)


def test_a_log_that_cannot_be_opened_ends_the_life() -> None:
    woken = threading.Semaphore(0)

    def refuse() -> SlowLog:
        raise LogSealed("it was used before")

    writer = ThreadWriter(refuse, woken.release)
    assert woken.acquire(timeout=WAIT_S_MAX)
    with pytest.raises(LifeOver, match="used before"):
        writer.flush()


class SlowLog:
    """Appends when it is told to."""

    wants_spare = False

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.woken = threading.Semaphore(0)
        self.closed = threading.Event()
        self.payloads: list[bytes] = []
        self.failing = False

    def append(self, payload: bytes) -> int:
        self.begun.release()
        assert self.go_on.acquire(timeout=WAIT_S_MAX)
        if self.failing:
            raise OperationalError("it failed")
        self.payloads.append(payload)
        return len(self.payloads)

    def trim(self, below_lsn: int) -> None: ...

    def prepare(self) -> bool:
        return False

    def close(self) -> None:
        self.closed.set()


def test_only_whole_flushes_are_trimmed(logs: SharedDirectory) -> None:
    trimmed: list[object] = []
    log = SlowLog()
    log.go_on.release(10)
    log.trim = trimmed.append  # type: ignore[method-assign]
    writer = InlineWriter(log, lambda work: work() and None)
    for first, last in ((1, 3), (4, 4), (5, 9)):
        writer.add(records(first, last))
        writer.flush()
    for below_lsn in (2, 3, 4, 6, 20):
        writer.trim(below_lsn)
    assert trimmed == [2, 3]


def never(error: Exception) -> None:
    raise AssertionError("nothing fails") from error


@pytest.mark.parametrize("error", [Damaged("its checksum is wrong"), ZeroDivisionError("nobody has thought of it")])
def test_damage_and_defects_end_the_process(
    logs: SharedDirectory, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(log: str, from_lsn: int) -> None:
        raise error

    monkeypatch.setattr(logs, "read", read)
    failures: SimpleQueue[Exception] = SimpleQueue()
    answers: SimpleQueue[object] = SimpleQueue()
    service = LogService(logs, lambda caller, answer: answers.put(answer), failures.put)
    try:
        service.request("me", ReadLog(1, "ltm-1/1"))
        assert failures.get(timeout=WAIT_S_MAX) is error
        # The thread has not ended with it, and this is the first answer.
        service.request("me", Seal(2, "ltm-1/9"))
        assert answers.get(timeout=WAIT_S_MAX) == LogRecords(2, "ltm-1/9", 1, (), True)
    finally:
        service.close()


def test_the_service_answers_in_the_order_of_records(logs: SharedDirectory) -> None:
    answers: list[tuple[object, object]] = []
    answered = threading.Semaphore(0)

    def put(caller: object, answer: object) -> None:
        answers.append((caller, answer))
        answered.release()

    writer = InlineWriter(logs.create("ltm-1/1"), lambda work: None)
    for first, last in ((1, 3), (4, 5)):
        writer.add(records(first, last))
        writer.flush()
    service = LogService(logs, put, never)
    try:
        for request in (ReadLog(1, "ltm-1/1", 3), ReadLog(2, "ltm-1/9"), Seal(3, "ltm-1/1"), Seal(4, "ltm-1/9")):
            service.request("me", request)
            assert answered.acquire(timeout=WAIT_S_MAX)
    finally:
        service.close()
    assert answers == [
        ("me", LogRecords(1, "ltm-1/1", 3, tuple(records(3, 5)), False)),
        ("me", NoLog(2, "ltm-1/9")),
        ("me", LogRecords(3, "ltm-1/1", 1, tuple(records(1, 5)), True)),
        ("me", LogRecords(4, "ltm-1/9", 1, (), True)),
    ]
