"""Stored rows of one width that are read as columns are those that are read one by one."""

from __future__ import annotations

import datetime
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import viewtide as vt
from viewtide import bulk
from viewtide.changetables.plan import ViewPlan
from viewtide.changetables.types import NAN
from viewtide.coordinator import build
from viewtide.ltm import tables
from viewtide.ltm.codec import pack, unpack
from viewtide.ltm.fixed import FixedValues
from viewtide.ltm.store import lmdb

pa = pytest.importorskip("pyarrow")

TAIL = b"\1\0\0\0\0"
#: Values of a few widths, so that many rows have the same.
NUMBERS = (0, 5, 127, 128, 255, 256, 300, 70_000, -1, -32, -33, -200, -40_000, 2**40, -(2**63), 2**63 - 1, 0.5, -0.0)
OTHERS = (None, True, False, "", "ab", "cd", "é", "x" * 40, b"ab", datetime.date(2026, 1, 31))
values = st.sampled_from((*NUMBERS, *OTHERS))


@given(st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[values] * width), min_size=1, max_size=30)))
def test_rows_are_what_is_packed(rows: list[tuple[object, ...]]) -> None:
    for size, some in groupby(sorted(map(pack, rows), key=len), key=len):
        packed = list(some)
        fixed = FixedValues(b"".join(value + TAIL for value in packed), size + len(TAIL), size)
        assert list(fixed) == packed == [fixed[number] for number in range(len(fixed))]
        found = fixed.rows()
        assert found is None or list(map(repr, found)) == [repr(unpack(value)) for value in packed]


ALIKE = ([(1, -205, 300), (2, -206, 400)], [(True, "ab"), (False, "cd")], [(None, 0.5), (None, 1.5)])


@pytest.mark.parametrize("rows", ALIKE)
def test_what_is_alike_is_read_as_columns(rows: list[tuple[object, ...]]) -> None:
    packed = list(map(pack, rows))
    assert FixedValues(b"".join(value + TAIL for value in packed), len(packed[0]) + 5, len(packed[0])).rows() == rows


def test_there_is_one_nan() -> None:
    packed = pack((float("nan"),))
    (row,) = FixedValues(packed + TAIL, len(packed) + 5, len(packed)).rows() or ()
    assert row[0] is NAN


@pytest.mark.embedded("it looks at what is stored here")
@pytest.mark.parametrize("evaluator", [None, "rows", "columns"])
def test_views_over_what_was_loaded(db_path: Path, monkeypatch: pytest.MonkeyPatch, evaluator: str | None) -> None:
    for module, name, value in (
        (bulk, "STAGED_ROWS_MIN", 1), (build, "STORED_ROWS_MIN", 1), (tables, "PAGE_CELLS", 300),
        (lmdb, "ALIKE_CELLS_MIN", 50), (lmdb, "ALIKE_PIECE_CELLS", 40),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    taken: list[int] = []
    by_columns = ViewPlan.contribute_columns
    monkeypatch.setattr(ViewPlan, "contribute_columns", lambda *args: taken.append(1) or by_columns(*args))
    with vt.connect(db_path, ltms=1) as db:
        db.create_table("p", {"id": int, "c": str}, key="id")
        db.create_table(
            "t",
            {"id": int, "p": int, "n": int, "f": float, "s": str, "b": bool, "none": int},
            key="id",
        )
        with db.transaction() as tx:
            tx.insert("p", [{"id": n, "c": "ab"[n % 2]} for n in range(10)])
        rows = [
            {"id": n, "p": n % 10, "n": n - 500, "f": n / 8, "s": f"s{n % 3}", "b": n % 5 == 0} for n in range(1_000)
        ]
        db.table("t").load(pa.Table.from_pylist(rows))
        db.sql("UPDATE t SET n = 1000000 WHERE id = 700")
        db.sql("DELETE FROM t WHERE id = 300")
        sql = (
            "SELECT p.c, t.s, t.b, COUNT(*) AS k, SUM(t.n) AS n, SUM(t.f) AS f, COUNT(t.none) AS o"
            " FROM t JOIN p ON p.id = t.p GROUP BY p.c, t.s, t.b"
        )
        db.create_view("v", sql, evaluator=evaluator)
        db.create_view("w", "SELECT id, n, s FROM t WHERE f > 10", evaluator=evaluator)
        assert bool(taken) is (evaluator != "rows")
        assert db.view("v").verify().ok and db.view("w").verify().ok
        assert sum(row.k for row in db.view("v").rows()) == 999 and len(db.view("w").rows()) == 918
