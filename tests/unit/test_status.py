"""What users see of deferred refresh: `v.status()`, `db.status()`, `viewtide status` and `viewtide views`."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import viewtide as vt
from viewtide.changetables.plan import Contribution
from viewtide.cli import app
from viewtide.coordinator.hot_groups import HOT_GROUPS_SHOWN, ROWS_MAX, SAMPLE_CONTRIBUTIONS, HotGroups
from viewtide.shell_output import Output
from viewtide.status import run_status, run_views

SUMS = "SELECT g, SUM(v) AS s, COUNT(*) AS n FROM e GROUP BY g"


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:", view_managers=2) as database:
        fill(database)
        yield database


def fill(db: vt.Database) -> None:
    db.create_table("e", {"id": int, "g": int, "v": int}, key="id")
    with db.transaction() as tx:
        tx.insert("e", [{"id": i, "g": i % 3, "v": i} for i in range(30)])


def write(db: vt.Database, *ids: int, g: int = 0, v: int = 1) -> vt.Token:
    with db.transaction() as tx:
        tx.upsert("e", [{"id": id, "g": g, "v": v} for id in ids])
    return tx.token


# --- views ---


def test_a_sync_view(db: vt.Database) -> None:
    status = db.create_view("s", SUMS).status()
    assert (status.name, status.refresh, status.mode, status.state) == ("s", "sync", "sync", "live")
    assert (status.rows, status.lag_ms, status.interval_ms, status.last_step) == (3, 0.0, None, None)
    assert (status.tables, status.sql, status.together) == (("e",), SUMS, ("s",))
    assert "rows" in status.evaluator


def test_a_manual_view(db: vt.Database) -> None:
    v = db.create_view("d", SUMS, refresh="manual")
    token = write(db, *range(5))
    status = v.status()
    assert (status.mode, status.state, status.interval_ms, status.steps) == ("manual", "live", None, 0)
    assert status.backlog_rows == 5
    assert status.backlog_bytes > 0
    assert status.watermark < token.commit_ts
    v.refresh()
    status = v.status()
    assert (status.backlog_rows, status.backlog_bytes, status.steps, status.failures) == (0, 0, 1, 0)
    assert status.watermark >= token.commit_ts
    last = status.last_step
    assert isinstance(last, vt.StepStatus)
    assert last.rows == 10  # five rows: what they were, and what they are
    assert last.look_ups == 0
    assert last.duration_ms > 0
    assert min(last.read_ms, last.propagate_ms, last.apply_ms) >= 0


def test_look_ups_of_a_step_are_counted(db: vt.Database) -> None:
    db.create_table("p", {"id": int, "name": str}, key="id")
    with db.transaction() as tx:
        tx.insert("p", [{"id": i, "name": f"n{i}"} for i in range(3)])
    sql = "SELECT p.name, SUM(e.v) AS s FROM e JOIN p ON e.g = p.id GROUP BY p.name"
    v = db.create_view("d", sql, refresh="manual")
    write(db, 1, 2, 3)
    v.refresh()
    last = v.status().last_step
    assert last is not None
    assert last.look_ups > 0
    assert v.status().tables == ("e", "p")


def test_views_of_a_group_move_together(db: vt.Database) -> None:
    a = db.create_view("a", SUMS, refresh="1h", group="g")
    b = db.create_view("b", "SELECT COUNT(*) AS n FROM e", refresh="2h", group="g")
    c = db.create_view("c", "SELECT SUM(s) AS s FROM a", refresh="manual")
    alone = db.create_view("alone", SUMS, refresh="manual")
    for view in (a, b, c):
        assert view.status().together == ("a", "b", "c")
        assert view.status().interval_ms == 3_600_000, "the quickest of the group decides"
    assert (a.status().group, c.status().group, alone.status().together) == ("g", "", ("alone",))
    write(db, 1)
    c.refresh()
    assert a.status().watermark == b.status().watermark == c.status().watermark != alone.status().watermark


def test_a_target_lag_says_what_it_decided(db: vt.Database) -> None:
    v = db.create_view("d", SUMS, refresh=vt.target_lag("200ms"))
    status = v.status()
    assert (status.mode, status.refresh) == ("target_lag", "target_lag 200ms")
    for number in range(20):
        v.rows(at_least=write(db, 1, v=number))
    status = v.status()
    assert status.interval_ms is not None
    assert 10 <= status.interval_ms <= 4 * 200
    assert status.tuning.startswith(f"interval {status.interval_ms:.0f} ms for a target lag of 200 ms: ")
    v.set_refresh("manual")
    assert (v.status().tuning, v.status().mode) == ("", "manual")


def test_failures_are_counted_and_go_away(db: vt.Database) -> None:
    v = db.create_view("d", "SELECT g, SUM(v) / (COUNT(*) - 11) AS x FROM e GROUP BY g", refresh="manual")
    other = db.create_view("other", SUMS, refresh="0ms")
    before = v.status().watermark
    write(db, 100)  # the eleventh row of group 0
    with pytest.raises(vt.StaleRead, match="division by zero"):
        v.refresh()
    status = v.status()
    assert (status.state, status.watermark) == ("failing", before)
    assert status.failures >= 1
    assert "division by zero" in status.failure
    assert other.rows(at_least=write(db, 50)).rowcount == 3, "others go on"
    write(db, 101)
    v.refresh()
    assert (v.status().state, v.status().failures, v.status().failure) == ("live", 0, "")


def test_hot_groups_are_those_with_the_most_changes(db: vt.Database) -> None:
    v = db.create_view("d", SUMS, refresh="manual")
    for number in range(5):
        write(db, *range(1000 + 100 * number, 1050 + 100 * number), g=7)
        write(db, 2000 + number, g=number)
        v.refresh()
    hot = v.status().hot_groups
    assert len(hot) == HOT_GROUPS_SHOWN
    assert hot[0] == vt.HotGroup((7,), 250)
    assert hot[1].changes < 10
    assert db.create_view("rows", "SELECT id, v FROM e", refresh="manual").status().hot_groups == ()
    total = db.create_view("total", "SELECT COUNT(*) AS n FROM e", refresh="manual")
    write(db, *range(7000, 7005))
    total.refresh()
    assert total.status().hot_groups == (), "there is nothing to tell apart"


def test_hot_groups_are_sampled_and_forgotten() -> None:
    hot = HotGroups()
    many = [Contribution(b"%d" % number, (number,), (1,)) for number in range(SAMPLE_CONTRIBUTIONS * 7)]
    for _ in range(3):
        hot.note([(1, [*many, Contribution(b"hot", ("hot",), (100_000,))])])
    counts = hot._counts[1]
    assert len(counts) <= 3 * (SAMPLE_CONTRIBUTIONS + 1)
    for step in range(5_000):
        hot.note([(1, [Contribution(b"hot", ("hot",), (-3,)), Contribution(b"%d" % step, (step,), (1,))])])
    assert len(hot._counts[1]) <= ROWS_MAX
    assert hot.top(1)[0].key == ("hot",)
    for _ in range(5_000):
        hot.note([(1, [Contribution(b"new", ("new",), (0,))])])
    assert hot.top(1)[0].key == ("new",), "what is old counts less and less"
    hot.keep([2])
    assert hot.top(1) == ()


# --- the database ---


def test_the_database_shows_view_managers_and_its_log(db: vt.Database) -> None:
    v = db.create_view("d", SUMS, refresh="manual")
    write(db, *range(20))
    v.refresh()
    status = db.status()
    assert [each.id for each in status.view_managers] == [1, 2]
    assert sum(each.rows for each in status.view_managers) == 40
    assert status.log_newest >= status.log_oldest
    assert status.log_bytes > 0
    assert db.view_managers.add() == 3
    db.view_managers.withdraw(1)
    assert [each.ltm for each in db.status().view_managers] == [None, "ltm-1", "ltm-1"]
    db.view_managers.remove(2)
    assert [each.id for each in db.view_managers.status()] == [1, 3]


@pytest.mark.served
def test_a_view_manager_is_reassigned() -> None:
    with vt.connect("memory:") as db:
        (ltm, *_), (manager,) = db.status().ltms, db.view_managers.status()
        db.view_managers.reassign(manager.id, ltm)
        assert [each.ltm for each in db.view_managers.status()] == [ltm]


def test_the_log_is_kept_for_views_that_are_behind(db: vt.Database) -> None:
    v = db.create_view("d", SUMS, refresh="manual")
    db._engine.checkpoint()
    before = db.status()
    for number in range(20):
        write(db, number)
    db._engine.checkpoint()
    assert db.status().log_oldest == before.log_oldest
    v.refresh()
    db._engine.checkpoint()
    assert v.status().backlog_rows == 0


def test_a_backlog_counts_what_a_view_is_made_from(tmp_path: Path) -> None:
    """Neither changes of other tables nor those that it had before the database was opened again."""
    with vt.connect(tmp_path / "db") as db:
        fill(db)
        db.create_table("other", {"id": int}, key="id")
        done = db.create_view("done", SUMS, refresh="manual")
        behind = db.create_view("behind", SUMS, refresh="manual")
        write(db, *range(10))
        done.refresh()
        with db.transaction() as tx:
            tx.insert("other", [{"id": i} for i in range(1000)])
        assert done.status().backlog_rows == 0
        done.refresh()
        assert (done.status().backlog_rows, done.status().backlog_bytes) == (0, 0)
        before = behind.status()
        assert before.backlog_rows == 10
    with vt.connect(tmp_path / "db") as db:
        status = db.view("done").status()
        assert (status.backlog_rows, status.state) == (0, "live")
        after = db.view("behind").status()
        assert after.backlog_rows == 10
        assert after.backlog_bytes >= before.backlog_bytes > 0


# --- the commands ---


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "db"
    with vt.connect(path) as database:
        fill(database)
        database.create_view("s", SUMS)
        database.create_view("d", SUMS, refresh="manual", group="g")
        database.create_view("also", "SELECT COUNT(*) AS n FROM e", refresh="manual", group="g")
        write(database, 1, 2, 3)
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_views_as_json(shop: Path) -> None:
    found = {each["name"]: each for each in json.loads(run("views", shop, "--json"))}
    assert set(found) == {"s", "d", "also"}
    assert set(found["d"]) == {field.name for field in dataclasses.fields(vt.ViewStatus)} | {"watermark_ms"}
    assert (found["d"]["mode"], found["d"]["backlog_rows"], found["d"]["together"]) == ("manual", 3, ["d", "also"])
    assert [each["name"] for each in json.loads(run("views", shop, "d", "--json"))] == ["d"]


def cells_of(lines: list[str]) -> dict[str, list[str]]:
    return {cells[0]: cells for cells in ([cell.strip() for cell in line.split("|")] for line in lines)}


def watermark_of(shop: Path, name: str) -> int:
    """Of a view that is refreshed by nobody."""
    with vt.connect(shop) as database:
        return database.view(name).status().watermark


def test_views_as_a_table(shop: Path) -> None:
    lines = run("views", shop, "--watch").splitlines()
    rows = cells_of(lines)
    assert rows["view"][:7] == ["view", "refresh", "state", "interval ms", "watermark", "lag ms", "rows"]
    assert rows["d"][4] == str(watermark_of(shop, "d"))
    assert rows["d"][1:4] == ["manual", "live", ""]
    assert rows["s"][1:3] == ["sync", "live"]
    assert "d: moves with also (group g)" in lines
    assert rows["s"][9] == "rows"
    with vt.connect(shop) as database:
        out = io.StringIO()
        database.view("d").refresh()
        run_views(database, ["d"], as_json=False, watch=True, out=out, err=io.StringIO())
        write(database, 1, 2, 3, v=7)
    assert "last step of | steps | rows | look-ups | read ms" in out.getvalue()
    assert "d: hot groups (0) 2, " in out.getvalue()


def test_status_as_json_and_as_text(shop: Path) -> None:
    found = json.loads(run("status", shop, "--json"))
    assert (found["tables"], found["views"], found["view_managers"][0]["ltm"]) == (1, 3, "ltm-1")
    assert [each["name"] for each in found["view_statuses"]] == ["s", "d", "also"]
    text = run("status", shop)
    assert f"{shop}: 1 table, 3 views" in text
    assert "view manager" in text
    assert "backlog rows" in text
    rows = cells_of(text.splitlines())
    assert rows["view"][2:5] == ["state", "watermark", "lag ms"]
    assert rows["d"][3] == str(watermark_of(shop, "d"))


def test_figures_that_a_cluster_does_not_know_are_left_out(shop: Path) -> None:
    with vt.connect(shop) as database:
        shown, plain = io.StringIO(), io.StringIO()
        run_status(database, as_json=False, watch=False, out=shown, err=io.StringIO(), is_cluster=True)
        run_status(database, as_json=True, watch=False, out=plain, err=io.StringIO(), is_cluster=True)
        names = ", ".join(database.status().ltms)
    assert shown.getvalue().splitlines()[:2] == [
        f"{names}: 1 table, 3 views",
        f"since the start of {shop}: 0 commits of its clients",
    ]
    for unknown in ("flushes", "checkpoints", "replayed", "log 0", "busy", "load"):
        assert unknown not in shown.getvalue()
    found = json.loads(plain.getvalue())
    assert set(found) == {"name", "tables", "views", "commits", "ltms", "view_managers", "view_statuses"}
    assert set(found["view_managers"][0]) == {"id", "ltm", "slots"}


def test_what_is_no_database_and_what_is_open_elsewhere(shop: Path, tmp_path: Path) -> None:
    for command in ("status", "views"):
        result = CliRunner().invoke(app, [command, str(tmp_path)])
        assert result.exit_code == 2
        assert not list(tmp_path.iterdir())
        with vt.connect(shop):
            done = subprocess.run(
                [sys.executable, "-m", "viewtide.cli", command, str(shop)], capture_output=True, text=True, check=False
            )
        assert done.returncode == 0, done.stderr
    result = CliRunner().invoke(app, ["views", str(shop), "nothing"])
    assert result.exit_code == 1
    assert "there is no view 'nothing'" in result.output
    result = CliRunner().invoke(app, ["views", str(shop), "e"])
    assert result.exit_code == 1
    assert result.output == "viewtide: 'e' is a table, and this is about views (there are 's', 'd', 'also')\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_watch_shows_a_page_until_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal gets the last page only
    out, pages = Terminal(), iter(range(10))

    def pause() -> None:
        if next(pages) == 3:
            raise KeyboardInterrupt

    numbers = iter(range(10))
    Output(out, Terminal(), as_json=False, limit=0).watch(
        lambda: [f"page \x1b[2J {next(numbers)}", (("name", "rows"), [("d", 3)])], pause
    )
    assert [f"page \\x1b[2J {number}" in out.getvalue() for number in range(5)] == [True, True, True, True, False]

    def ended() -> None:
        raise KeyboardInterrupt(15)

    with pytest.raises(KeyboardInterrupt):
        Output(Terminal(), Terminal(), as_json=False, limit=0).watch(lambda: ["page"], ended)


# --- names ---


def test_names_are_exported_and_imported_late() -> None:
    assert vt.target_lag("2s") == vt.TargetLag(2000.0)
    with pytest.raises(vt.InterfaceError, match="above 0"):
        vt.target_lag(0)
    code = (
        "import sys, viewtide; assert not {m for m in sys.modules if m.startswith('viewtide.')}, sys.modules;"
        "viewtide.target_lag; assert 'viewtide.freshness' in sys.modules and 'sqlglot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
