"""Ten ways in which HBase, Thrift and happybase surprise, each pinned on the live server, and what guards against it.

If a new version of HBase fails here, the adapters' assumptions have changed: read the docstring and look for its guard.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import happybase
import pytest
import thriftpy2.thrift

from tests.tcp_proxy import TcpProxy
from viewtide.changetables.errors import OperationalError, Unavailable
from viewtide.dev_cluster import DevelopmentHbase
from viewtide.ltm import hbase_client as client_module
from viewtide.ltm.hbase_client import ALL_VERSIONS, Hbase, HbaseRefused, Removal, RowOf, ScanOf, Value

pytestmark = pytest.mark.slow

#: Made by happybase when it is imported.
HbaseIOError: type[Exception] = sys.modules["Hbase_thrift"].IOError  # type: ignore[attr-defined]


@pytest.fixture
def table(hbase_client: Hbase, hbase_namespace: str) -> bytes:
    name = f"{hbase_namespace}:t".encode()
    hbase_client.create_table(name, [(b"f", ALL_VERSIONS)])
    return name


@pytest.fixture
def happy(hbase_servers: DevelopmentHbase, table: bytes) -> Iterator[Any]:
    host, _, port = hbase_servers.thrift1[0].partition(":")
    connection = happybase.Connection(host, int(port))
    yield connection.table(table)
    connection.close()


def one(row: bytes, value: bytes, timestamp: int, qualifier: bytes = b"q") -> RowOf:
    return RowOf(row, [Value(b"f", qualifier, timestamp, value)])


def values(client: Hbase, table: bytes, row: bytes, last_ts: int = client_module.TIMESTAMP_MAX) -> list[bytes]:
    found = client.get(table, row, last_ts=last_ts, versions=ALL_VERSIONS)
    return [each.value for each in found.values] if found else []


# 1


def test_a_connection_that_timed_out_answers_the_next_call_with_the_old_reply(
    hbase_servers: DevelopmentHbase, hbase_client: Hbase, table: bytes
) -> None:
    """happybase keeps such a connection; ours is thrown away."""
    hbase_client.put(table, [one(b"first", b"1", 5), one(b"second", b"2", 5)])
    with TcpProxy(hbase_servers.thrift1[0]) as proxy:
        host, _, port = proxy.address.partition(":")
        connection = happybase.Connection(host, int(port), timeout=700)
        happy = connection.table(table)
        happy.row(b"first")
        with proxy.holding_answers(), pytest.raises(TimeoutError):
            happy.row(b"first")
        assert happy.row(b"second") == {b"f:q": b"1"}, "the answer to another question"
        connection.close()
    with TcpProxy(hbase_servers.thrift[0]) as proxy:
        client = Hbase([proxy.address], call_ms=700, patience_ms=0)
        assert values(client, table, b"first") == [b"1"]
        with proxy.holding_answers(), pytest.raises(Unavailable):
            values(client, table, b"first")
        assert values(client, table, b"second") == [b"2"]
        client.close()


# 2


def test_an_empty_value_counts_as_absent(hbase_client: Hbase, table: bytes) -> None:
    """So no cell that is compared is ever empty: headers of log rows and states of stores have a fixed part."""
    hbase_client.put(table, [one(b"r", b"", 1)])
    assert hbase_client.put_if(table, one(b"r", b"taken", 2), b"f", b"q", None)
    assert values(hbase_client, table, b"r") == [b"taken", b""]


# 3


def test_a_row_that_was_deleted_hides_what_is_written_at_the_same_timestamp(hbase_client: Hbase, table: bytes) -> None:
    """So rows that are compared are never deleted and used again: positions of a log are not."""
    hbase_client.put(table, [one(b"r", b"old", 5)])
    hbase_client.remove(table, [Removal(b"r", 5, [(b"f", b"q")])])
    assert hbase_client.put_if(table, one(b"r", b"new", 5), b"f", b"q", None), "it says yes"
    assert values(hbase_client, table, b"r") == [], "and the row is not there"


# 4


def test_a_batch_with_a_bad_row_raises_and_stores_the_others(happy: Any, hbase_client: Hbase, table: bytes) -> None:
    """So a batch is never taken for atomic, and its cells carry timestamps: it can be sent again as a whole."""
    with pytest.raises(HbaseIOError), happy.batch() as batch:
        batch.put(b"good", {b"f:q": b"1"})
        batch.put(b"bad", {b"no_such_family:q": b"1"})
    assert values(hbase_client, table, b"good") == [b"1"]
    rows = [one(b"a", b"1", 5), RowOf(b"b", [Value(b"no_such_family", b"q", 5, b"1")])]
    with pytest.raises(HbaseRefused, match="family"):
        hbase_client.put(table, rows)
    hbase_client.put(table, rows[:1])
    assert values(hbase_client, table, b"a") == [b"1"]


# 5


def test_delete_and_put_in_one_batch_end_deleted(happy: Any, hbase_client: Hbase, table: bytes) -> None:
    """So tombstones are values, and deletes are made by pruning alone, of exact versions."""
    for row, order in ((b"a", "delete put"), (b"b", "put delete")):
        with happy.batch() as batch:
            for step in order.split():
                batch.delete(row) if step == "delete" else batch.put(row, {b"f:q": b"1"})
        assert values(hbase_client, table, row) == []


def test_a_put_below_an_older_delete_stays_invisible_but_not_below_that_of_one_version(
    hbase_client: Hbase, table: bytes
) -> None:
    hbase_client.put(table, [one(b"a", b"1", 10), one(b"b", b"1", 10)])
    hbase_client.remove(table, [Removal(b"a", 10, [(b"f", b"q")], older=True), Removal(b"b", 10, [(b"f", b"q")])])
    hbase_client.put(table, [one(b"a", b"late", 9), one(b"b", b"late", 9)])
    assert values(hbase_client, table, b"a") == []
    assert values(hbase_client, table, b"b") == [b"late"]


# 6


def test_an_upper_bound_of_time_is_exclusive_in_happybase_and_inclusive_in_ours(
    happy: Any, hbase_client: Hbase, table: bytes
) -> None:
    hbase_client.put(table, [one(b"r", b"1", 10), one(b"r", b"2", 20)])
    assert happy.row(b"r", timestamp=20) == {b"f:q": b"1"}
    assert values(hbase_client, table, b"r", 20) == [b"2", b"1"]
    assert values(hbase_client, table, b"r", 19) == [b"1"]
    (row,) = hbase_client.page(table, ScanOf(b"", b"", last_ts=20), 10)
    assert row.values == [Value(b"f", b"q", 20, b"2")]
    hbase_client.put(table, [one(b"r", b"again", 20)])
    assert values(hbase_client, table, b"r") == [b"again", b"1"], "the same timestamp overwrites"


def test_more_versions_than_a_family_keeps_are_there_until_they_are_compacted(
    hbase_client: Hbase, hbase_namespace: str
) -> None:
    """So nothing relies on HBase to forget versions: families keep all of them, and `prune` deletes."""
    table = f"{hbase_namespace}:few".encode()
    hbase_client.create_table(table, [(b"f", 3)])
    hbase_client.put(table, [one(b"r", b"%d" % ts, ts) for ts in range(1, 6)])
    assert len(values(hbase_client, table, b"r")) == 3
    assert values(hbase_client, table, b"r", 1) == [b"1"], "as of an earlier moment it is still there"


# 7


def test_each_kind_of_failure_is_an_error_with_a_reason(
    hbase_client: Hbase, hbase_namespace: str, table: bytes, hbase_servers: DevelopmentHbase
) -> None:
    missing = f"{hbase_namespace}:missing".encode()
    for call in _calls(hbase_client, missing):
        with pytest.raises(HbaseRefused, match=r"refused: .*missing.*does the table exist"):
            call()
    with pytest.raises(HbaseRefused):
        hbase_client.put(table, [one(b"r", bytes(11 << 20), 1)])
    with pytest.raises(HbaseRefused):
        hbase_client.put(table, [one(b"", b"x", 1)])
    with TcpProxy(hbase_servers.thrift[0]) as proxy:
        gone = proxy.address
    with pytest.raises(Unavailable, match=rf"did not answer for 0\.1 s at {gone}") as failed:
        Hbase([gone], patience_ms=100).get(table, b"r")
    assert failed.value.retryable and isinstance(failed.value, OperationalError)
    assert hbase_client.get(table, b"r") is None, "the connections are still good"


def _calls(client: Hbase, table: bytes) -> list[Callable[[], object]]:
    return [
        lambda: client.get(table, b"r"),
        lambda: client.page(table, ScanOf(b"", b""), 1),
        lambda: client.put(table, [one(b"r", b"x", 1)]),
        lambda: client.remove(table, [Removal(b"r", 1, [(b"f", b"q")])]),
        lambda: client.put_if(table, one(b"r", b"x", 1), b"f", b"q", None),
    ]


# 8


def test_one_call_writes_rows_with_a_timestamp_each(hbase_client: Hbase, table: bytes) -> None:
    """A batch of happybase has one timestamp, so a checkpoint would take a call per row: hence Thrift 2."""
    hbase_client.put(table, [one(b"%04d" % number, b"x", 1_000 + number) for number in range(2_000)])
    found = list(hbase_client.scan(table, ScanOf(b"", b""), 700))
    assert [row.values[0].timestamp for row in found] == list(range(1_000, 3_000))


# 9


def test_a_commit_ts_is_a_timestamp_that_later_writes_without_one_do_not_reach(
    happy: Any, hbase_client: Hbase, table: bytes
) -> None:
    """ms << 20 is far above HBase's own clock. So every write and delete of ours carries a timestamp."""
    commit_ts = int(time.time() * 1000) << 20
    hbase_client.put(table, [one(b"r", b"ours", commit_ts)])
    happy.put(b"r", {b"f:q": b"of now"})
    assert happy.row(b"r", include_timestamp=True) == {b"f:q": (b"ours", commit_ts)}
    happy.delete(b"r")
    assert values(hbase_client, table, b"r") == [b"ours"]
    hbase_client.remove(table, [Removal(b"r", commit_ts, [(b"f", b"q")])])
    assert values(hbase_client, table, b"r") == []


def test_the_highest_timestamp_means_now(hbase_client: Hbase, table: bytes) -> None:
    hbase_client.put(table, [one(b"r", b"highest", client_module.TIMESTAMP_MAX), one(b"s", b"now", 2**63 - 1)])
    (found,) = hbase_client.get_many(table, [b"r"])
    assert found is not None and found.values[0].timestamp == client_module.TIMESTAMP_MAX
    (now,) = hbase_client.get_many(table, [b"s"])
    assert now is not None and abs(now.values[0].timestamp - time.time() * 1000) < 600_000


# 10


def test_an_error_whose_message_is_bytes_can_be_told() -> None:
    """str() of it raises TypeError in some versions of the library."""
    error = thriftpy2.thrift.TApplicationException(6, b"Internal \xff error")
    assert client_module._text(error) == "Internal \ufffd error"
    assert client_module._text(TimeoutError()) == "TimeoutError"
