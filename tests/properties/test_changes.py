"""Random histories over views of all kinds: what a view showed at a token, plus all changes since, is what it shows.

Views of each kind are kept synchronously and deferred, and are switched while the history goes on. At the end the
changes are read from every token that was noted on the way: each time they are exactly the rest of the whole feed.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import viewtide as vt
from viewtide.ltm.commit_log.segments import SegmentLog

SEGMENT_BYTES = 8192

VIEWS = {
    "sums": "SELECT shop, SUM(x) AS total, AVG(y) AS mean, COUNT(*) AS n FROM sales GROUP BY shop",
    "ends": "SELECT shop, MIN(x) AS low, MAX(x) AS high, MAX(y) AS top FROM sales GROUP BY shop",
    "one": "SELECT MIN(x) AS low, COUNT(*) AS n, COUNT(DISTINCT y) AS ys FROM sales",
    "having": "SELECT shop, MAX(x) AS high FROM sales GROUP BY shop HAVING COUNT(*) > 1",
    "inner": "SELECT s.id, s.x, p.name FROM sales s JOIN shops p ON s.shop = p.id WHERE s.x > 0",
    "left": "SELECT p.id AS shop, p.name, s.id AS sale, s.x FROM shops p LEFT JOIN sales s ON s.shop = p.id",
    "full": "SELECT p.name, SUM(s.x) AS total FROM shops p FULL JOIN sales s ON s.shop = p.id GROUP BY p.name",
    "first": "SELECT id, x FROM sales ORDER BY x DESC LIMIT 3",
    "first_names": "SELECT name FROM shops ORDER BY name LIMIT 2",
    "best": "SELECT shop, MAX(x) AS high FROM sales GROUP BY shop ORDER BY high DESC LIMIT 2",
    "distinct": "SELECT DISTINCT shop, x FROM sales",
    "all": "SELECT x FROM sales UNION ALL SELECT id FROM shops",
    "both": "SELECT shop FROM sales INTERSECT SELECT id FROM shops",
}
#: Made from others: (the view below, definition).
ABOVE = {
    "of_sums": ("sums", "SELECT total, COUNT(*) AS n, MAX(n) AS most FROM {} GROUP BY total"),
    "of_first": ("first", "SELECT SUM(x) AS total FROM {}"),
}
#: Tokens of each view that are gone on from, about: each time the log is read again.
RESUMED_MAX = 10
#: How the copies of a view begin.
MODES = ("sync", "manual")


@dataclass(frozen=True)
class Write:
    table: str
    key: int
    row: tuple[object, ...] | None


@dataclass(frozen=True)
class Transact:
    writes: list[Write]


@dataclass(frozen=True)
class Refresh:
    places: list[int]


@dataclass(frozen=True)
class Switch:
    place: int


class Note:
    """Remember what all views show."""

    def __repr__(self) -> str:
        return "Note()"


class Checkpoint:
    def __repr__(self) -> str:
        return "Checkpoint()"


class Reopen:
    def __repr__(self) -> str:
        return "Reopen()"


X = st.one_of(st.none(), st.integers(-2, 3))
Y = st.sampled_from([None, 0.5, 1.25, -0.0, 0.0, 1e300, float("nan")])
SALES = st.builds(Write, st.just("sales"), st.integers(1, 4), st.one_of(st.none(), st.tuples(st.integers(1, 2), X, Y)))
SHOPS = st.builds(Write, st.just("shops"), st.integers(1, 2), st.one_of(st.none(), st.tuples(st.sampled_from("abc"))))
PLACES = st.integers(0, 1_000)
STEPS = st.lists(
    st.one_of(
        st.builds(Transact, st.lists(st.one_of(SALES, SALES, SHOPS), min_size=1, max_size=4)),
        st.builds(Transact, st.lists(SALES, min_size=1, max_size=2)),
        st.builds(Refresh, st.lists(PLACES, min_size=1, max_size=3)),
        st.builds(Switch, PLACES),
        st.builds(Note),
        st.builds(Checkpoint),
        st.builds(Reopen),
    ),
    min_size=5,
    max_size=30,
)


def bag(rows: Iterable[vt.Row]) -> Counter[str]:
    """Written out: NaN is not equal to itself."""
    return Counter(repr(tuple(row.values())) for row in rows)


def added(start: Counter[str], changes: Iterable[vt.ViewChange]) -> Counter[str]:
    total = Counter(start)
    for change in changes:
        for row, times in change.rows:
            total[next(iter(bag([row])))] += times
    assert all(times >= 0 for times in total.values()), "a row left that was not there"
    return +total


class Session:
    def __init__(self, names: list[str], directory: Path | None, history_bytes: int | None) -> None:
        self._path = None if directory is None else directory / "test.db"
        self._history_bytes = history_bytes
        self.db = self._connect()
        self.db.create_table("shops", {"id": int, "name": str}, key="id")
        self.db.create_table("sales", {"id": int, "shop": int, "x": int, "y": float}, key="id")
        self.names = [
            self._create(f"{name}_{mode}", definition, mode) for name, definition in VIEWS.items() if name in names
            for mode in MODES
        ]  # fmt: skip
        self.names += [
            self._create(f"{name}_{mode}", definition.format(f"{below}_{mode}"), mode)
            for name, (below, definition) in ABOVE.items()
            if below in names
            for mode in MODES
        ]
        self.notes: dict[str, list[tuple[vt.Token, Counter[str]]]] = {name: [] for name in self.names}
        self._sync = {name: name.endswith("_sync") for name in self.names}
        self.note()

    def _connect(self) -> vt.Database:
        target = "memory:" if self._path is None else self._path
        return vt.connect(target, cache_rows=100, history_bytes=self._history_bytes)

    def _create(self, name: str, definition: str, mode: str) -> str:
        self.db.create_view(name, definition, refresh=mode)
        return name

    def note(self) -> None:
        for name in self.names:
            shown = self.db.view(name).rows()
            self.notes[name].append((shown.token, bag(shown)))

    def run(self, step: object) -> None:
        match step:
            case Transact(writes):
                with self.db.transaction() as tx:
                    for write in writes:
                        self._write(tx, write)
            case Refresh(places):
                for place in places:
                    self.db.view(self.names[place % len(self.names)]).refresh()
            case Switch(place):
                self._switch(self.names[place % len(self.names)])
            case Note():
                self.note()
            case Checkpoint():
                self.db._node.engine.checkpoint()
            case Reopen():
                if self._path is not None:
                    self.db.close()
                    self.db = self._connect()

    def _write(self, tx: vt.Transaction, write: Write) -> None:
        if write.row is None:
            tx.delete(write.table, write.key)
        else:
            columns = ("name",) if write.table == "shops" else ("shop", "x", "y")
            tx.upsert(write.table, {"id": write.key, **dict(zip(columns, write.row, strict=True))})

    def _switch(self, name: str) -> None:
        """A view that another one of the other mode is made from, or that is, cannot be switched."""
        with contextlib.suppress(vt.ProgrammingError):
            self.db.view(name).set_refresh("manual" if self._sync[name] else "sync")
            self._sync[name] = not self._sync[name]

    def check(self) -> None:
        for name in self.names:
            view = self.db.view(name)
            shown = view.rows()
            whole = list(view.changes(since=self.notes[name][0][0]))
            tokens = [change.token for change in whole]
            assert tokens == sorted(set(tokens)), name
            assert all(change.rows and all(times for _, times in change.rows) for change in whole), name
            places = [*self.notes[name], *stages(self.notes[name][0][1], whole)]
            for token, start in places[:: max(1, len(places) // RESUMED_MAX)]:
                rest = view.changes(since=token)
                assert repr([*rest]) == repr([change for change in whole if change.token > token]), name
                assert rest.token >= shown.token, name
                assert added(start, [change for change in whole if change.token > token]) == bag(shown), name


def stages(start: Counter[str], changes: list[vt.ViewChange]) -> Iterator[tuple[vt.Token, Counter[str]]]:
    for number, change in enumerate(changes, 1):
        yield change.token, added(start, changes[:number])


def random_steps(seed: int, count: int) -> Iterator[object]:
    """A long history, mostly of small transactions over few rows."""
    random = Random(seed)
    for _ in range(count):
        kind = random.random()
        if kind < 0.7:
            writes = []
            for _ in range(random.choice((1, 1, 2, 3))):
                gone = random.random() < 0.25
                if random.random() < 0.85:
                    row = (
                        random.randint(1, 3),
                        random.choice((None, -2, 0, 1, 2, 3)),
                        random.choice((None, 0.5, -0.0)),
                    )
                    writes.append(Write("sales", random.randint(1, 6), None if gone else row))
                else:
                    writes.append(Write("shops", random.randint(1, 3), None if gone else (random.choice("abc"),)))
            yield Transact(writes)
        elif kind < 0.85:
            yield Refresh([random.randrange(1_000) for _ in range(5)])
        elif kind < 0.93:
            yield Switch(random.randrange(1_000))
        else:
            yield random.choice((Note(), Note(), Checkpoint(), Reopen()))


@pytest.mark.parametrize("seed", range(2))
def test_a_long_history_of_all_kinds(seed: int) -> None:
    session = Session(sorted(VIEWS), None, None)
    with contextlib.closing(session.db):
        for step in random_steps(seed, 100):
            session.run(step)
        session.check()


NAMES = st.lists(st.sampled_from(sorted(VIEWS)), min_size=2, max_size=4, unique=True)


@settings(max_examples=60)
@given(NAMES, STEPS)
def test_changes_lead_from_every_token_to_now(names: list[str], steps: list[object]) -> None:
    session = Session(names, None, None)
    with contextlib.closing(session.db):
        for step in steps:
            session.run(step)
        session.check()


@settings(max_examples=20)
@given(NAMES, STEPS)
def test_changes_are_there_after_the_database_was_opened_again(names: list[str], steps: list[object]) -> None:
    directory = Path(tempfile.mkdtemp())
    try:
        small = functools.partial(SegmentLog, segment_bytes=SEGMENT_BYTES)
        with mock.patch("viewtide.node.SegmentLog", small):
            session = Session(names, directory, None)
            try:
                for step in steps:
                    session.run(step)
                session.run(Reopen())
                session.check()
            finally:
                session.db.close()
    finally:
        shutil.rmtree(directory)


@settings(max_examples=40)
@given(NAMES, STEPS, st.integers(0, 4_000))
def test_what_was_trimmed_is_an_error_and_nothing_is_skipped(
    names: list[str], steps: list[object], history_bytes: int
) -> None:
    session = Session(names, None, history_bytes)
    with contextlib.closing(session.db):
        for step in steps:
            session.run(step)
        for name in session.names:
            view = session.db.view(name)
            shown = bag(view.rows())
            for token, start in session.notes[name]:
                try:
                    changes = list(view.changes(since=token))
                except vt.OperationalError as error:
                    assert "the oldest token that works is Token(" in error.hint
                    oldest = vt.Token(int(error.hint.split("Token(")[1].split(")")[0]))
                    assert oldest > token
                    assert isinstance(list(view.changes(since=oldest)), list)
                else:
                    assert added(start, changes) == shown, name
