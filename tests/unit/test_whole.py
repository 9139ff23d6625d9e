"""Which evaluator computes a view as a whole, and what is told where there is no Spark."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import viewtide as vt
from viewtide.changetables.evaluators import spark_session
from viewtide.changetables.evaluators.whole import JOB_S, SPARK_ROWS_MIN, START_S, WholeCosts
from viewtide.changetables.keys import table_range
from viewtide.ltm.store import lmdb


def test_small_work_never_goes_to_spark_whatever_was_measured() -> None:
    costs = WholeCosts(us={"rows": 1_000.0, "spark": 0.001}, job_s=0.0)
    chosen = costs.choose(SPARK_ROWS_MIN - 1, has_session=True)
    assert chosen.evaluator == "rows"
    assert "too few" in chosen.reason
    assert costs.choose(SPARK_ROWS_MIN, has_session=True).evaluator == "spark"


def test_the_start_of_a_session_counts_where_there_is_none() -> None:
    costs = WholeCosts(us={"rows": 10.0, "spark": 1.0})
    rows_count = int((JOB_S + START_S / 2) / 9e-6)
    assert costs.choose(rows_count, has_session=True).evaluator == "spark"
    without = costs.choose(rows_count, has_session=False)
    assert without.evaluator == "rows"
    assert "with the start of a session" in without.reason
    assert costs.choose(10 * rows_count, has_session=False).evaluator == "spark"


def test_what_is_measured_moves_the_choice() -> None:
    costs = WholeCosts()
    rows_count = 10_000_000
    for _ in range(10):
        costs.record("rows", rows_count, 60.0)
        costs.record("spark", rows_count, 20.0 + costs.job_s)
    assert costs.us["rows"] == pytest.approx(6.0, rel=0.1)
    assert costs.us["spark"] == pytest.approx(2.0, rel=0.1)
    assert costs.choose(rows_count, has_session=True).evaluator == "spark"
    for _ in range(10):
        costs.record("spark", rows_count, 200.0)
    assert costs.choose(rows_count, has_session=True).evaluator == "rows"


def test_small_jobs_tell_what_a_job_costs() -> None:
    costs = WholeCosts()
    for _ in range(20):
        costs.record("spark", 1_000, 0.5)
    assert costs.job_s == pytest.approx(0.5, rel=0.01)
    before = dict(costs.us)
    costs.record("rows", 1_000, 9.0)
    costs.record("columns", 10**6, 9.0)
    costs.record("spark", 0, 9.0)
    assert costs.us == before, "little work says nothing about rows"


def test_the_first_job_says_nothing_about_the_others() -> None:
    """It starts Spark's workers. If it counted, Spark might not be asked again, and nobody would find out."""
    costs = WholeCosts()
    before = dict(costs.us)
    costs.record("spark", 1_000_000, 60.0)
    assert costs.us == before
    costs.record("spark", 1_000_000, 60.0)
    assert costs.us["spark"] > before["spark"]


def test_nobody_counts_more_rows_than_decide() -> None:
    costs = WholeCosts(us={"rows": 5.0, "spark": 6.0})
    assert costs.break_even(has_session=True) is None
    assert "by Spark" in costs.never().reason
    costs.us["spark"] = 1.0
    enough = costs.break_even(has_session=False)
    assert enough is not None
    assert costs.choose(enough, has_session=False).evaluator == "spark"
    assert costs.choose(enough - 2, has_session=False).evaluator == "rows"


@pytest.mark.embedded("looks inside the database of this process")
@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_the_rows_of_a_table_are_counted(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb, "COUNT_CELLS", 100)
    with vt.connect(tmp_path / "db" if kind == "directory" else "memory:", ltms=1) as db:
        for name, count in (("before", 30), ("t", 1_234), ("after", 40)):
            db.create_table(name, {"id": int, "n": int}, key="id", indexes=["n"])
            with db.transaction() as tx:
                tx.insert(name, [{"id": number - 50, "n": number} for number in range(count)])
        db._engine.checkpoint()
        ltm = db._engine.ltm
        whole = table_range(ltm.tables.source("t").table.id)
        for most, found in ((0, 0), (99, 99), (100, 100), (1_233, 1_233), (10_000, 1_234)):
            assert ltm.stored_count(*whole, most) == found
        assert ltm.stored_count(whole[1], whole[1], 10) == 0


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(spark_session, "find_spec", find_spec)


@pytest.mark.usefixtures("without_spark")
def test_without_spark_there_is_a_hint_and_nothing_else() -> None:
    with vt.connect("memory:") as db:
        db.create_table("t", {"id": int, "x": int}, key="id")
        with db.transaction() as tx:
            tx.insert("t", [{"id": n, "x": n % 3} for n in range(100)])
        sql = "SELECT x, COUNT(*) AS n FROM t GROUP BY x"
        with pytest.raises(vt.InterfaceError, match="Spark is not installed") as refused:
            db.create_view("v", sql, evaluator="spark")
        assert refused.value.hint is not None
        assert "pip install 'viewtide[spark]'" in refused.value.hint
        assert db.views() == []
        view = db.create_view("v", sql)
        assert len(view.rows()) == 3
        assert "spark" not in view.status().evaluator
        with pytest.raises(vt.InterfaceError, match="Spark is not installed"):
            view.verify(evaluator="spark")


def test_contents_by_columns_are_those_by_rows() -> None:
    with vt.connect("memory:") as db:
        db.create_table("t", {"id": int, "x": int}, key="id")
        with db.transaction() as tx:
            tx.insert("t", [{"id": n, "x": n % 3} for n in range(10_000)])
        sql = "SELECT x, COUNT(*) AS n, SUM(id) AS s FROM t GROUP BY x"
        views = [db.create_view(evaluator, sql, evaluator=evaluator) for evaluator in ("rows", "columns")]
        assert views[0].rows() == views[1].rows()
        assert [view.status().evaluator.splitlines()[-1] for view in views] == [
            "computed as a whole by rows (asked for)",
            "computed as a whole by columns (asked for)",
        ]
        with pytest.raises(vt.InterfaceError, match="'gpu' is no evaluator"):
            db.create_view("v", sql, evaluator="gpu")


def test_nothing_of_spark_is_imported_before_somebody_asks_for_it() -> None:
    code = (
        "import sys, viewtide as vt\n"
        "with vt.connect('memory:') as db:\n"
        "    db.create_table('t', {'id': int}, key='id')\n"
        "    with db.transaction() as tx: tx.insert('t', {'id': 1})\n"
        "    db.create_view('v', 'SELECT COUNT(*) AS n FROM t')\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('pyspark', 'pyarrow', 'py4j')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
