"""Deferred views in SQL: options, switching, refreshing, and what SELECT sees of them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest

import viewtide as vt
from viewtide.shell import run_shell

pytestmark = pytest.mark.served

TABLES = "CREATE TABLE e (id int PRIMARY KEY, g int, v int); INSERT INTO e VALUES (1, 1, 10), (2, 1, 20), (3, 2, 30)"
SUMS = "SELECT g, SUM(v) AS s, MAX(v) AS m FROM e GROUP BY g"


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as database:
        database.sql(TABLES)
        yield database


def sums(result: vt.Result) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in result]


# --- options ---


@pytest.mark.parametrize(
    ("written", "refresh", "mode"),
    [
        ("'500ms'", "500ms", "interval"),
        ("'0ms'", "0ms", "interval"),
        ("'1.5s'", "1500ms", "interval"),
        ("'manual'", "manual", "manual"),
        ("manual", "manual", "manual"),
        ("sync", "sync", "sync"),
        ("'target_lag 2s'", "target_lag 2000ms", "target_lag"),
        ("'target_lag(2s)'", "target_lag 2000ms", "target_lag"),
    ],
)
def test_refresh_is_an_option(db: vt.Database, written: str, refresh: str, mode: str) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW d WITH (refresh = {written}, layout = 'local') AS {SUMS}")
    status = db.view("d").status()
    assert (status.refresh, status.mode, status.rows) == (refresh, mode, 2)
    db.sql("ALTER MATERIALIZED VIEW d SET (refresh = 'manual')")
    assert db.view("d").status().refresh == "manual"
    db.sql(f"ALTER MATERIALIZED VIEW d SET (refresh = {written})")
    assert db.view("d").status().refresh == refresh


@pytest.mark.parametrize("option", ['"group"', "group", "GROUP"])
def test_group_and_backlog_limits_are_options(db: vt.Database, option: str) -> None:
    db.sql(f"""
        CREATE MATERIALIZED VIEW a WITH (refresh = '1h', {option} = 'g', backlog_rows = 1000, backlog_bytes = '5000')
          AS {SUMS};
        CREATE MATERIALIZED VIEW b WITH (refresh = manual, {option} = g) AS SELECT COUNT(*) AS n FROM e
    """)
    view = db._engine.ltm.tables.catalog.views["a"]
    assert (view.group, view.backlog_rows, view.backlog_bytes) == ("g", 1000, 5000)
    assert db.view("a").status().together == ("a", "b")
    db.sql("INSERT INTO e VALUES (4, 2, 5)")
    db.view("a").refresh()
    assert db.view("b").get() == {"n": 4}, "views of one group move together"


def test_the_hint_to_a_wrong_refresh_holds_in_sql_too(db: vt.Database) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW d AS {SUMS}")
    with pytest.raises(vt.Error, match="no way to refresh a view") as refused:
        db.sql("ALTER MATERIALIZED VIEW d SET (refresh = 'soon')")
    for named in re.findall("'([^']+)'", refused.value.hint):
        db.sql(f"ALTER MATERIALIZED VIEW d SET (refresh = '{named}')")
    assert db.view("d").status().refresh == "target_lag 2000ms"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("refresh = 'often'", "'often' is no way to refresh a view"),
        ("refresh = 500", "'500' is no way to refresh a view"),
        ("refresh = 'target_lag 0s'", "a target lag must be above 0"),
        (
            "refresh = '500ms', backlog_rows = many",
            "'many' is no whole number of at most 18 digits at line 1, c",
        ),
        ("refresh = '500ms', backlog_rows = 1.5", "'1.5' is no whole number"),
        (f"refresh = '500ms', backlog_rows = {'9' * 5000}", "is no whole number of at most 18 digits"),
        ("refresh = '500ms', refresh = '1s'", "option refresh stands twice"),
        ("select = 1", "unknown option select at line 1, column 34"),
        ("backlog_rows = 5", "are for deferred views"),
    ],
)
def test_wrong_options_are_refused(db: vt.Database, options: str, message: str) -> None:
    with pytest.raises(vt.Error) as refused:
        db.sql(f"CREATE MATERIALIZED VIEW d WITH ({options}) AS {SUMS}")
    assert message in str(refused.value)
    assert db.views() == []


# --- what SELECT sees ---


def test_select_reads_the_published_watermark(db: vt.Database) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW d WITH (refresh = 'manual') AS {SUMS}")
    db.sql(f"CREATE MATERIALIZED VIEW s AS {SUMS}")
    db.sql("UPDATE e SET v = v + 100")
    old, new = [(1, 30, 20), (2, 30, 30)], [(1, 230, 120), (2, 130, 130)]
    result = db.sql("SELECT * FROM d ORDER BY g")
    assert sums(result) == old
    assert result.watermark == db.view("d").rows().watermark
    assert sums(db.sql("SELECT * FROM s ORDER BY g")) == new
    joined = db.sql("SELECT d.g, d.s, s.s AS now FROM d JOIN s ON d.g = s.g ORDER BY d.g")
    assert sums(joined) == [(1, 30, 230), (2, 30, 130)]
    db.sql("REFRESH MATERIALIZED VIEW d")
    assert sums(db.sql("SELECT * FROM d ORDER BY g")) == new


def test_inside_a_transaction_deferred_views_never_have_own_writes(db: vt.Database) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW d WITH (refresh = 'manual') AS {SUMS}")
    db.sql(f"CREATE MATERIALIZED VIEW s AS {SUMS}")
    old = [(1, 30, 20), (2, 30, 30)]
    with db.transaction() as tx:
        tx.sql("INSERT INTO e VALUES (4, 2, 500), (5, 3, 7)")
        tx.sql("DELETE FROM e WHERE id = 2")
        assert sums(tx.sql("SELECT * FROM d ORDER BY g")) == old
        assert [tuple(row.values()) for row in tx.view("d").rows()] == old
        assert tx.view("d").get(3) is None
        assert sums(tx.sql("SELECT * FROM s ORDER BY g")) == [(1, 10, 10), (2, 530, 500), (3, 7, 7)]
        db.view("d").refresh()
        assert sums(tx.sql("SELECT * FROM d WHERE g = 2")) == [(2, 30, 30)]
    assert sums(db.sql("SELECT * FROM d ORDER BY g")) == old, "it was not refreshed since"
    db.view("d").refresh()
    assert sums(db.sql("SELECT * FROM d ORDER BY g")) == [(1, 10, 10), (2, 530, 500), (3, 7, 7)]


def test_reading_a_deferred_view_conflicts_with_nobody(db: vt.Database) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW d WITH (refresh = '0ms') AS {SUMS}")
    with db.transaction() as tx:
        before = tx.sql("SELECT SUM(s) AS s FROM d")[0].s
        with db.transaction() as other:
            other.insert("e", {"id": 9, "g": 1, "v": 1})
        assert db.view("d").rows(at_least=other.token).rowcount == 2
        tx.insert("e", {"id": 10, "g": 1, "v": before})
    assert db.view("d").rows(at_least=tx.token)[0].s == 91


def test_insert_select_takes_what_is_published(db: vt.Database) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW d WITH (refresh = 'manual') AS {SUMS}")
    db.sql("CREATE TABLE copies (g int PRIMARY KEY, s int); UPDATE e SET v = 0; INSERT INTO copies SELECT g, s FROM d")
    assert sums(db.sql("SELECT * FROM copies ORDER BY g")) == [(1, 30), (2, 30)]


# --- refusals ---


def test_a_sync_view_on_a_deferred_one_is_refused(db: vt.Database) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW d WITH (refresh = 'manual') AS {SUMS}")
    with pytest.raises(vt.UnsupportedView, match="'d' is deferred"):
        db.sql("CREATE MATERIALIZED VIEW up AS SELECT SUM(s) AS s FROM d")
    db.sql("CREATE MATERIALIZED VIEW up WITH (refresh = manual) AS SELECT SUM(s) AS s FROM d")
    with pytest.raises(vt.ProgrammingError, match="'up' cannot become sync: it is made from 'd'"):
        db.sql("ALTER MATERIALIZED VIEW up SET (refresh = sync)")
    db.sql("ALTER MATERIALIZED VIEW d SET (refresh = sync); ALTER MATERIALIZED VIEW up SET (refresh = sync)")
    with pytest.raises(vt.ProgrammingError, match="'d' cannot be deferred: 'up' is sync"):
        db.sql("ALTER MATERIALIZED VIEW d SET (refresh = '1s')")


# --- the shell ---


def test_the_shell_shows_mode_and_lag(db: vt.Database) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW d WITH (refresh = 'manual') AS {SUMS}")
    db.sql(f"CREATE MATERIALIZED VIEW s AS {SUMS}")
    out, err = io.StringIO(), io.StringIO()
    assert run_shell(db, ["\\d\n\\d d", "\\d s"], as_json=False, limit=0, source=io.StringIO(), out=out, err=err)
    lines = [line.split("|") for line in out.getvalue().splitlines()]
    listed = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in lines if len(row) == 4}
    assert listed["name"] == ["kind", "refresh", "lag ms"]
    assert listed["e"] == ["table", "", ""]
    assert listed["s"] == ["materialized view", "sync", "0"]
    assert listed["d"][:2] == ["materialized view", "manual"]
    assert int(listed["d"][2]) >= 0
    assert "materialized view d, refresh manual, " in out.getvalue()
    assert " ms behind, live" in out.getvalue()
    assert "materialized view s, refresh sync\n" in out.getvalue()
