"""Random histories through the public API, compared after every step with a model of plain dicts.

After each step: every table holds the model's rows, every view shows what the model computes from them and agrees with
its own `verify()`, every snapshot that is still open shows the state of its moment.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings

import viewtide as vt
from viewtide.coordinator import build
from viewtide.ltm.commit_log.segments import SegmentLog
from viewtide.ltm.ports import Cell
from viewtide.ltm.versions import TableVersions

from . import strategies as gen
from .strategies import Key, Row, Value, ViewSpec, canonical, exact

CACHE_ROWS = 100
#: Small, so that histories cross segments; and a full one would be 16 MB to fill for each history.
SEGMENT_BYTES = 8192
SNAPSHOTS_MAX = 2


class Rollback(Exception):
    """Raised inside a transaction's block."""


State = dict[str, dict[Key, Row]]


@dataclass
class Model:
    tables: dict[str, gen.Table] = field(default_factory=dict)
    rows: State = field(default_factory=dict)
    views: dict[str, ViewSpec] = field(default_factory=dict)

    def key(self, table: str, values: Sequence[Value]) -> Key:
        return tuple(map(canonical, values))

    def key_of(self, table: str, row: Row) -> Key:
        return self.key(table, [row[name] for name in self.tables[table].key])

    def whole(self, table: str, row: Row) -> Row:
        return {column.name: row.get(column.name, column.default) for column in self.tables[table].columns}

    def view_rows(self, view: ViewSpec, rows: State) -> list[tuple[Value, ...]]:
        return gen.evaluate_view(view, {name: rows[name].values() for name in view.tables()})

    def write(self, rows: State, write: gen.Write) -> object:
        """Apply one call to `rows`; returns what it must return, or raises IntegrityError and changes nothing."""
        table = rows[write.table]
        if write.kind == "insert":
            added = {}
            for row in write.rows:
                key = self.key_of(write.table, row)
                if key in table or key in added:
                    raise vt.IntegrityError("exists")
                added[key] = self.whole(write.table, row)
            table.update(added)
            return None
        if write.kind == "upsert":
            for row in write.rows:
                key = self.key_of(write.table, row)
                table[key] = {**table[key], **row} if key in table else self.whole(write.table, row)
            return None
        key = self.key(write.table, write.key)
        if key not in table:
            return False
        if write.kind == "delete":
            del table[key]
            return True
        moved = {**table[key], **write.changes}
        new_key = self.key_of(write.table, moved)
        if new_key != key and new_key in table:
            raise vt.IntegrityError("exists")
        del table[key]
        table[new_key] = moved
        return True


@dataclass
class Held:
    """An open snapshot and what it must show. `tables` are the columns that there were."""

    snapshot: vt.Snapshot
    columns: dict[str, list[str]]
    rows: State
    views: dict[str, ViewSpec]


class Session:
    """A database under test and its model."""

    def __init__(self, history: gen.History, directory: Path | None, local_ltms: int | None = None) -> None:
        """`local_ltms`: so many LTMs, and views are of the local layout where they can be."""
        self._directory = directory
        self._local_ltms = local_ltms
        self._opened = 0
        self._path: Path | None = None if directory is None else directory / "0"
        self.db = self._connect()
        self.model = Model()
        self._held: list[Held] = []
        for table in history.tables:
            self.model.tables[table.name] = copy.deepcopy(table)
            self.model.rows[table.name] = {}
            columns = {column.name: gen.TYPES[column.kind] for column in table.columns}
            self.db.create_table(table.name, columns, key=table.key, indexes=table.indexes)

    def _connect(self) -> vt.Database:
        target = "memory:" if self._path is None else self._path
        return vt.connect(target, cache_rows=CACHE_ROWS, ltms=self._local_ltms)

    def close(self) -> None:
        self._release_snapshots()
        self.db.close()

    def _release_snapshots(self) -> None:
        for held in self._held:
            held.snapshot.close()
        self._held.clear()

    def run(self, step: gen.Step) -> None:
        {
            gen.Transact: self._transact,
            gen.CreateView: self._create_view,
            gen.DropView: self._drop_view,
            gen.AddColumn: self._add_column,
            gen.DropColumn: self._drop_column,
            gen.CreateIndex: self._create_index,
            gen.DropIndex: self._drop_index,
            gen.Checkpoint: self._checkpoint,
            gen.HoldSnapshot: self._hold_snapshot,
            gen.Reopen: self._reopen,
        }[type(step)](step)  # type: ignore[operator]

    # -- transactions

    def _transact(self, step: gen.Transact) -> None:
        before = self.model.rows
        rows = {name: dict(table) for name, table in before.items()}
        expected: type[Exception] | None = None
        if step.end == "commit":
            with contextlib.suppress(Rollback), self.db.transaction() as tx:
                self._steps(tx, step, rows)
                if self._refused(rows):
                    expected = vt.DataError
                    with pytest.raises(vt.DataError):
                        tx.commit()
        elif step.end == "rollback":
            tx = self.db.transaction()
            self._steps(tx, step, rows)
            tx.rollback()
        else:
            with pytest.raises(Rollback), self.db.transaction() as tx:
                self._steps(tx, step, rows)
                raise Rollback
        if step.end == "commit" and expected is None:
            self.model.rows = rows

    def _refused(self, rows: State) -> bool:
        """Does some view have a row that cannot be computed?"""
        try:
            for view in self.model.views.values():
                self.model.view_rows(view, rows)
        except gen.ModelDataError:
            return True
        return False

    def _steps(self, tx: vt.Transaction, step: gen.Transact, rows: State) -> None:
        for part in step.steps:
            if isinstance(part, gen.Write):
                self._write(tx, part, rows)
            else:
                self._read(tx, part, rows)

    def _write(self, tx: vt.Transaction, write: gen.Write, rows: State) -> None:
        calls: dict[str, Callable[[], object]] = {
            "insert": lambda: tx.insert(write.table, write.rows),
            "upsert": lambda: tx.upsert(write.table, write.rows),
            "update": lambda: tx.update(write.table, write.key, write.changes),
            "delete": lambda: tx.delete(write.table, write.key),
        }
        call = calls[write.kind]
        try:
            expected = self.model.write(rows, write)
        except vt.IntegrityError:
            with pytest.raises(vt.IntegrityError):
                call()
            return
        assert call() == expected, write

    def _read(self, tx: vt.Transaction, read: gen.Read, rows: State) -> None:
        if read.what == "view":
            view = self.model.views.get(read.name)
            if view is not None:
                self._check_view(tx.view(read.name).rows, view, rows)
        elif read.what == "get":
            found = tx.get(read.name, read.key)
            expected = rows[read.name].get(self.model.key(read.name, read.key))
            assert (found is None) == (expected is None), read
            assert found is None or bag([found]) == bag([expected]), read
        elif read.what == "scan":
            self._check_table(tx, read.name, rows)
        else:
            self._find(tx, read, rows)

    def _find(self, tx: vt.Transaction, read: gen.Read, rows: State) -> None:
        table = self.model.tables[read.name]
        if all(column.name != read.column for column in table.columns):
            return
        expected = [row for row in rows[read.name].values() if gen.same(row[read.column], read.value)]
        try:
            found = tx.find(read.name, **{read.column: read.value})
        except vt.ProgrammingError:
            assert (read.column,) not in table.indexes, read
            assert read.column != table.key[0], read
            return
        assert bag(found) == bag(expected), read

    # -- changes of the catalog

    def _create_view(self, step: gen.CreateView) -> None:
        try:
            self.model.view_rows(step.view, self.model.rows)
        except gen.ModelDataError:
            with pytest.raises(vt.DataError):
                self._create(step.view)
            return
        self._create(step.view)
        self.model.views[step.view.name] = step.view

    def _create(self, view: ViewSpec) -> None:
        if self._local_ltms is not None:
            try:
                self.db.create_view(view.name, view.sql, layout="local")
            except vt.UnsupportedView:
                pass  # it can only be global
            else:
                return
        self.db.create_view(view.name, view.sql)

    def _drop_view(self, step: gen.DropView) -> None:
        if self.model.views.pop(step.name, None) is None:
            with pytest.raises(vt.ProgrammingError):
                self.db.drop_view(step.name)
        else:
            self.db.drop_view(step.name)

    def _add_column(self, step: gen.AddColumn) -> None:
        column = step.column
        self.db.add_column(step.table, column.name, vt.column(gen.TYPES[column.kind], default=column.default))
        self.model.tables[step.table].columns.append(column)
        for row in self.model.rows[step.table].values():
            row[column.name] = column.default

    def _drop_column(self, step: gen.DropColumn) -> None:
        table = self.model.tables[step.table]
        used = {name for view in self.model.views.values() for of, name in view.columns if of == step.table}
        if step.column in used.union(table.key):
            with pytest.raises(vt.ProgrammingError):
                self.db.drop_column(step.table, step.column)
        elif not step.used:
            self.db.drop_column(step.table, step.column)
            table.indexes[:] = [index for index in table.indexes if step.column not in index]
            table.columns = [column for column in table.columns if column.name != step.column]
            for row in self.model.rows[step.table].values():
                del row[step.column]

    def _create_index(self, step: gen.CreateIndex) -> None:
        # A view may have made the same one.
        with contextlib.suppress(vt.ProgrammingError):
            self.db.create_index(step.table, step.columns)
        indexes = self.model.tables[step.table].indexes
        if step.columns not in indexes:
            indexes.append(step.columns)

    def _drop_index(self, step: gen.DropIndex) -> None:
        # A view may need it.
        with contextlib.suppress(vt.ProgrammingError):
            self.db.drop_index(step.table, step.columns)
            self.model.tables[step.table].indexes.remove(step.columns)

    # -- the store and the directory

    def _checkpoint(self, step: gen.Checkpoint) -> None:
        engine = self.db._engine
        engine.checkpoint()
        if step.forget:
            with engine.ltm.lock:
                for versions in engine.ltm.tables.versions.values():
                    versions.age()
                    versions.age()

    def _hold_snapshot(self, _: gen.HoldSnapshot) -> None:
        if len(self._held) == SNAPSHOTS_MAX:
            self._held.pop(0).snapshot.close()
        model = self.model
        snapshot = self.db.snapshot()
        snapshot.__enter__()
        columns = {name: [column.name for column in table.columns] for name, table in model.tables.items()}
        self._held.append(Held(snapshot, columns, copy.deepcopy(model.rows), dict(model.views)))

    def _reopen(self, step: gen.Reopen) -> None:
        assert self._directory is not None
        assert self._path is not None
        self._release_snapshots()
        if step.crash:
            self._opened += 1
            before, self._path = self._path, self._directory / str(self._opened)
            # No checkpoint may be under way: a copy of a store that is being written is no state of any moment.
            with self.db._engine._checkpoint_lock:
                shutil.copytree(before, self._path, ignore=shutil.ignore_patterns("socket"))
        self.db.close()
        self.db = self._connect()

    # -- checks

    def check(self) -> None:
        with self.db.snapshot() as snapshot:
            for name in self.model.tables:
                self._check_table(snapshot, name, self.model.rows)
        for view in self.model.views.values():
            stored = self.db.view(view.name)
            self._check_view(stored.rows, view, self.model.rows)
            self._check_groups(stored, view)
            report = stored.verify()
            assert report.ok, (view.sql, report)
        for held in self._held:
            self._check_held(held)

    def _check_table(self, reads: vt.Snapshot | vt.Transaction, name: str, rows: State) -> None:
        found = list(reads.scan(name))
        assert bag(found) == bag(rows[name].values()), name
        keys = [[row[column] for column in self.model.tables[name].key] for row in found]
        assert all(_ascending(low, high) for low, high in itertools.pairwise(keys)), keys

    def _check_view(self, read: Callable[[], vt.Result], view: ViewSpec, rows: State) -> None:
        try:
            expected = self.model.view_rows(view, rows)
        except gen.ModelDataError:
            with pytest.raises(vt.DataError):
                read()
            return
        found = Counter(gen.comparable(view, tuple(row.values())) for row in read())
        assert found == Counter(gen.comparable(view, row) for row in expected), view

    def _check_groups(self, stored: vt.View, view: ViewSpec) -> None:
        if view.group_by is None:
            return
        rows = {name: self.model.rows[name].values() for name in view.tables()}
        for key, members in gen.groups_of(view, rows):
            found = stored.get(key) if key else stored.get()
            assert found is not None, (view, key)
            expected = gen.comparable(view, gen.group_output(view, key, members))
            assert gen.comparable(view, tuple(found.values())) == expected, (view, key)

    def _check_held(self, held: Held) -> None:
        for name, columns in held.columns.items():
            found = Counter(tuple(exact(row[column]) for column in columns) for row in held.snapshot.scan(name))
            rows = held.rows[name].values()
            assert found == Counter(tuple(exact(row[column]) for column in columns) for row in rows), name
        for name, view in held.views.items():
            if self.model.views.get(name) is view:
                self._check_view(held.snapshot.view(name).rows, view, held.rows)


def bag(rows: object) -> Counter[tuple[tuple[str, Value], ...]]:
    return Counter(tuple((name, exact(value)) for name, value in row.items()) for row in rows)  # type: ignore[attr-defined]


def _ascending(low: Sequence[Value], high: Sequence[Value]) -> bool:
    for left, right in zip(low, high, strict=True):
        if not gen.same(left, right):
            return gen.above(right, left)
    return False


def play(history: gen.History, directory: Path | None, local_ltms: int | None = None) -> None:
    session = Session(history, directory, local_ltms)
    try:
        for step in history.steps:
            session.run(step)
            session.check()
    finally:
        session.close()


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory where there is one: what is tested here is what is written, not the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.mark.slow
@settings(max_examples=1_500, suppress_health_check=list(HealthCheck))
@given(gen.histories(on_disk=False))
def test_histories_in_memory(history: gen.History) -> None:
    play(history, None)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(gen.histories(on_disk=True))
def test_histories_on_disk_with_crashes(history: gen.History) -> None:
    small = functools.partial(SegmentLog, segment_bytes=SEGMENT_BYTES)
    with scratch() as directory, mock.patch("viewtide.node.SegmentLog", small):
        play(history, directory)


@pytest.mark.slow
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(gen.histories(on_disk=True))
def test_histories_of_the_local_layout_over_three_ltms(history: gen.History) -> None:
    small = functools.partial(SegmentLog, segment_bytes=SEGMENT_BYTES)
    with scratch() as directory, mock.patch("viewtide.node.SegmentLog", small):
        play(history, directory, local_ltms=3)


# --- cases that random histories in one thread do not reach: two transactions, or a change of the catalog, overlap ---


@pytest.fixture
def db() -> Iterator[vt.Database]:
    with vt.connect("memory:", cache_rows=CACHE_ROWS) as opened:
        yield opened


def test_what_a_transaction_read_was_dropped_meanwhile(db: vt.Database) -> None:
    """A view, an index and a table that were only read: the transaction commits or is told to run again."""
    db.create_table("t", {"id": int, "a": int}, key="id", indexes=["a"])
    db.create_table("other", {"id": int}, key="id")
    db.create_view("v", "SELECT COUNT(*) AS n FROM t")
    reads_and_drops: list[tuple[Callable[[vt.Transaction], object], Callable[[], None]]] = [
        (lambda tx: tx.view("v").get(), lambda: db.drop_view("v")),
        (lambda tx: tx.find("t", a=1), lambda: db.drop_index("t", "a")),
        (lambda tx: tx.get("other", 1), lambda: db.drop_table("other")),
    ]
    for number, (read, drop) in enumerate(reads_and_drops):
        tx = db.transaction()
        read(tx)
        tx.insert("t", {"id": number, "a": 1})
        drop()
        with contextlib.suppress(vt.TransactionConflict):
            tx.commit()
    with db.snapshot() as snapshot:
        assert len(snapshot.scan("t")) <= len(reads_and_drops)


@pytest.mark.parametrize(
    ("expression", "new"), [("10 / (r.a + s.b)", (-1, 3)), ("9223372036854775804 + r.a + s.b", (3, -1))]
)
def test_a_joined_row_that_never_existed_raises_nothing(db: vt.Database, expression: str, new: tuple[int, int]) -> None:
    """Both sides change in one transaction; a new and an old row side by side have no value, but are in no state."""
    db.create_table("r", {"id": int, "a": int}, key="id")
    db.create_table("s", {"id": int, "b": int}, key="id")
    db.create_view("v", f"SELECT {expression} AS q FROM r JOIN s ON r.id = s.id")
    with db.transaction() as tx:
        tx.insert("r", {"id": 1, "a": 1})
        tx.insert("s", {"id": 1, "b": 1})
    before = db.view("v").rows()
    with db.transaction() as tx:
        tx.update("r", 1, {"a": new[0]})
        tx.update("s", 1, {"b": new[1]})
        assert tx.view("v").rows() == before
    assert db.view("v").rows() == before
    assert db.view("v").verify().ok


def test_a_view_inside_a_transaction_that_is_older_than_an_index(db: vt.Database) -> None:
    """A new index makes the view's plan use it, but has no entries at the transaction's snapshot."""
    db.create_table("p", {"id": int, "x": int, "y": int}, key="id")
    db.create_table("e", {"id": int, "x": int, "y": int}, key="id", indexes=["x"])
    db.create_view("v", "SELECT p.id, e.id AS e FROM p JOIN e ON e.x = p.x AND e.y = p.y")
    with db.transaction() as tx:
        tx.insert("e", [{"id": id_, "x": 1, "y": 1} for id_ in range(3)])
    tx = db.transaction()
    assert len(tx.scan("e")) == 3
    db.create_index("e", ["x", "y"])
    with db.transaction() as other:
        other.insert("p", {"id": 7, "x": 5, "y": 5})
    tx.insert("p", {"id": 1, "x": 1, "y": 1})
    assert [row["e"] for row in tx.view("v").rows()] == [0, 1, 2]
    tx.rollback()


def test_find_inside_a_transaction_that_is_older_than_an_index(db: vt.Database) -> None:
    db.create_table("e", {"id": int, "y": int}, key="id")
    with db.transaction() as tx:
        tx.insert("e", [{"id": id_, "y": 1} for id_ in range(3)])
    tx = db.transaction()
    assert len(tx.scan("e")) == 3
    db.create_index("e", "y")
    db.create_table("newer", {"id": int}, key="id")
    assert not tx.scan("newer")
    try:
        found = [row["id"] for row in tx.find("e", y=1)]
    except vt.ProgrammingError:
        found = [0, 1, 2]  # "no index" is right, too: at its snapshot there was none
    assert found == [0, 1, 2]
    tx.rollback()


def test_rows_of_a_transaction_that_is_older_than_a_column(db: vt.Database) -> None:
    db.create_table("t", {"id": int, "a": int}, key="id")
    with db.transaction() as tx:
        tx.insert("t", {"id": 1, "a": 2})
    with db.transaction() as tx:
        assert tx.get("t", 1) == {"id": 1, "a": 2}
        db.add_column("t", "b", vt.column(int, default=5))
        row = tx.get("t", 1)
        assert row is not None
        assert len(row) == len(list(row)) == len(tuple(row.values()))
        assert row == tx.scan("t")[0] == tx.get_many("t", [1])[0]
        tx.update("t", 1, {"a": 3})
        tx.insert("t", {"id": 2, "a": 4})
    with db.snapshot() as snapshot:
        assert [tuple(row.values()) for row in snapshot.scan("t")] == [(1, 3, 5), (2, 4, 5)]


def test_an_insert_does_not_take_the_pin_of_a_view_that_is_being_built(
    db: vt.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers and builders have numbers of their own: one that ends must not end another."""
    rows_count = 3 * build.PAGE_ROWS
    db.create_table("t", {"id": int, "a": int}, key="id")
    early = [db.transaction() for _ in range(3)]
    with db.transaction() as tx:
        tx.insert("t", [{"id": id_, "a": 1} for id_ in range(rows_count)])
    # The builders of this process have counted on; a first view of a process has the number of a first transaction.
    if hasattr(build, "_builders"):
        monkeypatch.setattr(build, "_builders", itertools.count(early[1]._reader))
    pages = 0
    checkpoint_if_due = db._engine.checkpoint_if_due

    def interfere() -> None:
        nonlocal pages
        pages += 1
        if pages == 1:
            for tx in early:
                with pytest.raises(vt.IntegrityError):
                    tx.insert("t", {"id": 5, "a": 1})
            for a in (7, 8, 9):
                with db.transaction() as tx:
                    tx.update("t", rows_count - 1, {"a": a})
            db._engine.checkpoint()
        checkpoint_if_due()

    monkeypatch.setattr(db._engine, "checkpoint_if_due", interfere)
    db.create_view("v", "SELECT COUNT(*) AS n, SUM(a) AS a FROM t")
    assert pages > 1
    assert db.view("v").get() == {"n": rows_count, "a": rows_count - 1 + 9}
    assert db.view("v").verify().ok


def forget_stored(db: vt.Database) -> None:
    """Everything into the store and out of memory."""
    db._engine.checkpoint()
    with db._engine.ltm.lock:
        for versions in db._engine.ltm.tables.versions.values():
            versions.age()
            versions.age()


@pytest.mark.parametrize("dropped", ["view", "index", "table"])
def test_a_snapshot_never_shows_less_because_something_was_dropped(db: vt.Database, dropped: str) -> None:
    """It shows what there was, or says that it cannot: no rows would be a wrong answer."""
    db.create_table("t", {"id": int, "a": int}, key="id", indexes=["a"])
    db.create_view("v", "SELECT id, a FROM t")
    with db.transaction() as tx:
        tx.insert("t", [{"id": id_, "a": 1} for id_ in range(3)])
    forget_stored(db)
    with db.snapshot() as snapshot:
        view = snapshot.view("v")
        reads: dict[str, Callable[[], vt.Result]] = {
            "view": view.rows,
            "index": lambda: snapshot.find("t", a=1),
            "table": lambda: snapshot.scan("t"),
        }
        assert len(reads[dropped]()) == 3
        if dropped == "index":
            db.drop_index("t", "a")
        else:
            db.drop_view("v")
            if dropped == "table":
                db.drop_table("t")
        for _ in range(2):
            db._engine.checkpoint()
        with contextlib.suppress(vt.Error):
            assert len(reads[dropped]()) == 3


def test_a_reader_while_a_column_is_added(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers take no lock: whoever sees the new columns must see rows that have them."""
    db.create_table("t", {"id": int, "a": int}, key="id")
    with db.transaction() as tx:
        tx.insert("t", {"id": 1, "a": 2})
    seen: list[tuple[object, ...]] = []
    transform = TableVersions.transform

    def read_meanwhile(versions: TableVersions[object], change: Callable[[object], object]) -> None:
        with db.snapshot() as snapshot:
            seen.append(tuple(snapshot.scan("t")[0].values()))
        transform(versions, change)

    monkeypatch.setattr(TableVersions, "transform", read_meanwhile)
    db.add_column("t", "b", vt.column(int, default=5))
    assert seen in ([], [(1, 2)], [(1, 2, 5)])
    with db.snapshot() as snapshot:
        assert tuple(snapshot.scan("t")[0].values()) == (1, 2, 5)


def test_a_row_that_was_loaded_while_a_column_was_added(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was decoded without the column, so it must not be kept for readers who know the column."""
    db.create_table("t", {"id": int, "a": int}, key="id")
    with db.transaction() as tx:
        tx.insert("t", {"id": 1, "a": 2})
    forget_stored(db)
    versions = db._engine.ltm.tables.by_name["t"].versions
    decode = versions.decode

    def decode_and_lose_the_race(data: bytes) -> tuple[object, ...]:
        row = decode(data)
        if len(db._engine.ltm.tables.by_name["t"].table.columns) == 2:
            db.add_column("t", "b", vt.column(int, default=5))
        return row

    monkeypatch.setattr(versions, "decode", decode_and_lose_the_race)
    with db.snapshot() as snapshot:
        row = snapshot.get("t", 1)
        assert row is not None
        assert (row["id"], row["a"]) == (1, 2)
    with db.transaction() as tx:
        assert tx.get("t", 1) == {"id": 1, "a": 2, "b": 5}
        tx.update("t", 1, {"a": 3})
    with db.snapshot() as snapshot:
        assert snapshot.get("t", 1) == {"id": 1, "a": 3, "b": 5}


def test_a_row_that_leaves_memory_between_two_looks_of_a_scan(db: vt.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan noted the key in memory and read a page of the store; then a checkpoint wrote the row and it was
    forgotten: the page's version is outdated."""
    db.create_table("t", {"id": int, "a": int}, key="id")
    with db.transaction() as tx:
        tx.insert("t", [{"id": id_, "a": 1} for id_ in range(3)])
    forget_stored(db)
    with db.transaction() as tx:
        tx.update("t", 1, {"a": 2})
    store = db._engine.ltm._store
    scan = store.scan

    def scan_and_lose_the_race(start: bytes, stop: bytes, at: int, limit: int) -> list[Cell]:
        page = scan(start, stop, at, limit)
        monkeypatch.undo()
        forget_stored(db)
        return page

    monkeypatch.setattr(store, "scan", scan_and_lose_the_race)
    with db.snapshot() as snapshot:
        assert [row["a"] for row in snapshot.scan("t")] == [1, 2, 1]
