"""What only the commit log in HBase does: fencing, sealing, lost answers, large flushes, damage."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from tests.tcp_proxy import TcpProxy
from viewtide.changetables.errors import DataError, InterfaceError, OperationalError
from viewtide.dev_cluster import DevelopmentHbase
from viewtide.ltm.commit_log import hbase as hbase_log
from viewtide.ltm.commit_log.elsewhere import LogSealed
from viewtide.ltm.commit_log.hbase import HbaseLog, HbaseLogs, LogState, create_log_table, log_state, read_log, seal_log
from viewtide.ltm.hbase_client import AnswerLost, Hbase, Removal, RowOf, Value
from viewtide.ltm.ports import LogRecord

pytestmark = pytest.mark.slow

NAME = "ltm-1/1"


@pytest.fixture
def table(hbase_client: Hbase, hbase_namespace: str) -> bytes:
    return create_log_table(hbase_client, hbase_namespace)


@pytest.fixture
def log(hbase_client: Hbase, table: bytes) -> HbaseLog:
    return HbaseLog(hbase_client, table, NAME)


@pytest.fixture
def proxy(hbase_servers: DevelopmentHbase) -> Iterator[TcpProxy]:
    with TcpProxy(hbase_servers.thrift[0]) as proxy:
        yield proxy


def row_key(position: int) -> bytes:
    return NAME.encode() + b"\0" + position.to_bytes(8, "big")


# Fencing


def test_an_earlier_writer_is_refused_for_good_once_the_log_is_opened_again(
    hbase_client: Hbase, table: bytes, log: HbaseLog
) -> None:
    log.append(b"first")
    later = HbaseLog(hbase_client, table, NAME)
    for _ in range(2):
        with pytest.raises(OperationalError, match=r"opened by another process after lsn 1|stopped earlier"):
            log.append(b"of the old writer")
    assert later.append(b"second") == 2
    assert list(later.read(1)) == [LogRecord(1, b"first"), LogRecord(2, b"second")]


def test_a_sealed_log_takes_nothing_more(hbase_client: Hbase, table: bytes, log: HbaseLog) -> None:
    log.append(b"first")
    assert seal_log(hbase_client, table, NAME) == LogState(1, 1, True)
    with pytest.raises(OperationalError, match="sealed after lsn 1"):
        log.append(b"of a zombie")
    with pytest.raises(OperationalError, match="is sealed"):
        HbaseLog(hbase_client, table, NAME)
    assert list(read_log(hbase_client, table, NAME, 1)) == [LogRecord(1, b"first")]
    assert seal_log(hbase_client, table, NAME) == LogState(1, 1, True)


def test_a_log_is_sealed_before_its_writer_has_begun_it(hbase_client: Hbase, table: bytes) -> None:
    """Else a slow process would begin it after the take-over, and acknowledge what nobody ever reads."""
    assert log_state(hbase_client, table, NAME) == LogState(1, 0, False)
    assert seal_log(hbase_client, table, NAME) == LogState(1, 0, True)
    with pytest.raises(OperationalError, match="is sealed"):
        HbaseLog(hbase_client, table, NAME)


def test_of_an_append_and_a_seal_at_once_one_wins_and_both_know(hbase_client: Hbase, table: bytes) -> None:
    for number in range(12):
        name = f"race/{number}"
        log = HbaseLog(hbase_client, table, name)
        start, states = threading.Barrier(2), list[LogState]()

        def seal(name: str = name, start: threading.Barrier = start, states: list[LogState] = states) -> None:
            start.wait()
            states.append(seal_log(hbase_client, table, name))

        thread = threading.Thread(target=seal)
        thread.start()
        start.wait()
        acknowledged = 0
        with pytest.raises(OperationalError, match="sealed after"):
            for _ in range(1_000):
                acknowledged = log.append(b"x")
        thread.join()
        assert states[0].last_lsn == acknowledged == len(list(read_log(hbase_client, table, name, 1)))


def test_a_seal_that_was_cut_short_is_finished_by_the_next_one(
    hbase_client: Hbase, table: bytes, log: HbaseLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(b"first")
    rows = hbase_log._Rows(hbase_client, table, NAME)
    rows._seal_at(7)
    assert log_state(hbase_client, table, NAME) == LogState(1, 1, False)
    with pytest.raises(OperationalError, match="is sealed"):
        HbaseLog(hbase_client, table, NAME)
    assert log.append(b"second") == 2
    rows._seal_at(5)
    assert list(log.read(1)) == [LogRecord(1, b"first"), LogRecord(2, b"second")]
    assert seal_log(hbase_client, table, NAME) == LogState(1, 2, True)
    with pytest.raises(OperationalError, match="sealed after lsn 2"):
        log.append(b"third")
    assert [record.lsn for record in read_log(hbase_client, table, NAME, 2)] == [2]


def test_logs_whose_names_begin_alike_are_apart(hbase_client: Hbase, table: bytes) -> None:
    logs = [HbaseLog(hbase_client, table, name) for name in ("ltm-1", "ltm-1/1", "ltm-10")]
    for number, log in enumerate(logs):
        for _ in range(number + 1):
            log.append(b"%d" % number)
    assert [log_state(hbase_client, table, name).last_lsn for name in ("ltm-1", "ltm-1/1", "ltm-10")] == [1, 2, 3]
    assert [{record.payload for record in log.read(1)} for log in logs] == [{b"0"}, {b"1"}, {b"2"}]


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_impossible_names_are_refused(hbase_client: Hbase, table: bytes, name: str) -> None:
    with pytest.raises(InterfaceError, match="cannot be the name"):
        HbaseLog(hbase_client, table, name)


# Lost answers


def test_an_append_whose_answer_is_lost_is_found_and_counts_once(proxy: TcpProxy, table: bytes) -> None:
    client = Hbase([proxy.address])
    log = HbaseLog(client, table, NAME)
    written = [b"flush %d" % number for number in range(30)]
    for number, payload in enumerate(written):
        proxy.answers_to_lose = number % 3
        assert log.append(payload) == number + 1
    assert [record.payload for record in log.read(1)] == written
    assert proxy.connections > 20
    client.close()


def test_an_append_that_nobody_answers_stops_the_log_and_opening_it_decides(
    proxy: TcpProxy, hbase_client: Hbase, table: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Hbase([proxy.address], call_ms=300, patience_ms=500)
    log = HbaseLog(client, table, NAME)
    log.append(b"first")
    with proxy.holding_answers():
        with pytest.raises(OperationalError, match=r"whether lsn 2 .* is durable is not known"):
            log.append(b"second")
        with pytest.raises(OperationalError, match="stopped earlier"):
            log.append(b"third")
    client.close()
    again = HbaseLog(hbase_client, table, NAME)
    decided = [record.payload for record in again.read(1)]
    assert decided in ([b"first"], [b"first", b"second"])
    assert again.append(b"next") == len(decided) + 1
    assert [record.payload for record in again.read(1)] == [*decided, b"next"]


def test_a_no_of_hbase_to_our_own_row_is_a_yes(
    hbase_client: Hbase, log: HbaseLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HBase's own client repeats a request whose answer it lost, and then finds the row that it has written itself."""
    real = hbase_client.put_if

    def twice(*arguments: object) -> bool:
        return all([real(*arguments), real(*arguments)])  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(hbase_client, "put_if", twice)
        assert log.append(b"first") == 1
    assert list(log.read(1)) == [LogRecord(1, b"first")]


def test_a_request_that_was_under_way_for_long_does_not_get_in_after_the_next_writer(
    hbase_client: Hbase, table: bytes, log: HbaseLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[tuple[object, ...]] = []

    def delay(*arguments: object) -> bool:
        requests.append(arguments)
        raise AnswerLost("held back on the way")

    with monkeypatch.context() as patch:
        patch.setattr(hbase_client, "put_if", delay)
        patch.setattr(hbase_log, "APPEND_MS_MAX", 0)
        with pytest.raises(OperationalError, match="not known: held back"):
            log.append(b"late")
    later = HbaseLog(hbase_client, table, NAME)
    assert not hbase_client.put_if(*requests[0])  # type: ignore[arg-type]
    assert later.append(b"first") == 1
    assert list(later.read(1)) == [LogRecord(1, b"first")]


def test_an_earlier_writer_is_refused_after_the_log_was_trimmed_beyond_it(
    hbase_client: Hbase, table: bytes, log: HbaseLog
) -> None:
    log.append(b"first")
    later = HbaseLog(hbase_client, table, NAME)
    for number in range(5):
        later.append(b"%d" % number)
    later.trim(later.last_lsn)
    with pytest.raises(OperationalError, match="opened by another process after lsn 1"):
        log.append(b"of a zombie")
    assert later.append(b"last") == 7
    assert [record.lsn for record in HbaseLog(hbase_client, table, NAME).read(6)] == [6, 7]


def test_a_slow_start_does_not_take_a_place_that_was_trimmed(
    hbase_client: Hbase, table: bytes, log: HbaseLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(b"first")
    take_next = hbase_log._Rows.take_next

    def slowly(rows: hbase_log._Rows, last: hbase_log.Header | None, writer: bytes) -> hbase_log.Header:
        for number in range(5):
            log.append(b"%d" % number)
        log.trim(log.last_lsn)
        return take_next(rows, last, writer)

    with monkeypatch.context() as patch:
        patch.setattr(hbase_log._Rows, "take_next", slowly)
        with pytest.raises(OperationalError, match="trimmed by another process while it was opened"):
            HbaseLog(hbase_client, table, NAME)
    assert log.append(b"last") == 7


def test_a_log_that_lost_its_rows_is_not_begun_anew(hbase_client: Hbase, table: bytes, log: HbaseLog) -> None:
    for number in range(5):
        log.append(b"%d" % number)
    log.trim(4)
    gone = [Removal(row_key(position), 1, [(b"f", None)], older=True) for position in range(1, 8)]
    hbase_client.remove(table, gone)
    with pytest.raises(OperationalError, match="above the trimmed bound are missing"):
        HbaseLog(hbase_client, table, NAME)


# Sizes


def test_a_flush_larger_than_a_cell_of_hbase(log: HbaseLog, hbase_client: Hbase, table: bytes) -> None:
    written = [os.urandom(11 << 20), b"", os.urandom(hbase_log.PART_BYTES), os.urandom(hbase_log.PART_BYTES + 1)]
    for payload in written:
        log.append(payload)
    assert [record.payload for record in log.read(1)] == written
    log.trim(4)
    assert [record.payload for record in read_log(hbase_client, table, NAME, 4)] == written[3:]
    stored = hbase_client.get(table, row_key(2))
    assert stored is None, "all parts of a trimmed record go"


def test_a_flush_that_one_call_cannot_carry_is_refused(log: HbaseLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hbase_log, "HBASE_PAYLOAD_BYTES_MAX", 1_000)
    with pytest.raises(DataError, match="at most 1000 bytes, this one has 1001"):
        log.append(bytes(1_001))
    assert log.append(bytes(1_000)) == 1


def test_many_records_are_read_in_pages(log: HbaseLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hbase_log, "HEADERS_PER_CALL", 7)
    monkeypatch.setattr(hbase_log, "CALL_BYTES_MAX", 1_000)
    written = [b"%d" % number * (1 + number % 90) for number in range(60)]
    for payload in written:
        log.append(payload)
    for from_lsn in (1, 7, 8, 59, 60):
        assert [record.payload for record in log.read(from_lsn)] == written[from_lsn - 1 :]


# Trimming


def test_a_trim_that_was_cut_short_leaves_no_hole(
    hbase_client: Hbase, table: bytes, log: HbaseLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        log.append(b"%d" % number)

    def some(table: bytes, removals: list[Removal]) -> None:
        real(table, removals[2:4])
        raise OperationalError("killed")

    real = hbase_client.remove
    with monkeypatch.context() as patch:
        patch.setattr(hbase_client, "remove", some)
        with pytest.raises(OperationalError, match="killed"):
            log.trim(8)
    again = HbaseLog(hbase_client, table, NAME)
    assert again.oldest_lsn == 8
    assert [record.lsn for record in again.read(8)] == [8, 9, 10]
    with pytest.raises(OperationalError, match="lsn 7 is gone, the oldest is 8"):
        again.read(7)
    again.trim(10)
    assert log_state(hbase_client, table, NAME) == LogState(10, 10, False)


def test_a_reader_whose_records_are_trimmed_is_told(
    log: HbaseLog, hbase_client: Hbase, table: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hbase_log, "HEADERS_PER_CALL", 2)
    monkeypatch.setattr(hbase_log, "CALL_BYTES_MAX", 1)
    for number in range(10):
        log.append(b"%d" % number)
    reader = read_log(hbase_client, table, NAME, 1)
    next(reader)
    log.trim(9)
    with pytest.raises(OperationalError, match=r"lsn \d is gone, the oldest is 9"):
        list(reader)
    with pytest.raises(OperationalError, match="lsn 1 is gone, the oldest is 9"):
        read_log(hbase_client, table, NAME, 1)


# Damage


def test_a_changed_payload_is_damage(log: HbaseLog, hbase_client: Hbase, table: bytes) -> None:
    log.append(b"genuine")
    hbase_client.put(table, [RowOf(row_key(2), [Value(b"f", b"0000", 1, b"changed")])])
    with pytest.raises(OperationalError, match=r"damaged at position 2.*checksum"):
        list(log.read(1))


def test_a_row_under_another_key_is_damage(log: HbaseLog, hbase_client: Hbase, table: bytes) -> None:
    log.append(b"first")
    log.append(b"second")
    other = hbase_client.get(table, row_key(2))
    assert other is not None
    hbase_client.put(table, [RowOf(row_key(3), other.values)])
    with pytest.raises(OperationalError, match="damaged at position 3"):
        list(log.read(1))


def test_a_header_that_is_none_is_damage(log: HbaseLog, hbase_client: Hbase, table: bytes) -> None:
    log.append(b"first")
    hbase_client.put(table, [RowOf(row_key(2), [Value(b"f", b"h", 1, b"nonsense")])])
    with pytest.raises(OperationalError, match=r"position 2.*header"):
        HbaseLog(hbase_client, table, NAME)


def test_a_missing_row_is_damage(log: HbaseLog, hbase_client: Hbase, table: bytes) -> None:
    for number in range(5):
        log.append(b"%d" % number)
    hbase_client.remove(table, [Removal(row_key(3), 1, [(b"f", b"h"), (b"f", b"0000")])])
    with pytest.raises(OperationalError, match=r"position 3.*missing"):
        list(log.read(1))


# The logs of a cluster


@pytest.fixture
def logs(hbase_client: Hbase, hbase_namespace: str) -> HbaseLogs:
    return HbaseLogs(hbase_client, hbase_namespace)


def test_a_life_has_one_log_that_others_read(logs: HbaseLogs) -> None:
    assert logs.read(NAME, 1) is None
    mine = logs.create(NAME)
    assert logs.read(NAME, 1) == ([], False)
    for payload in (b"one", b"two", b"three"):
        mine.append(payload)
    assert logs.read(NAME, 2) == ([LogRecord(2, b"two"), LogRecord(3, b"three")], False)
    mine.trim(3)
    assert logs.read(NAME, 1) == ([LogRecord(3, b"three")], False)
    with pytest.raises(LogSealed, match="used before"):
        logs.create(NAME)


def test_a_log_that_is_sealed_reads_the_same_for_ever(logs: HbaseLogs) -> None:
    mine = logs.create(NAME)
    mine.append(b"one")
    assert logs.seal(NAME) == logs.seal(NAME) == [LogRecord(1, b"one")]
    for _ in range(2):
        with pytest.raises(OperationalError, match="sealed after lsn 1"):
            mine.append(b"two")
    assert logs.read(NAME, 1) == ([LogRecord(1, b"one")], True)
    assert logs.seal("ltm-1/2") == [] and logs.read("ltm-1/2", 1) == ([], True)
    with pytest.raises(LogSealed, match="used before"):
        logs.create("ltm-1/2")


def test_a_writer_and_several_who_seal_agree(logs: HbaseLogs) -> None:
    """Whatever was acknowledged is read by all of them, and all of them read the same."""
    for number in range(5):
        log = f"ltm-1/{number}"
        mine = logs.create(log)
        read: list[int] = []

        def seal(log: str = log, read: list[int] = read) -> None:
            read.append(len(logs.seal(log)))

        acknowledged = mine.append(b"first")
        threads = [threading.Thread(target=seal) for _ in range(3)]
        for thread in threads:
            thread.start()
        with pytest.raises(LogSealed):
            while True:
                acknowledged = mine.append(b"more")
        for thread in threads:
            thread.join()
        assert read == [acknowledged] * 3
