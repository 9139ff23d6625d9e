"""`viewtide sql`: scripts, the command line, a terminal."""

from __future__ import annotations

import datetime
import io
import json
import os
import pty
import re
import select
import shlex
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

import viewtide as vt
from viewtide import remote
from viewtide.changetables.statements import Statement, Update
from viewtide.cli import EXIT_INTERRUPTED, app
from viewtide.remote import RemoteShell
from viewtide.remote_calls import TELL, Ask
from viewtide.remote_links import Links
from viewtide.rows import Result
from viewtide.serve import served
from viewtide.shell import HISTORY_VARIABLE, PROMPT, PROMPT_FAILED, Shell, run_shell
from viewtide.shell_output import Output, cell, error_lines, json_value, printable
from viewtide.sql import Session

READ_SECONDS_MAX = 60


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:") as database:
        yield database


class Run:
    """One run of the shell with a script on its input."""

    def __init__(self, db: vt.Database, script: str, *, as_json: bool = False, limit: int = 0) -> None:
        out, err = io.StringIO(), io.StringIO()
        self.fine = run_shell(
            db, None, as_json=as_json, limit=limit, source=io.StringIO(script), out=out, err=err
        )  # fmt: skip
        self.out = [line.rstrip() for line in out.getvalue().splitlines()]
        self.err = err.getvalue().splitlines()


# --- scripts ---


def test_a_script_prints_tables_and_tags(db: vt.Database) -> None:
    run = Run(
        db,
        """
        CREATE TABLE t (id int PRIMARY KEY, name text, cost numeric(5,2));
        INSERT INTO t VALUES
            (1, 'ann', 1.5),  -- with a ; in a comment
            (20, NULL, 2);
        SELECT * FROM t; UPDATE t SET name = 'a;b'
            WHERE id = 1; DELETE FROM t; TRUNCATE t;
        """,
    )
    assert run.fine
    assert run.err == []
    assert run.out == [
        "CREATE TABLE",
        "INSERT 2",
        " id | name | cost",
        "----+------+------",
        "  1 | ann  | 1.50",
        " 20 | NULL | 2.00",
        "(2 rows)",
        "UPDATE 1",
        "DELETE 2",
        "TRUNCATE 0",
    ]


def test_the_last_statement_needs_no_semicolon(db: vt.Database) -> None:
    assert Run(db, "SELECT 1 AS a").out == [" a", "---", " 1", "(1 row)"]


def test_a_script_ends_with_its_first_error(db: vt.Database) -> None:
    run = Run(db, "CREATE TABLE t (id int PRIMARY KEY);\n\nSELECT id,\n\tcost FROM t;\nDROP TABLE t;\n")
    assert not run.fine
    assert run.out == ["CREATE TABLE"]
    assert run.err == ["ERROR: unknown column cost", "LINE 4: \tcost FROM t;", "        \t^", "HINT: known: id"]
    assert db.tables() == ["t"]


def test_statements_of_a_line_before_an_error_have_run(db: vt.Database) -> None:
    run = Run(db, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); INSERT INTO t VALUES (1);")
    assert not run.fine
    assert len(db.sql("TABLE t")) == 1


def test_begin_commit_and_rollback(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY)")
    run = Run(
        db, "BEGIN;\nINSERT INTO t VALUES (1);\nROLLBACK;\nBEGIN;\nINSERT INTO t VALUES (2);\nSELECT * FROM t;\nCOMMIT;"
    )
    assert run.fine
    assert run.out == ["BEGIN", "INSERT 1", "ROLLBACK", "BEGIN", "INSERT 1", " id", "----", "  2", "(1 row)", "COMMIT"]
    assert [row.id for row in db.sql("TABLE t")] == [2]


def test_what_is_not_committed_at_the_end_is_rolled_back(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY)")
    run = Run(db, "BEGIN; INSERT INTO t VALUES (1);")
    assert not run.fine
    assert run.err == [
        "ERROR: the input ended inside a transaction",
        "HINT: end it with COMMIT;",
        "the open transaction is rolled back",
    ]
    assert len(db.sql("TABLE t")) == 0
    failed = Run(db, "BEGIN; INSERT INTO t VALUES (1); SELECT 1 / 0;")
    assert failed.err == [
        "ERROR: output ?column?: division by zero",
        "HINT: divide by NULLIF(divisor, 0) for NULL, or leave such rows out",
        "the open transaction is rolled back",
    ]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("COMMIT;", "there is no transaction in progress"),
        ("ROLLBACK;", "there is no transaction in progress"),
        ("BEGIN; BEGIN;", "there is already a transaction in progress"),
        ("BEGIN; CREATE TABLE t (a int);", "a transaction cannot change tables and views"),
        ("SAVEPOINT s;", "savepoints: not supported"),
        ("SELECT ?;", "no value for parameter 1"),
    ],
)
def test_wrong_transactions(db: vt.Database, script: str, message: str) -> None:
    run = Run(db, script)
    assert not run.fine
    assert message in run.err[0]


def test_after_an_error_a_transaction_takes_only_its_end(db: vt.Database) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY)")
    err = io.StringIO()
    shell = Shell(db, Output(io.StringIO(), err, as_json=False, limit=0))
    assert shell.feed("BEGIN; INSERT INTO t VALUES (1);")
    assert not shell.feed("SELECT 1 / 0;")
    assert not shell.feed("INSERT INTO t VALUES (2);")
    assert "the transaction has failed" in err.getvalue()
    assert not shell.feed("COMMIT;")
    assert "it was rolled back, not committed" in err.getvalue()
    assert shell.feed("INSERT INTO t VALUES (3);")
    assert [row.id for row in db.sql("TABLE t")] == [3]


@pytest.fixture(params=["embedded", "served"])
def shell(request: pytest.FixtureRequest, db: vt.Database) -> Iterator[tuple[Shell, io.StringIO]]:
    """A shell of a database with a table t, and its errors: in the same process, and of a served node."""
    db.sql("CREATE TABLE t (id int PRIMARY KEY)")
    err = io.StringIO()
    with ExitStack() as closing:
        if request.param == "served":
            address = closing.enter_context(served(db, "tcp://127.0.0.1:0"))
            db = closing.enter_context(vt.connect(address))
        made = Shell(db, Output(io.StringIO(), err, as_json=False, limit=0))
        closing.callback(made.close)
        yield made, err


@pytest.mark.parametrize("wrong", ["selec 1;", "SELECT 'x', FROM t;", "INSERT INTO t VALUES (4); selec 1;"])
def test_a_text_that_cannot_be_read_fails_the_transaction(
    shell: tuple[Shell, io.StringIO], db: vt.Database, wrong: str
) -> None:
    made, err = shell
    assert made.feed("BEGIN;")
    assert made.feed("INSERT INTO t VALUES (1);")
    assert not made.feed(wrong)
    assert made.prompt == PROMPT_FAILED
    assert not made.feed("INSERT INTO t VALUES (2);")
    assert "the transaction has failed" in err.getvalue()
    assert not made.feed("COMMIT;")
    assert "it was rolled back, not committed" in err.getvalue()
    assert made.prompt == PROMPT
    assert len(db.sql("TABLE t")) == 0
    assert made.feed("BEGIN; INSERT INTO t VALUES (3); COMMIT;")
    assert [row.id for row in db.sql("TABLE t")] == [3]


def test_a_text_that_cannot_be_read_and_a_rollback(shell: tuple[Shell, io.StringIO], db: vt.Database) -> None:
    made, _ = shell
    assert made.feed("BEGIN; INSERT INTO t VALUES (1);")
    assert not made.feed("selec 1;")
    assert made.feed("ROLLBACK;")
    assert made.prompt == PROMPT
    assert len(db.sql("TABLE t")) == 0
    assert not made.feed("selec 1;")
    assert made.prompt == PROMPT


def test_ctrl_c_leaves_a_statement_that_takes_long(
    shell: tuple[Shell, io.StringIO],
    db: vt.Database,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Also one that a node runs: it was waited for until it was done, by SIGTERM, too."""
    made, err = shell
    begun, over, left = threading.Event(), threading.Event(), threading.Semaphore(0)
    run = Session._run

    def slowly(self: Session, statement: Statement) -> Result:
        if not isinstance(statement, Update):
            return run(self, statement)
        begun.set()
        try:
            # In short waits: one that begins just after the signal has come is not interrupted by it.
            any(over.wait(0.05) for _ in range(20 * READ_SECONDS_MAX))
            return run(self, statement)
        finally:
            left.release()

    def interrupt() -> None:
        begun.wait(READ_SECONDS_MAX)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Session, "_run", slowly)
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs tests in the background ignores it
    for before in ("", "BEGIN; INSERT INTO t VALUES (1);"):
        begun.clear()
        assert made.feed(before)
        pressing = threading.Thread(target=interrupt)
        pressing.start()
        with pytest.raises(KeyboardInterrupt):
            made.feed("UPDATE t SET id = 2;")
        pressing.join()
        said = "the node goes on with this statement" in err.getvalue()
        assert said == (not before and isinstance(made._session, RemoteShell))
        err.truncate(0)
    assert made.prompt == PROMPT_FAILED
    over.set()
    # What the node went on with finds the table empty: it must not come behind the row that is written below.
    assert all(left.acquire(timeout=READ_SECONDS_MAX) for _ in range(2))
    assert not made.feed("INSERT INTO t VALUES (2);")
    assert "the transaction has failed" in err.getvalue()
    assert not made.feed("COMMIT;")
    assert "it was rolled back, not committed" in err.getvalue()
    assert made.prompt == PROMPT
    assert made.feed("INSERT INTO t VALUES (3);")
    assert [row.id for row in db.sql("TABLE t")] == [3]


def test_ctrl_c_leaves_a_node_that_does_not_answer(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be told either; that is no reason to stay."""

    def once(self: Links, ask: Ask, arguments: tuple[object, ...]) -> object:
        raise KeyboardInterrupt if ask.kind != TELL else vt.Unavailable("nobody answers")

    with served(db, "tcp://127.0.0.1:0") as address, vt.connect(address) as client, monkeypatch.context() as patch:
        shell = Shell(client, Output(io.StringIO(), io.StringIO(), as_json=False, limit=0))
        patch.setattr(Links, "once", once)
        with pytest.raises(KeyboardInterrupt):
            shell.feed("SELECT 1;")


def test_a_shell_goes_on_after_its_node_has_forgotten_it(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.sql("CREATE TABLE t (id int PRIMARY KEY)")
    err = io.StringIO()
    with ExitStack() as closing:
        with served(db, "tcp://127.0.0.1:0") as address:
            client = closing.enter_context(vt.connect(address))
            shell = Shell(client, Output(io.StringIO(), err, as_json=False, limit=0))
            assert shell.feed("BEGIN; INSERT INTO t VALUES (1);")
        with served(db, address):
            assert not shell.feed("INSERT INTO t VALUES (2);")
            assert "the node does not know this transaction" in err.getvalue()
            assert shell.prompt == PROMPT_FAILED
            assert shell.feed("ROLLBACK;")
            assert shell.feed("INSERT INTO t VALUES (3);")
        with served(db, address):
            assert not shell.feed("INSERT INTO t VALUES (4);")
            assert shell.feed("INSERT INTO t VALUES (5);")
        with served(db, address):
            monkeypatch.setattr(remote, "IDLE_S_MAX", -1.0)  # what is that old is not asked for
            assert shell.feed("INSERT INTO t VALUES (6);")
            shell.close()
    assert [row.id for row in db.sql("TABLE t")] == [3, 5, 6]


def test_what_stands_before_a_text_that_cannot_be_read_is_run(db: vt.Database) -> None:
    """Otherwise the lines after this one would not be in the transaction that its author sees."""
    db.sql("CREATE TABLE t (id int PRIMARY KEY)")
    err = io.StringIO()
    shell = Shell(db, Output(io.StringIO(), err, as_json=False, limit=0))
    assert not shell.feed("begin; insert into t values (1); selec 1; insert into t values (2); commit;")
    assert err.getvalue().splitlines()[1:] == [
        "LINE 1: begin; insert into t values (1); selec 1; insert into t values (2); commit;",
        "                                         ^",
        "HINT: look at what stands before it, too; docs/sql.md has every statement",
    ]
    assert not shell.feed("insert into t values (3); commit;")
    assert not shell.feed("commit;")
    assert len(db.sql("TABLE t")) == 0
    assert shell.feed("insert into t values (4); select 'x")
    assert not shell.feed("';; selec;")
    assert [row.id for row in db.sql("TABLE t")] == [4]


# --- commands ---


def test_d_lists_tables_and_views(db: vt.Database) -> None:
    run = Run(db, "CREATE TABLE t (a int);\nCREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t;\n\\d\n")
    assert run.out[2:] == [
        " name | kind              | refresh | lag ms",
        "------+-------------------+---------+--------",
        " t    | table             |         |",
        " v    | materialized view | sync    | 0",
    ]


def test_d_describes_a_table(db: vt.Database) -> None:
    script = """
CREATE TABLE t (id bigint PRIMARY KEY, a varchar(3) DEFAULT 'x' NOT NULL, b numeric(5,2) UNIQUE, CHECK (b > 0));
CREATE INDEX ta ON t (a);
\\d t
"""
    run = Run(db, script)
    assert run.fine
    assert run.out[2:] == [
        " column | type         | nullable | default",
        "--------+--------------+----------+---------",
        " id     | integer      | no       |",
        " a      | varchar(3)   | no       | x",
        " b      | numeric(5,2) | yes      |",
        "primary key (id)",
        "index t_b_key (b)",
        "index ta (a)",
        "unique t_b_key (b)",
        "check t_b_check (b > 0)",
    ]


def test_d_describes_a_view(db: vt.Database) -> None:
    sql = "SELECT a, count(*) AS n, avg(b) AS mean FROM t GROUP BY a, c"
    run = Run(db, f"CREATE TABLE t (a int, b numeric(5,2), c text);\nCREATE MATERIALIZED VIEW v AS {sql};\n\\d v")
    assert run.out[2:] == [
        "materialized view v, refresh sync",
        " column | type    | nullable",
        "--------+---------+----------",
        " a      | integer | yes",
        " n      | integer | no",
        " mean   | numeric | yes",
        "key (a, c)",
        sql,
    ]


def test_d_of_an_unknown_name(db: vt.Database) -> None:
    run = Run(db, "\\d nothing")
    assert not run.fine
    assert run.err == ["ERROR: there is neither a table nor a view 'nothing'", "HINT: there are none"]


def test_d_of_a_misspelt_view_names_the_view(db: vt.Database) -> None:
    sql = "CREATE TABLE t (a int);\nCREATE MATERIALIZED VIEW costs AS SELECT count(*) AS n FROM t;\n"
    run = Run(db, f"{sql}\\d cost")
    assert run.err == ["ERROR: there is neither a table nor a view 'cost'", "HINT: did you mean 'costs'?"]


def test_help_timing_and_quit(db: vt.Database) -> None:
    run = Run(db, "\\?\n\\timing\nSELECT 1 AS a;\n\\timing\n\\q\nSELECT nothing;\n")
    assert run.fine
    assert any("list tables and views" in line for line in run.out)
    assert run.err[0] == "Timing is on."
    assert re.fullmatch(r"Time: \d+\.\d{3} ms", run.err[1])
    assert run.err[2] == "Timing is off."


def test_timing_is_told_what_to_be(db: vt.Database) -> None:
    run = Run(db, "\\timing off\n\\timing on\n\\timing ON;\n\\timing;\n\\timing maybe\n")
    assert run.err == [
        "Timing is off.",
        "Timing is on.",
        "Timing is on.",
        "Timing is off.",
        "\\timing takes on or off, not maybe",
    ]
    assert not run.fine


@pytest.mark.parametrize("word", ["exit", "quit", " QUIT; "])
def test_words_of_other_shells(db: vt.Database, word: str) -> None:
    run = Run(db, f"help\nSELECT 1 AS\n exit;\n{word}\nSELECT nothing;")
    assert run.fine, run.err
    assert any("list tables and views" in line for line in run.out)
    assert run.out[-4:] == [" exit", "------", "    1", "(1 row)"]


def test_an_unknown_command(db: vt.Database) -> None:
    run = Run(db, "\\frob")
    assert not run.fine
    assert run.err == ["unknown command \\frob; \\? lists them"]


def test_completion_offers_names_and_keywords(db: vt.Database) -> None:
    db.sql("CREATE TABLE sales (amount int)")
    shell = Shell(db, Output(io.StringIO(), io.StringIO(), as_json=False, limit=0))
    assert [shell.complete("sa", 0), shell.complete("sa", 1)] == ["sales", None]
    assert shell.complete("am", 0) == "amount"
    assert shell.complete("Sele", 0) == "SELECT"


# --- output ---


def test_long_results_are_cut_with_a_note(db: vt.Database) -> None:
    run = Run(db, "SELECT * FROM (VALUES (1), (2), (3)) AS v (a);", limit=2)
    assert run.out == [" a", "---", " 1", " 2", "(2 of 3 rows; --limit shows more)"]


def test_wide_rows_are_not_wrapped_in_a_script(db: vt.Database) -> None:
    run = Run(db, f"SELECT '{'x' * 500}' AS a, '{'y' * 500}' AS b;")
    assert len(run.out) == 4
    assert len(run.out[2]) > 1000


def test_json_output(db: vt.Database) -> None:
    script = """
        CREATE TABLE t (id int PRIMARY KEY, n numeric, f float8, b bytea, d date, j jsonb);
        INSERT INTO t VALUES (1, 1.50, 'NaN', '\\x00ff', '2024-01-02', '{"a": [1]}');
        SELECT * FROM t;
        SELECT 1, 2;
    """
    run = Run(db, script, as_json=True)
    assert run.fine
    assert [json.loads(line) for line in run.out] == [
        {"rowcount": 0},
        {"rowcount": 1},
        {
            "rowcount": 1,
            "columns": ["id", "n", "f", "b", "d", "j"],
            "rows": [[1, "1.50", "NaN", "AP8=", "2024-01-02", {"a": [1]}]],
        },
        {"rowcount": 1, "columns": ["?column?", "?column?"], "rows": [[1, 2]]},
    ]


def test_json_says_when_rows_are_left_out(db: vt.Database) -> None:
    run = Run(db, "VALUES (1), (2), (3);", as_json=True, limit=1)
    assert json.loads(run.out[0]) == {"rowcount": 3, "columns": ["column1"], "rows": [[1]], "shown": 1}
    assert run.err == ["1 of 3 rows are printed; --limit 0 prints all"]
    assert Run(db, "VALUES (1), (2), (3);", as_json=True).err == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "true"),
        (b"\x01", "\\x01"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (float("nan"), "NaN"),
        (Decimal("1E+3"), "1000"),
        (datetime.datetime(2024, 1, 2, 3, 4), "2024-01-02 03:04:00"),
        ({"a": [1]}, '{"a": [1]}'),
        ("a\nb\x1b[2J", "a\nb\\x1b[2J"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text


def test_values_in_json() -> None:
    assert [json_value(value) for value in (1, "x", None, 1.5, float("inf"), Decimal("1.0"), b"a")] == [
        1, "x", None, 1.5, "Infinity", "1.0", "YQ=="
    ]  # fmt: skip


def test_data_cannot_write_to_the_terminal(db: vt.Database) -> None:
    db.sql(
        "CREATE TABLE t (id int PRIMARY KEY, s text); INSERT INTO t VALUES (1, ?)",
        ["\x1b]0;title\x07 [red]x[/red] \u202e"],
    )
    run = Run(db, "TABLE t;")
    assert "\x1b" not in "".join(run.out)
    assert run.out[2] == "  1 | \\x1b]0;title\\x07 [red]x[/red] \\u202e"
    assert printable("\x9b\u2066ok") == "\\x9b\\u2066ok"


def test_errors_without_a_place_or_hint() -> None:
    assert error_lines(vt.DataError("division by zero"), "SELECT 1 / 0") == ["ERROR: division by zero"]
    assert error_lines(vt.ProgrammingError("x at line 9, column 1"), "one line") == ["ERROR: x"]


# --- the program ---


def test_the_command_line_runs_statements() -> None:
    result = CliRunner().invoke(app, ["sql", "-c", "SELECT 1 + 1 AS two", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"rowcount": 1, "columns": ["two"], "rows": [[2]]}


def test_each_text_of_the_command_line_is_by_itself() -> None:
    first = CliRunner().invoke(app, ["sql", "-c", "\\d", "-c", "SELECT 1 AS one -- and no more", "-c", "\\d;"])
    assert first.exit_code == 0, first.output
    assert " one" in first.stdout
    last = CliRunner().invoke(app, ["sql", "-c", "SELECT 1\n AS a", "-c", "SELECT nothing", "-c", "SELECT 2 AS b"])
    assert last.exit_code == 1
    assert "LINE 1: SELECT nothing" in last.stderr
    assert " b" not in last.stdout
    quitting = CliRunner().invoke(app, ["sql", "-c", "\\q", "-c", "SELECT nothing"])
    assert quitting.exit_code == 0
    open_at_the_end = CliRunner().invoke(app, ["sql", "-c", "BEGIN", "-c", "SELECT 1"])
    assert open_at_the_end.exit_code == 1
    assert "the input ended inside a transaction" in open_at_the_end.stderr


def test_json_has_all_rows_unless_a_limit_is_given() -> None:
    """Whoever reads JSON is a program, which takes what it gets for all there is."""
    doubled = ", ".join(f"({number})" for number in range(1_001))
    statement = f"SELECT * FROM (VALUES {doubled}) AS v (a)"

    def printed(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["sql", "-c", statement, *arguments])
        assert result.exit_code == 0
        return result.stdout

    assert len(json.loads(printed("--json"))["rows"]) == 1_001
    assert json.loads(printed("--json", "--limit", "2"))["rows"] == [[0], [1]]
    assert printed().endswith("(1000 of 1001 rows; --limit shows more)\n")
    assert printed("--limit", "0").endswith("(1001 rows)\n")


def test_the_exit_code_tells_of_errors() -> None:
    result = CliRunner().invoke(app, ["sql", "-c", "SELECT 1; SELECT x"])
    assert result.exit_code == 1
    assert "ERROR: unknown column x" in result.stderr


def test_a_script_on_the_standard_input_of_a_directory(tmp_path: Path) -> None:
    runner = CliRunner()
    made = runner.invoke(
        app, ["sql", str(tmp_path / "d")], input="CREATE TABLE t (a int);\nINSERT INTO t VALUES (7);\n"
    )
    assert made.exit_code == 0
    read = runner.invoke(app, ["sql", str(tmp_path / "d"), "--limit", "1"], input="SELECT a FROM t;\n")
    assert read.stdout.split() == ["a", "---", "7", "(1", "row)"]


def test_a_database_that_is_made_is_told_of(tmp_path: Path) -> None:
    """Its name may be mistyped, and then its tables are missed."""
    path = tmp_path / "typo"
    made = CliRunner().invoke(app, ["sql", str(path), "--json", "-c", "SELECT 1 AS one", "-c", "SELECT * FROM events"])
    assert made.exit_code == 1 and json.loads(made.stdout)["rows"] == [[1]]
    assert made.stderr.splitlines()[0] == f"made a new database in {path}"
    for target in (str(path), "memory:"):
        assert CliRunner().invoke(app, ["sql", target, "-c", "SELECT 1 AS one"]).stderr == ""
    long = CliRunner().invoke(app, ["sql", str(tmp_path / ("x" * 300)), "-c", "SELECT 1"])
    assert long.exit_code == 1 and "viewtide: " in long.stderr and "made a new" not in long.stderr


def test_a_path_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    result = CliRunner().invoke(app, ["sql", str(tmp_path / "file"), "-c", "SELECT 1"])
    assert result.exit_code == 1
    assert "is a file" in result.stderr


def printing(*arguments: object, to: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The program, with its standard output as a shell redirects it."""
    command = shlex.join([sys.executable, "-m", "viewtide.cli", *map(str, arguments)])
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["bash", "-c", f"{command} {to}"], env={**inherited, **environment}, capture_output=True, check=False
    )


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="a system without /dev/full")
@pytest.mark.parametrize("environment", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
def test_output_that_cannot_be_written(tmp_path: Path, environment: dict[str, str]) -> None:
    vt.connect(tmp_path / "d").close()
    for arguments in (["sql", "-c", "SELECT 1"], ["status", tmp_path / "d"], ["status", tmp_path / "d", "--json"]):
        done = printing(*arguments, to="> /dev/full", **environment)
        assert done.stderr.decode() == "viewtide: the output cannot be written: No space left on device\n"
        assert done.returncode == 1


def test_output_that_nobody_wants() -> None:
    closed = printing("sql", "-c", "SELECT 1", to=">&-")
    assert (closed.returncode, closed.stderr) == (0, b"")
    ended = printing("sql", "-c", "SELECT 1", to="| true; exit ${PIPESTATUS[0]}")
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_output_in_an_encoding_that_lacks_characters(tmp_path: Path) -> None:
    with vt.connect(tmp_path / "d") as database:
        database.sql("CREATE TABLE t (a text); INSERT INTO t VALUES ('\u20ac \u00e9 \U0001f600')")
        database.create_view("v", "SELECT COUNT(*) AS n FROM t")
    other = {"PYTHONIOENCODING": "latin-1"}
    shown = printing("sql", tmp_path / "d", "-c", "SELECT a FROM t; EXPLAIN MATERIALIZED VIEW v", **other)
    assert shown.returncode == 0, shown.stderr
    assert b"? \xe9 ?" in shown.stdout
    as_json = printing("sql", tmp_path / "d", "--json", "-c", "SELECT a FROM t", **other)
    assert json.loads(as_json.stdout)["rows"] == [["\u20ac \u00e9 \U0001f600"]]
    usual = printing("sql", tmp_path / "d", "--json", "-c", "SELECT a FROM t", PYTHONIOENCODING="utf-8")
    assert "\u20ac \u00e9 \U0001f600" in usual.stdout.decode()


class Terminal:
    """The shell in a terminal of its own."""

    def __init__(self, history: Path, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, HISTORY_VARIABLE: str(history), "TERM": "dumb"}
        command = [sys.executable, "-m", "viewtide.cli", "sql", *arguments]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True
        )
        os.close(slave)
        self._seen = ""

    def until(self, text: str) -> str:
        """What comes up to this text, which is waited for."""
        while text not in self._seen:
            # Not `select`: it takes no descriptor above 1023, and a test process may have so many.
            waiting = select.poll()
            waiting.register(self._master, select.POLLIN)
            ready = waiting.poll(READ_SECONDS_MAX * 1000)
            try:
                data = os.read(self._master, 4096) if ready else b""
            except OSError:  # the other side has closed
                data = b""
            assert data, f"{text!r} did not come after {self._seen!r}"
            self._seen += data.decode().replace("\r\n", "\n")
        before, _, self._seen = self._seen.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def signal(self, number: int) -> None:
        """A signal that comes just before readline waits is seen only when something is typed; then it is for sure."""
        self.process.send_signal(number)
        self.type("\n")

    def ended(self) -> int:
        return self.process.wait(READ_SECONDS_MAX)


def test_a_terminal_with_history(tmp_path: Path) -> None:
    history = tmp_path / "history"
    terminal = Terminal(history)
    terminal.until(PROMPT)
    terminal.type("SELECT 1 AS one,\n")
    terminal.until("viewtide-> ")
    terminal.type("nothing;\n")
    assert "LINE 2: nothing;" in terminal.until("HINT")
    terminal.until(PROMPT)
    terminal.type("SELECT nothing;\n")
    assert "LINE 1: SELECT nothing;" in terminal.until("HINT")
    terminal.until(PROMPT)
    terminal.type("BEGIN;\n")
    terminal.until("viewtide=*> ")
    terminal.type("SELECT 40 + 2 AS answer;\n")
    assert "42" in terminal.until("(1 row)")
    terminal.until("viewtide=*> ")
    terminal.type("SELECT 1 / 0;\n")
    terminal.until("viewtide=!> ")
    terminal.type("\\q\n")
    assert terminal.ended() == 0
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "SELECT 40 + 2 AS answer;" in history.read_text()


def test_ctrl_c_forgets_what_was_typed_and_ctrl_d_ends(tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.touch(mode=0o644)
    terminal = Terminal(history)
    terminal.until(PROMPT)
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    terminal.type("SELECT nothing\n")
    terminal.until("viewtide-> ")
    terminal.signal(signal.SIGINT)
    terminal.until(PROMPT)
    terminal.type("SELECT 7 AS seven;\n")
    assert "ERROR" not in terminal.until("(1 row)")
    terminal.until(PROMPT)
    terminal.type("\x04")
    assert terminal.ended() == 0
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_an_end_from_outside_ends_the_shell(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "history", str(tmp_path / "d"))
    terminal.until(PROMPT)
    terminal.signal(signal.SIGTERM)
    assert terminal.ended() == EXIT_INTERRUPTED
    with vt.connect(tmp_path / "d") as db:
        assert db.tables() == []
