"""The bytes that are made here for a call of HBase are those that Thrift's own library makes."""

from __future__ import annotations

import pytest

pytest.importorskip("thriftpy2")

from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.protocol.binary import TBinaryProtocol
from thriftpy2.thrift import TMessageType
from thriftpy2.transport import TMemoryBuffer

from viewtide.ltm import hbase_client
from viewtide.ltm.hbase_client import TIMESTAMP_MAX, RowOf, Value

_texts = st.binary(max_size=5)
_values = st.builds(Value, _texts, _texts, st.integers(0, TIMESTAMP_MAX), _texts)
_rows = st.lists(st.builds(RowOf, _texts, st.lists(_values, max_size=4)), min_size=1, max_size=5)


def _by_thrift(table: bytes, rows: list[RowOf]) -> bytes:
    made = TMemoryBuffer()
    protocol = TBinaryProtocol(made)
    protocol.write_message_begin("putMultiple", TMessageType.CALL, 0)
    arguments = hbase_client._idl.THBaseService.putMultiple_args()
    arguments.table, arguments.puts = table, [hbase_client._put(row) for row in rows]
    arguments.write(protocol)
    protocol.write_message_end()
    return bytes(made.getvalue())


@given(_texts, _rows)
def test_many_puts_are_written_as_thrift_writes_them(table: bytes, rows: list[RowOf]) -> None:
    assert list(hbase_client._put_calls(table, rows)) == [_by_thrift(table, rows)]


def test_a_call_has_no_more_than_a_server_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hbase_client, "CALL_BYTES_MAX", 100)
    rows = [RowOf(b"%d" % number, [Value(b"f", b"q", 1, b"x" * 40)]) for number in range(5)]
    calls = list(hbase_client._put_calls(b"t", rows))
    assert calls == [_by_thrift(b"t", rows[:2]), _by_thrift(b"t", rows[2:4]), _by_thrift(b"t", rows[4:])]


def test_only_so_many_columns_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hbase_client, "_HEADS_MAX", 3)
    heads = hbase_client._Heads()
    made = [heads[b"f", b"%d" % number] for number in range(10)]
    assert len(set(made)) == 10 and len(heads) <= 3
