"""Views against PostgreSQL 15: after every transaction of a random history, each view has the rows of its query there.

This oracle shares no line with the engine. Every case that ever failed stands in `views_postgres_cases.txt`, one line
each, and is replayed first. To look at a seed: `python -m tests.properties.test_views_postgres SEED ...`; what fails is
shortened and printed as such a line.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

import pytest

import viewtide as vt
from tests.conftest import PROFILE
from tests.postgres import Postgres, PostgresError, running_postgres
from tests.properties.sql_cases import (
    APPROXIMATE,
    NUM,
    WIDE,
    Case,
    View,
    Write,
    for_engine,
    for_postgres,
    history,
    literal,
    read_case,
    value_of,
)
from tests.properties.sql_views import KNOWN_GAPS, REFUSABLE, SEVERAL_SCALES, case

CASES = Path(__file__).parent / "views_postgres_cases.txt"
#: Of float results that PostgreSQL rounds at every step and the engine once.
TOLERANCE = 1e-9
NO_EQUALITY = "joins without any equality"
#: Each row of a VALUES is an alternative of its own.
TOO_MANY = "alternatives"
#: A view with its history counts as one. They are spread over several tests, for several processes.
VIEW_HISTORIES_MIN = {"dev": 100, "full": 1_000, "soak": 10_000}[PROFILE]
PARTS = 4
#: Each feature occurs in so many of the views of a part, in whatever combination.
#: (In one of the parts of 2,500 views the rarest, BOOL_AND, comes 19 times.)
FEATURE_MIN = {"dev": 0, "full": 1, "soak": 15}[PROFILE]
#: Of the views: those that the engine may refuse and does refuse. More would mean that it refuses too much.
REFUSED_SHARE_MAX = 0.08
#: So many more may come together in a small sample.
REFUSED_BY_CHANCE_MAX = 3
#: Every so many cases the database is a directory, and is opened again from a copy.
DIRECTORY_EVERY = 16
#: Every so many cases are looked at more closely: see `Run`.
SAMPLED_EVERY = 3
FEATURES = (
    "2-way join", "3-way join", "4-way join", "inner join", "left join", "right join", "full join", "self-join",
    "join in parentheses", "comma join", "using", "natural join", "extra condition in ON",
    "is not distinct from as join key", "join on an expression", "join of two types",
    "where", "and", "or", "not", "in list", "between", "like", "is null", "is distinct from",
    "case", "coalesce", "nullif", "arithmetic", "function",
    "group by", "group by expression", "group by position or name", "group by without aggregate", "group key not shown",
    "aggregate without group by", "column determined by the key", "having", "filter", "expression inside aggregate",
    "expression around aggregate", "count(*)", "count", "sum", "avg", "min", "max", "count distinct", "sum distinct",
    "avg distinct", "bool_and", "bool_or", "every", "variance",
    "distinct", "union", "union all", "intersect", "intersect all", "except", "except all", "set operations of three",
    "exists", "not exists", "in (subquery)", "not in (subquery)", "correlated in", "correlated inequality",
    "in of rows", "in of a grouped subquery",
    "subquery in from", "cte", "values", "view on view", "select *", "top-k", "order by a column not shown",
    "order by alone", "division by zero", "table without key",
)  # fmt: skip

T = TypeVar("T")
TextRows = list[tuple["str | None", ...]]


class Difference(AssertionError):
    """The engine and PostgreSQL disagree. `kind` groups what has one cause."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Invalid(Exception):
    """PostgreSQL refuses the case itself: while a case is shortened, that happens."""


@dataclasses.dataclass
class Seen:
    """What was really compared: a test that compares nothing must not pass."""

    views: int = 0
    rows: int = 0
    steps: int = 0
    failed_steps: int = 0
    refused: int = 0
    features: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


# --- one case on both sides ---


class Run:
    """A case on both sides, step by step. In PostgreSQL all of it is one transaction, which is rolled back."""

    def __init__(
        self, made: Case, server: Postgres, seen: Seen, directory: Path | None = None, *, sampled: bool = False
    ) -> None:
        self.case, self.server, self.seen = made, server, seen
        self.tables = {table.name: table for table in made.tables}
        self.directory = directory
        self.refused: set[str] = set()
        #: Whether the queries of the views are also asked ad hoc, and the catalog is changed at the end.
        self.sampled = sampled
        self.db = self._open()

    def _open(self) -> vt.Database:
        return vt.connect("memory:" if self.directory is None else self.directory)

    def _close(self) -> None:
        self.db.close()

    def __call__(self) -> None:
        try:
            self.server.executescript("BEGIN; CREATE SCHEMA sample; SET LOCAL search_path = sample")
            self._create_tables()
            for number, step in enumerate(self.case.steps):
                self._create_views(number)
                self._step(number, step)
            self._create_views(len(self.case.steps))
            self._compare("at the end", self._expected(), lambda name: self.db.view(name).rows())
            if self.sampled:
                texts = {view.name: for_engine(view.sql) for view in self.case.views}
                self._compare("as a query", self._expected(), lambda name: self.db.sql(texts[name]))
            self._verify()
            if self.sampled:
                self._change_catalog()
            if self.directory is not None:
                self._reopen()
        finally:
            self._close()
            self.server.executescript("ROLLBACK")
        kept = self._kept()
        self.seen.views += len(kept)
        self.seen.refused += len(self.refused)
        for view in kept:
            self.seen.features.update(view.features)

    def _kept(self) -> list[View]:
        return [view for view in self.case.views if view.name not in self.refused]

    def _create_tables(self) -> None:
        for table in self.case.tables:
            self._postgres(table.create())
            columns = {item.name: vt.column(item.type, nullable=item.nullable) for item in table.columns}
            self.db.create_table(table.name, columns, key=table.key or None)

    def _create_views(self, number: int) -> None:
        for view in self.case.views:
            if view.after == number or (number == len(self.case.steps) and view.after > number):
                self._postgres(f"CREATE VIEW {view.name} AS {for_postgres(view.sql)}")
                if any(f"{name} AS" in view.sql for name in self.refused):
                    self.refused.add(view.name)
                    continue
                try:
                    self.db.create_view(view.name, for_engine(view.sql))
                except vt.Error as error:
                    if isinstance(error, vt.UnsupportedView) and _may_refuse(view, str(error)):
                        self.refused.add(view.name)
                        continue
                    raise Difference(f"refused {_reason(error)}", f"{view.sql}: {error!r}") from error
                except Exception as error:
                    raise Difference(f"crash {type(error).__name__}", f"{view.sql}: {error!r}") from error

    def _step(self, number: int, step: Sequence[Write]) -> None:
        views = [view for view in self.case.views if view.after <= number]
        self.server.executescript("SAVEPOINT step")
        failed: PostgresError | None = None
        expected: dict[str, TextRows] = {}
        try:
            self.server.executescript(";".join(self._dml(write) for write in step) or "SELECT 1")
            expected = self._expected()
        except PostgresError as reason:
            failed = reason
            self.server.executescript("ROLLBACK TO step")
        error = self._transaction(step, {} if failed else expected, inside=number % 3 == 1)
        if failed is not None:
            if error is None:
                raise Difference("no error", f"step {number}: PostgreSQL says {failed}")
            if isinstance(error, vt.DataError) and "risky" not in str(error):
                raise Difference("error without its view", f"step {number}: {error!r}")
            expected = self._expected()
            self.seen.failed_steps += 1
        elif error is not None:
            raise Difference("error", f"step {number}: {error!r}") from error
        self._compare(f"step {number}", expected, lambda name: self.db.view(name).rows())
        self.seen.steps += len(views)

    def _transaction(self, step: Sequence[Write], expected: dict[str, TextRows], *, inside: bool) -> vt.Error | None:
        try:
            with self.db.transaction() as tx:
                for write in step:
                    self._write(tx, write)
                if inside:
                    self._compare("inside the transaction", expected, lambda name: tx.view(name).rows())
        except (vt.DataError, vt.IntegrityError) as error:
            return error
        except (Difference, vt.Error):
            raise
        except Exception as error:
            raise Difference(f"crash {type(error).__name__}", f"{error!r}") from error
        return None

    def _write(self, tx: vt.Transaction, write: Write) -> None:
        operation, name, what, *changes = write
        if operation == "sql":
            tx.sql(str(what))
            return
        table = self.tables[str(name)]
        kinds = {column.name: column.kind for column in table.columns}
        if operation == "insert":
            names = list(kinds)
            rows = [
                {key: value_of(kinds[key], text) for key, text in zip(names, row, strict=True)} for row in _texts(what)
            ]
            tx.insert(table.name, rows)
            return
        texts = dict(zip(table.key, what, strict=True))  # type: ignore[call-overload]
        key = tuple(value_of(kinds[part], texts[part]) for part in table.key)
        single = key if len(key) > 1 else key[0]
        if operation == "delete":
            tx.delete(table.name, single)
        else:
            assert isinstance(changes[0], dict), "an update has its changes"
            tx.update(table.name, single, {part: value_of(kinds[part], text) for part, text in changes[0].items()})

    def _dml(self, write: Write) -> str:
        operation, name, what, *changes = write
        if operation == "insert":
            rows = ", ".join(f"({', '.join(map(literal, row))})" for row in _texts(what))
            return f"INSERT INTO {name} VALUES {rows}"
        if operation == "sql":
            return str(what)
        table = self.tables[str(name)]
        where = " AND ".join(f"{part} = {literal(text)}" for part, text in zip(table.key, what, strict=True))  # type: ignore[call-overload]
        if operation == "delete":
            return f"DELETE FROM {name} WHERE {where}"
        assert isinstance(changes[0], dict), "an update has its changes"
        settings = ", ".join(f"{part} = {literal(text)}" for part, text in changes[0].items())
        return f"UPDATE {name} SET {settings} WHERE {where}"

    def _postgres(self, sql: str) -> None:
        try:
            self.server.executescript(sql)
        except PostgresError as error:
            raise Invalid(f"{sql}: {error}") from error

    def _expected(self) -> dict[str, TextRows]:
        """The rows of all views, as texts, in one question."""
        views = [view for view in self.case.views if view.name in self.db.views()]
        if not views:
            return {}
        found: dict[str, TextRows] = {view.name: [] for view in views}
        parts = [
            f"SELECT '{view.name}', ARRAY[{', '.join(f'{name}::text' for name in view.names)}] FROM {view.name}"
            for view in views
        ]
        for name, row in self.server.query(" UNION ALL ".join(parts)):
            found[str(name)].append(tuple(row))  # type: ignore[arg-type]
        return found

    def _compare(self, where: str, expected: dict[str, TextRows], read: Callable[[str], Iterable[vt.Row]]) -> None:
        for view in self.case.views:
            if view.name not in expected:
                continue
            wanted = [tuple(map(value_of, view.kinds, row)) for row in expected[view.name]]
            try:
                rows = list(read(view.name))
            except Exception as error:
                raise Difference(
                    f"read {type(error).__name__}", f"{view.name} {where}: {error!r}: {view.sql}"
                ) from error
            got = [tuple(row.values()) for row in rows]
            if rows and tuple(rows[0]) != view.names:
                raise Difference("names", f"{view.name}: {tuple(rows[0])}, not {view.names}: {view.sql}")
            self.seen.rows += len(got)
            message = _different(view.kinds, got, wanted)
            if message:
                raise Difference("rows", f"{view.name} {where}: {message}\n{view.sql}")
            if SEVERAL_SCALES not in view.features and (scales := _different_scales(got, wanted)):
                raise Difference("scale", f"{view.name} {where}: {scales}: {view.sql}")

    def _verify(self) -> None:
        for view in self._kept():
            report = self.db.view(view.name).verify()
            if not report.ok:
                raise Difference("verify", f"{view.name}: {report.differences}: {view.sql}")

    def _change_catalog(self) -> None:
        """What one view is dropped with, the others do not need; and an index more changes no view."""
        kept = self._kept()
        if len(kept) > 1:
            self.db.drop_view(kept[-1].name)
        for table in self.case.tables:
            self.db.create_index(table.name, [column.name for column in table.columns][::-1])
        self._compare("after the catalog changed", self._expected(), lambda name: self.db.view(name).rows())

    def _reopen(self) -> None:
        """A copy of the directory, as a crash would leave it, has the same views."""
        assert self.directory is not None
        copy = self.directory.with_name(self.directory.name + "-copy")
        shutil.copytree(self.directory, copy, ignore=shutil.ignore_patterns("socket"))
        expected = self._expected()
        with vt.connect(copy) as reopened:
            self._compare("after a crash", expected, lambda name: reopened.view(name).rows())
            for name in expected:
                if not reopened.view(name).verify().ok:
                    raise Difference("verify", f"{name} after a crash")
        shutil.rmtree(copy)


def _may_refuse(view: View, reason: str) -> bool:
    if "values" in view.features and TOO_MANY in reason:
        return True
    return NO_EQUALITY in reason and bool(REFUSABLE.intersection(view.features))


def _texts(what: object) -> Iterable[tuple[str | None, ...]]:
    assert isinstance(what, tuple | list)
    return what


def _reason(error: vt.Error) -> str:
    return f"{type(error).__name__} {' '.join(str(error).split()[:6])}"


def _different(kinds: Sequence[str], got: list[tuple[object, ...]], wanted: list[tuple[object, ...]]) -> str:
    """What differs between two bags; empty if nothing does. Approximate columns decide nothing but their own values."""
    order = sorted(range(len(kinds)), key=lambda place: kinds[place] == APPROXIMATE)

    def key(row: tuple[object, ...]) -> list[tuple[object, ...]]:
        return [_sortable(kinds[place], row[place]) for place in order]

    if len(got) != len(wanted):
        return _shown(got, wanted, key)
    for one, two in zip(sorted(got, key=key), sorted(wanted, key=key), strict=True):
        if not all(_same(kind, first, second) for kind, first, second in zip(kinds, one, two, strict=True)):
            return _shown(got, wanted, key)
    return ""


def _different_scales(got: list[tuple[object, ...]], wanted: list[tuple[object, ...]]) -> str:
    """The numbers of equal bags that PostgreSQL would print with another number of digits."""
    ours = collections.Counter(str(value) for row in got for value in row if isinstance(value, Decimal))
    theirs = collections.Counter(str(value) for row in wanted for value in row if isinstance(value, Decimal))
    # The sum of integers is an integer here and a numeric there.
    integers = collections.Counter(str(value) for row in got for value in row if type(value) is int)
    extra, missing = ours - theirs, theirs - ours - integers
    return f"{list(extra)[:5]}, not {list(missing)[:5]}" if extra or missing else ""


def _shown(
    got: list[tuple[object, ...]],
    wanted: list[tuple[object, ...]],
    key: Callable[[tuple[object, ...]], list[tuple[object, ...]]],
) -> str:
    keys = {tuple(key(row)): row for row in (*wanted, *got)}
    ours = collections.Counter(tuple(key(row)) for row in got)
    theirs = collections.Counter(tuple(key(row)) for row in wanted)
    extra = [keys[row] for row in (ours - theirs).elements()]
    missing = [keys[row] for row in (theirs - ours).elements()]
    return f"{len(got)} rows, {len(wanted)} expected; too many: {extra[:8]}; missing: {missing[:8]}"


def _sortable(kind: str, value: object) -> tuple[object, ...]:
    """A key that orders any values of one kind: NULL last, NaN before it."""
    if value is None:
        return (2, 0)
    if isinstance(value, float | Decimal) and math.isnan(value):
        return (1, 0)
    if kind == APPROXIMATE and isinstance(value, float) and math.isfinite(value):
        return (0, round(value, 6))
    return (0, value)


def _same(kind: str, one: object, two: object) -> bool:
    if one is None or two is None:
        return one is two
    if isinstance(one, bool) != isinstance(two, bool):
        return False
    if isinstance(two, float | Decimal) and isinstance(one, float | Decimal) and (math.isnan(one) or math.isnan(two)):
        return math.isnan(one) and math.isnan(two)
    if kind == APPROXIMATE:
        assert isinstance(one, float) and isinstance(two, float), f"{one!r} and {two!r} are floats"
        return math.isclose(one, two, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    # The sum of integers is an integer here and a numeric there.
    expected = (int, Decimal) if kind in (NUM, WIDE) else type(two)
    return isinstance(one, expected) and one == two


# --- making a failing case small ---


def shortened(made: Case, fails: Callable[[Case], bool]) -> Case:
    """The case without views, transactions, writes and rows that the failure does not need."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(made):
            if fails(smaller):
                made, changed = smaller, True
                break
    return made


def _smaller(made: Case) -> Iterator[Case]:
    for number in range(len(made.views)):
        yield dataclasses.replace(made, views=_without(made.views, number))
    for number in reversed(range(len(made.steps))):
        yield dataclasses.replace(made, steps=_without(made.steps, number))
    for number in range(len(made.tables)):
        used = any(f"{made.tables[number].name} " in view.sql for view in made.views)
        if not used:
            name = made.tables[number].name
            steps = tuple(tuple(write for write in step if write[1] != name) for step in made.steps)
            yield dataclasses.replace(made, tables=_without(made.tables, number), steps=steps)
    for number, view in enumerate(made.views):
        if view.after:
            yield dataclasses.replace(made, views=_with(made.views, number, dataclasses.replace(view, after=0)))
    for number, step in enumerate(made.steps):
        for place in range(len(step)):
            yield dataclasses.replace(made, steps=_with(made.steps, number, _without(step, place)))
        for place, write in enumerate(step):
            for smaller in _smaller_writes(write):
                yield dataclasses.replace(made, steps=_with(made.steps, number, _with(step, place, smaller)))


def _smaller_writes(write: Write) -> Iterator[Write]:
    operation, name, what, *changes = write
    if operation == "insert":
        rows = tuple(_texts(what))
        for number in range(len(rows) if len(rows) > 1 else 0):
            yield (operation, name, _without(rows, number))
    elif operation == "update":
        assert isinstance(changes[0], dict)
        for part in changes[0] if len(changes[0]) > 1 else ():
            yield (operation, name, what, {key: value for key, value in changes[0].items() if key != part})


def _without(items: tuple[T, ...], number: int) -> tuple[T, ...]:
    return items[:number] + items[number + 1 :]


def _with(items: tuple[T, ...], number: int, item: T) -> tuple[T, ...]:
    return (*items[:number], item, *items[number + 1 :])


def outcome(made: Case, server: Postgres, seen: Seen | None = None) -> str:
    """The kind of the difference that a case shows; empty if there is none, or if it is no case any more."""
    try:
        Run(made, server, seen or Seen(), sampled=True)()
    except Difference as difference:
        return difference.kind
    except Invalid:
        return ""
    except vt.Error as error:
        return f"error {_reason(error)}"
    return ""


# --- the tests ---


def test_the_generator_leaves_nothing_out() -> None:
    assert not KNOWN_GAPS


@pytest.mark.slow
def test_cases_that_once_failed(postgres: Postgres) -> None:
    lines = [line for line in CASES.read_text().splitlines() if line.startswith("{")]
    assert lines, f"{CASES} has cases"
    seen = Seen()
    for line in lines:
        made = read_case(line)
        # What was fixed for the history that showed it must hold for others, too.
        for steps in (made.steps, history(made.tables, len(line))):
            try:
                Run(dataclasses.replace(made, steps=steps), postgres, seen, sampled=True)()
            except Exception as error:
                raise AssertionError(f"{made.name}: {error}") from error
    assert seen.views + seen.refused >= 2 * len(lines)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_views_have_the_rows_of_postgres(part: int, postgres: Postgres, tmp_path: Path) -> None:
    seen, started = Seen(), time.monotonic()
    for number in itertools.count(part, PARTS):
        directory = tmp_path / f"{number}.db" if number // PARTS % DIRECTORY_EVERY == 0 else None
        _run_or_explain(case(number), postgres, seen, directory, sampled=number // PARTS % SAMPLED_EVERY == 0)
        if seen.views * PARTS >= VIEW_HISTORIES_MIN:
            break
    seconds = time.monotonic() - started
    print(f"{seen.views} view-histories, {seen.steps} steps, {seen.rows} rows, {seen.refused} refused, {seconds:.0f} s")
    assert seen.refused <= REFUSED_SHARE_MAX * seen.views + REFUSED_BY_CHANCE_MAX
    missing = {feature: seen.features[feature] for feature in FEATURES if seen.features[feature] < FEATURE_MIN}
    assert not missing, f"too few views with {missing}"
    assert seen.rows > seen.steps, "a view has more than one row on average"
    assert seen.failed_steps * PARTS >= FEATURE_MIN, "no transaction failed as in PostgreSQL"


def _run_or_explain(made: Case, server: Postgres, seen: Seen, directory: Path | None, *, sampled: bool) -> None:
    """Run the case; if it fails, fail with the line that keeps it."""
    try:
        Run(made, server, seen, directory, sampled=sampled)()
    except (Difference, vt.Error) as error:
        kind = outcome(made, server)
        short = shortened(made, lambda smaller: outcome(smaller, server) == kind) if kind else made
        raise AssertionError(f"{made.name}: {error}\nadd to {CASES.name}:\n{short.line()}") from error


def _main(seeds: Iterable[int]) -> None:
    with running_postgres() as server:
        for seed in seeds:
            try:
                _run_or_explain(case(seed), server, Seen(), None, sampled=True)
            except AssertionError as error:
                print(error)


if __name__ == "__main__":
    _main(map(int, sys.argv[1:]))
