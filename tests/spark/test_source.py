"""The data source called as Spark calls it, without Spark: on directories that are closed, where one process may both
write and read."""

from __future__ import annotations

import datetime
import itertools
import stat
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import viewtide as vt
from viewtide import stored
from viewtide.open_socket import running_address

if TYPE_CHECKING:
    from pyarrow import RecordBatch

pyspark = pytest.importorskip("pyspark.sql.datasource", reason="needs the extra spark")

from pyspark.sql import datasource as ds  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from viewtide.spark import loading, writing  # noqa: E402
from viewtide.spark.options import options_from  # noqa: E402
from viewtide.spark.source import ViewtideSource  # noqa: E402
from viewtide.spark.staging import Staged  # noqa: E402

ROWS = 300
Rows = list[tuple[object, ...]]
WIDE = {
    "id": int, "f": float, "exact": "numeric(10,2)", "any": Decimal, "s": str, "b": bytes, "ok": bool,
    "d": datetime.date, "at": datetime.datetime, "utc": "timestamptz", "j": dict,
}  # fmt: skip
FULL = {
    "id": 1, "f": 0.1, "exact": Decimal("1.25"), "any": Decimal("-7.5"), "s": "é", "b": b"\0\xff", "ok": True,
    "d": datetime.date(2026, 1, 31), "at": datetime.datetime(2026, 1, 31, 12, 30, 0, 5),
    "utc": datetime.datetime(2026, 1, 31, 12, 30, tzinfo=datetime.UTC), "j": {"a": [1, None]},
}  # fmt: skip


@pytest.fixture
def path(db_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stored, "SMALL_CELLS", 0)
    with vt.connect(db_path) as db:
        db.create_table("t", {"id": int, "g": str, "n": int}, key="id")
        db.create_view("sums", "SELECT g, SUM(n) AS n, COUNT(*) AS c FROM t GROUP BY g")
        with db.transaction() as tx:
            tx.insert("t", [{"id": number, "g": "abc"[number % 3], "n": number} for number in range(ROWS)])
    return db_path


def expected(path: Path, name: str = "t") -> Rows:
    with vt.connect(path) as db:
        return sorted(tuple(row.values()) for row in db.sql(f"SELECT * FROM {name}"))


def source(path: Path, **options: object) -> ViewtideSource:
    target = {} if "url" in options else {"path": str(path)}
    return ViewtideSource({**target, **{name: str(value) for name, value in options.items()}})


def read(
    made: ViewtideSource, filters: list[ds.Filter] | None = None, schema: StructType | None = None
) -> tuple[Rows, list[ds.Filter]]:
    """All rows, and the filters that were not taken."""
    schema = made.schema() if schema is None else schema
    reader = made.reader(schema)
    left = list(reader.pushFilters(filters)) if filters else []
    found: Rows = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return sorted(found), left


def test_a_table_and_a_view(path: Path) -> None:
    rows = expected(path)
    made = source(path, table="t", partitions=5)
    assert made.schema().simpleString() == "struct<id:bigint,g:string,n:bigint>"
    assert len(made.reader(made.schema()).partitions()) == 5
    assert read(made) == (rows, [])
    assert read(source(path, view="sums"))[0] == expected(path, "sums")
    assert read(source(path, table="t", columns="n, id"))[0] == [(row[2], row[0]) for row in rows]


def test_every_type_comes_as_it_is(path: Path) -> None:
    with vt.connect(path) as db:
        db.create_table("wide", WIDE, key="id")
        with db.transaction() as tx:
            tx.insert("wide", [FULL, {"id": 2}])
    made = source(path, table="wide")
    types = [field.dataType.simpleString() for field in made.schema().fields]
    assert types == [
        "bigint", "double", "decimal(10,2)", "decimal(38,18)", "string", "binary", "boolean", "date", "timestamp_ntz",
        "timestamp", "string",
    ]  # fmt: skip
    (first, second), _ = read(made)
    assert first == tuple({**FULL, "j": '{"a":[1,null]}'}.values())
    assert second == (2, *[None] * (len(WIDE) - 1))


def test_a_sum_that_is_too_large_asks_for_a_wider_type(path: Path) -> None:
    with vt.connect(path) as db, db.transaction() as tx:
        tx.insert("t", [{"id": ROWS + more, "g": "big", "n": 2**63 - 1} for more in range(2)])
    with pytest.raises(vt.DataError, match="'n' has a value") as caught:
        read(source(path, view="sums"))
    assert "decimal(38,0)" in caught.value.hint
    schema = StructType().add("g", "string").add("n", "decimal(38,0)")
    assert ("big", Decimal(2**64 - 2)) in read(source(path, view="sums"), schema=schema)[0]


FILTERS = [
    (ds.EqualTo(("id",), 5), lambda row: row[0] == 5),
    (ds.GreaterThan(("id",), 290), lambda row: row[0] > 290),
    (ds.GreaterThanOrEqual(("id",), 290), lambda row: row[0] >= 290),
    (ds.LessThan(("id",), 7), lambda row: row[0] < 7),
    (ds.LessThanOrEqual(("id",), 7), lambda row: row[0] <= 7),
    (ds.In(("id",), (1, 2, 500)), lambda row: row[0] in (1, 2, 500)),
    (ds.EqualTo(("g",), "a"), lambda row: row[1] == "a"),
    (ds.GreaterThan(("g",), "a"), lambda row: row[1] > "a"),
    (ds.IsNull(("n",)), lambda row: row[2] is None),
    (ds.IsNotNull(("n",)), lambda row: row[2] is not None),
]


def test_filters_that_are_taken_are_applied(path: Path) -> None:
    with vt.connect(path) as db:
        db.sql("UPDATE t SET n = NULL WHERE id IN (3, 295)")
    rows = expected(path)
    made = source(path, table="t", pushdown="true")
    for (one, keeps), (other, keeps_too) in itertools.pairwise(FILTERS):
        assert read(made, [one, other]) == ([row for row in rows if keeps(row) and keeps_too(row)], [])


def test_filters_that_may_mean_something_else_are_left_to_spark(path: Path) -> None:
    with vt.connect(path) as db:
        db.create_table("f", {"id": int, "f": float, "v": "varchar(3)"}, key="v")
        db.sql("INSERT INTO f VALUES (1, 'NaN', 'abc')")
    left = [
        ds.EqualTo(("f",), 1.0),
        ds.EqualTo(("id",), Decimal(1)),
        ds.Not(ds.EqualTo(("id",), 1)),
        ds.EqualTo(("id", "x"), 1),
        ds.In(("id",), (1, None)),
    ]
    made = source(path, table="f", pushdown="true")
    assert len(read(made, left)[0]) == 1 and read(made, left)[1] == left
    assert read(made, [ds.GreaterThan(("v",), "a text that no key has")])[0] == [
        (1, pytest.approx(float("nan"), nan_ok=True), "abc")
    ]
    assert not hasattr(source(path, table="f").reader(made.schema()), "_taken"), "without the option none is taken"
    assert type(source(path, table="f").reader(made.schema())).pushFilters is ds.DataSourceReader.pushFilters


def test_history(path: Path) -> None:
    rows, sums = expected(path), expected(path, "sums")
    with vt.connect(path) as db:
        begin = db.view("sums").rows().token.commit_ts
        with db.transaction() as tx:
            tx.update("t", 1, {"n": -5})
            tx.delete("t", 2)
            tx.insert("t", {"id": ROWS, "g": "new", "n": 0})
        changed = tx.token.commit_ts
        db.sql("DELETE FROM t WHERE id < 5")
    now = datetime.datetime.now(datetime.UTC).isoformat()
    assert read(source(path, table="t", as_of=begin))[0] == rows
    assert read(source(path, view="sums", as_of=begin))[0] == sums
    assert read(source(path, table="t", as_of=now))[0] == expected(path)
    changes = source(path, table="t", since=begin, as_of=changed)
    assert changes.schema().names == ["id", "g", "n", "_change", "_commit_ts"]
    assert read(changes)[0] == [
        (1, "b", -5, 1, changed), (1, "b", 1, -1, changed), (2, "c", 2, -1, changed), (ROWS, "new", 0, 1, changed),
    ]  # fmt: skip
    assert read(source(path, table="t", since="now"))[0] == []
    with pytest.raises(vt.StaleRead, match="ahead"):
        read(source(path, table="t", as_of="2999-01-01T00:00:00+00:00"))


def test_a_token_as_spark_hands_it_over(path: Path) -> None:
    """`.option("since", token)` is text for Spark, as everything is."""
    rows = expected(path)
    with vt.connect(path) as db:
        before = db.view("sums").rows().token
        with db.transaction() as tx:
            tx.delete("t", 1)
        db.sql("DELETE FROM t WHERE id = 2")
    assert before.tx_id != tx.token.tx_id, "one of each kind"
    assert read(source(path, table="t", as_of=before))[0] == rows
    assert read(source(path, table="t", as_of=tx.token))[0] == [row for row in rows if row[0] != 1]
    assert [row[0] for row in read(source(path, table="t", since=before))[0]] == [1, 2]
    assert [row[0] for row in read(source(path, table="t", since=tx.token))[0]] == [2]
    assert [row[0] for row in read(source(path, table="t", since=before, as_of=tx.token))[0]] == [1]


def test_a_served_node(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viewtide.spark.history.PAGE_ROWS", 7)
    rows = expected(path)
    with vt.connect(path) as db:
        db.create_table("bare", {"a": int})
        db.sql("INSERT INTO bare VALUES (1), (1)")
        begin = db.view("sums").rows().token.commit_ts
        db.sql("DELETE FROM t WHERE id < 5")
        url = running_address(path)
        assert read(source(path, url=url, table="t"))[0] == rows[5:]
        assert read(source(path, url=url, table="t", as_of=begin))[0] == rows
        assert read(source(path, url=url, table="bare"))[0] == [(1,), (1,)]
        staged = write(source(path, url=url, table="t"), [[{"id": 1, "g": "x", "n": 1}]])
        assert staged[0].data is not None
        assert db.sql("SELECT g FROM t WHERE id = 1")[0]["g"] == "x"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/x"}, "give table or view"),
        ({"path": "/x", "table": "t", "view": "v"}, "one of them"),
        ({"path": "/x", "url": "tcp://x", "table": "t"}, "one of them"),
        ({"path": "tcp://x", "table": "t"}, "is a url"),
        ({"url": "x", "table": "t"}, "no url"),
        ({"path": "/x", "table": "t", "as_off": "5"}, "did you mean 'as_of'"),
        ({"path": "/x", "table": "t", "as_of": "yesterday"}, "no timestamp"),
        ({"path": "/x", "table": "t", "as_of": "2026-01-01T00:00:00"}, "time zone"),
        ({"path": "/x", "table": "t", "since": "Token(commit_ts=5)"}, "no timestamp"),
        ({"path": "/x", "table": "t", "since": "Token(commit_ts=-5, tx_id=(1, 2))"}, "no timestamp"),
        ({"path": "/x", "table": "t", "since": "Token(commit_ts=2+3, tx_id=(1, 2))"}, "no timestamp"),
        ({"path": "/x", "table": "t", "since": "Token(commit_ts=\u0665, tx_id=(1, 2))"}, "no timestamp"),
        ({"path": "/x", "table": "t", "since": "Token(commit_ts=5, tx_id=(1, 2)) "}, "no timestamp"),
        ({"path": "/x", "table": "t", "since": "Token(commit_ts=5, tx_id=(1, 2))\n"}, "no timestamp"),
        ({"path": "/x", "table": "t", "partitions": "0"}, "from 1 to"),
        ({"path": "/x", "table": "t", "pushdown": "yes"}, "true or false"),
        ({"url": "tcp://x:1", "table": "t", "insecure": "yes"}, "true or false"),
        ({"path": "/x", "table": "t", "lease": "long"}, "no duration"),
        # As `connect` has it.
        ({"path": "/x", "table": "t", "insecure": "true"}, "insecure is for addresses of nodes"),
        ({"path": "/x", "table": "t", "keys": "ann.key"}, "keys is for addresses of nodes"),
        ({"path": "/x", "table": "t", "server_key": "0" * 64}, "server_key is for addresses of nodes"),
        ({"url": "zk://x:1/y", "table": "t", "insecure": "true"}, "insecure is for a served node"),
    ],
)
def test_options_that_are_wrong(options: dict[str, str], message: str) -> None:
    with pytest.raises(vt.InterfaceError, match=message):
        options_from(options)


def test_a_node_without_keys_has_to_be_meant() -> None:
    options = {"url": "tcp://192.0.2.1:7400", "table": "t"}
    assert not options_from(options).insecure and options_from({**options, "insecure": "true"}).insecure
    with pytest.raises(vt.InterfaceError, match="is on another machine"):
        options_from(options).open()


def test_names_that_are_wrong(path: Path) -> None:
    for options, message in (
        ({"table": "nothing"}, "no table 'nothing'"),
        ({"table": "sums"}, "is a view"),
        ({"view": "t"}, "is a table"),
        ({"table": "t", "columns": "x"}, "no column 'x'"),
    ):
        with pytest.raises(vt.ProgrammingError, match=message):
            source(path, **options).schema()
    with pytest.raises(vt.OperationalError, match="no database"):
        source(path / "elsewhere", table="t").schema()
    assert options_from({"path": "/x", "table": "t", "checkpointLocation": "/y"}).name == "t", "Spark's own"


# -- writing


def batches(rows: list[dict[str, object]]) -> Iterator[RecordBatch]:
    import pyarrow

    return iter(pyarrow.Table.from_pylist(rows).to_batches())


def staged_by(made: ViewtideSource, parts: list[list[dict[str, object]]], writer: ds.DataSourceWriter) -> list[Staged]:
    messages = []
    for number, rows in enumerate(parts):
        task = SimpleNamespace(
            partitionId=lambda number=number: number,
            taskAttemptId=lambda number=number: 100 + number,
            getLocalProperty=lambda name: {"sql.streaming.queryId": "q-1", "streaming.sql.batchId": "7"}[name],
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writing, "_context", lambda task=task: task)
            messages.append(writer.write(batches(rows)))
    return messages


SCHEMA = StructType().add("id", "long").add("g", "string").add("n", "long")


def write(made: ViewtideSource, parts: list[list[dict[str, object]]]) -> list[Staged]:
    writer = made.writer(SCHEMA, False)
    messages = staged_by(made, parts, writer)
    writer.commit(messages)
    return messages


PARTS: list[list[dict[str, object]]] = [
    [{"id": 1000, "g": "a", "n": 1}, {"id": 1001, "g": "b", "n": 2}],
    [],
    [{"id": 1002, "g": "z", "n": None}],
]


def test_a_job_is_written_once_and_leaves_nothing(path: Path) -> None:
    rows = expected(path)
    made = source(path, table="t")
    writer = made.writer(SCHEMA, False)
    messages = staged_by(made, PARTS, writer)
    files = [file for file in (path / "spark").rglob("*") if file.is_file()]
    assert files and all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert stat.S_IMODE((path / "spark").stat().st_mode) == 0o700
    assert expected(path) == rows, "nothing is visible before the commit"
    writer.commit(messages)
    assert not (path / "spark").exists()
    added = [(1000, "a", 1), (1001, "b", 2), (1002, "z", None)]
    assert expected(path) == rows + added
    writer.commit(messages)
    assert expected(path) == rows + added, "a repeated commit does nothing"


def test_a_job_that_fails_leaves_nothing(path: Path) -> None:
    rows = expected(path)
    made = source(path, table="t")
    writer = made.writer(SCHEMA, False)
    writer.abort([*staged_by(made, PARTS, writer), None])
    assert not (path / "spark").exists()
    with pytest.raises(vt.IntegrityError):
        write(made, [PARTS[0], [{"id": 5, "g": "taken", "n": 0}]])
    assert expected(path) == rows


def test_many_rows_are_loaded_in_bulk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BULK_ROWS", 3)
    rows = expected(path)
    write(source(path, table="t"), PARTS)
    assert len(expected(path)) == len(rows) + 3
    with pytest.raises(vt.IntegrityError):
        write(source(path, table="t"), PARTS)


def test_what_cannot_be_written_is_told_first(path: Path) -> None:
    for options, overwrite, message in (
        ({"table": "t"}, True, "overwritten"),
        ({"view": "sums"}, False, "is a view"),
        ({"table": "t", "since": "now"}, False, "for reading"),
    ):
        with pytest.raises((vt.InterfaceError, vt.NotSupportedError), match=message):
            source(path, **options).writer(SCHEMA, overwrite)
    with pytest.raises(vt.ProgrammingError, match="no column 'more'"):
        source(path, table="t").writer(StructType().add("more", "string"), False)


def test_a_batch_of_a_stream_is_written_once(path: Path) -> None:
    rows = expected(path)
    made = source(path, table="t")
    for _ in range(2):
        writer = made.streamWriter(SCHEMA, False)
        writer.commit(staged_by(made, PARTS, writer), 7)
    assert len(expected(path)) == len(rows) + 3
    writer.commit([], 8)
    writer.abort(staged_by(made, PARTS, writer), 8)
    assert len(expected(path)) == len(rows) + 3
    assert not (path / "spark").exists()
    with vt.connect(path) as db:
        noted = db.sql(f'SELECT writer, target, batch FROM "{loading.NOTES}"')
        assert [tuple(row.values()) for row in noted] == [("q-1", "t", 7)]


def test_notes_of_old_jobs_go(path: Path) -> None:
    write(source(path, table="t"), PARTS)
    with vt.connect(path) as db:
        assert db.sql(f'SELECT COUNT(*) AS n FROM "{loading.NOTES}"')[0]["n"] == 1
        db.sql(f'UPDATE "{loading.NOTES}" SET at = 0')
    write(source(path, table="t"), [[{"id": 2000, "g": "a", "n": 1}]])
    with vt.connect(path) as db:
        assert db.sql(f'SELECT COUNT(*) AS n FROM "{loading.NOTES}"')[0]["n"] == 1


def streamed(reader: ds.DataSourceStreamReader, start: dict[str, str], stop: dict[str, str]) -> Rows:
    """What a batch of a stream has."""
    found: Rows = []
    for part in reader.partitions(start, stop):
        for batch in reader.read(part):
            found += zip(*(column.to_pylist() for column in batch.columns[:4]), strict=True)
    return found


def test_the_notes_are_hidden(path: Path) -> None:
    made = source(path, table="t")
    writer = made.streamWriter(SCHEMA, False)
    writer.commit(staged_by(made, PARTS, writer), 7)
    with vt.connect(path) as db:
        url = running_address(path)
        with vt.connect(url) as client:
            write(source(path, url=url, table="t"), [[{"id": 2000, "g": "a", "n": 1}]])
            assert client.tables() == ["t"] and client.status().tables == 1
        assert db.tables() == ["t"] and db.status().tables == 1
        with pytest.raises(vt.ProgrammingError) as caught:
            db.table("nothing").load([])
        assert caught.value.hint == "there are 't'"
        assert db.sql(f'SELECT COUNT(*) AS n FROM "{loading.NOTES}"')[0]["n"] == 2
        with pytest.raises(vt.InterfaceError, match="begin with ~"):
            db.create_table("~mine", {"id": int}, key="id")


def test_a_stream_reads_every_change_once(path: Path) -> None:
    with vt.connect(path) as db:
        token = db.view("sums").rows().token
    made = source(path, table="t", since=token)
    reader = made.streamReader(made.schema())
    begin = reader.initialOffset()
    assert streamed(reader, begin, reader.latestOffset(begin, None)) == []
    with vt.connect(path) as db:
        db.sql("DELETE FROM t WHERE id = 1")
        db.sql("UPDATE t SET n = 7 WHERE id = 2")
    middle = reader.latestOffset()
    with vt.connect(path) as db:
        db.sql("INSERT INTO t VALUES (1000, 'x', 1)")
    end = reader.latestOffset()
    first = [(1, "b", 1, -1), (2, "c", 2, -1), (2, "c", 7, 1)]
    second = [(1000, "x", 1, 1)]
    assert streamed(reader, begin, middle) == first and streamed(reader, begin, middle) == first
    assert streamed(reader, middle, end) == second
    assert streamed(reader, begin, end) == first + second


@pytest.mark.parametrize("options", [{}, {"since": "now"}])
def test_a_stream_that_begins_now_begins_where_its_first_batch_ends(path: Path, options: dict[str, str]) -> None:
    """Spark keeps the end of a batch, and asks again for the beginning of the first one if it has to repeat it."""
    made = source(path, table="t", **options)
    reader = made.streamReader(made.schema())
    begin = reader.initialOffset()
    with vt.connect(path) as db:
        db.sql("INSERT INTO t VALUES (1000, 'x', 1)")
    first = reader.latestOffset(begin, None)
    with vt.connect(path) as db:
        db.sql("INSERT INTO t VALUES (1001, 'y', 2)")
    assert streamed(reader, begin, first) == []
    again = made.streamReader(made.schema())
    assert again.initialOffset() == begin, "what is repeated is what it was"
    assert streamed(again, begin, first) == []
    assert [row[:3] for row in streamed(again, first, again.latestOffset())] == [(1001, "y", 2)]


def test_without_since_a_stream_has_the_rows_that_come_and_refuses_what_it_cannot_say(path: Path) -> None:
    with vt.connect(path) as db:
        db.create_table("bare", {"a": int})
    made = source(path, table="bare")
    assert made.schema().names == ["a"], "a frame has the same: Spark does not tell which of both it asks for"
    reader = made.streamReader(made.schema())
    begin = reader.latestOffset()
    with vt.connect(path) as db:
        db.sql("INSERT INTO bare VALUES (1), (1), (2)")
    came = reader.latestOffset()
    assert sorted(streamed(reader, begin, came)) == [(1,), (1,), (2,)], "a row that comes twice is there twice"
    with vt.connect(path) as db:
        db.sql("UPDATE bare SET a = 3 WHERE a = 2")
    went = reader.latestOffset()
    with pytest.raises(vt.NotSupportedError, match="'bare' were changed or deleted") as caught:
        streamed(reader, came, went)
    assert '"since", "now"' in caught.value.hint
    for signed in (
        made.streamReader(StructType().add("a", "long").add("_change", "long")),
        source(path, table="bare", since="now").streamReader(source(path, table="bare", since="now").schema()),
    ):
        assert sorted(row[:2] for row in streamed(signed, came, went)) == [(2, -1), (3, 1)], "it goes on from there"
