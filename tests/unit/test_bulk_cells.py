"""Cells that are made column by column have the keys, the order and the values of those that are made row by row."""

from __future__ import annotations

import datetime
from random import Random
from zlib import crc32

import pyarrow as pa
import pytest

import viewtide as vt
from viewtide.ltm.bulk_cells import Encoder, physical, rows_of, takes
from viewtide.ltm.codec import unpack

TS = 77
VALUES: dict[str, list[object]] = {
    "n": [0, 1, -1, 127, 128, 200, -40_000, 2**31, -(2**63), 2**63 - 1],
    "t": ["", "a", "ab", "b", "é", "ﾟ" * 50],
    "raw": [b"", b"\xff", b"ab", b"abc"],
    "b": [True, False],
    "d": [datetime.date(1, 1, 1), datetime.date(2026, 1, 31), datetime.date(9999, 12, 31)],
    "ts": [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)],
    "code": ["abc", "abd", "xyz"],
    "f": [0.5, -0.0, 1e300],
}
KINDS = {"n": int, "t": str, "raw": bytes, "b": bool, "d": "date", "ts": "timestamp", "code": str, "f": float}
KEYS = (["id"], ["n", "id"], ["t", "b", "id"], ["raw", "id"], ["d", "ts", "code", "id"])
INDEXES = ("n", "t", "raw", "b", ["d", "ts"], "code", ["code", "id"])


@pytest.mark.parametrize("with_nulls", [False, True])
@pytest.mark.parametrize("key", KEYS, ids="-".join)
def test_cells_are_those_of_rows(key: list[str], with_nulls: bool) -> None:
    with vt.connect("memory:", ltms=1) as db:
        db.create_table("t", {"id": int, **KINDS}, key=key, indexes=INDEXES)
        target = db._node.engine.ltm.tables.by_name["t"]  # type: ignore[attr-defined]
    assert takes(target.table)
    columns = physical(_batch(Random(1), key, with_nulls), target.table)
    assert columns is not None
    made = Encoder(target.table, TS).encode(columns)
    assert made is not None
    rows = rows_of(columns, target.table)
    keys = target.codec.keys_of(rows)

    assert {crc32(cell_key + value) for some in (made[0], *made[1]) for cell_key, value in some} == {0x2144DF1C}
    assert [_opened(*cell) for cell in made[0]] == sorted(zip(keys, rows, strict=True))
    for entries, found in zip(target.indexes, made[1], strict=True):
        expected = [(entries.codec.entry(row, row_key), row_key) for row, row_key in zip(rows, keys, strict=True)]
        assert [(cell_key[:-8], value[:-5]) for cell_key, value in found] == sorted(expected)


def _batch(draw: Random, key: list[str], with_nulls: bool) -> pa.RecordBatch:
    numbers = draw.sample(range(-500, 500), 200)
    rows: list[dict[str, object]] = []
    for number in numbers:
        rows.append({name: draw.choice(values) for name, values in VALUES.items()} | {"id": number})
        for name in VALUES:
            if with_nulls and name not in key and draw.random() < 0.2:
                rows[-1][name] = None
    return pa.RecordBatch.from_pylist(rows)


def _opened(cell_key: bytes, value: bytes) -> tuple[bytes, object]:
    assert cell_key[-8:] == (2**64 - 1 - TS).to_bytes(8, "big") and value[-5:-4] == b"\1"
    return cell_key[:-8], unpack(value[:-5])
