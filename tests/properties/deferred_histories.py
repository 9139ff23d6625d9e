"""One random history with the same views in every mode, as `test_deferred` runs it.

The copies of a view are called `view_flavour`. The synchronous copies are the model: what they showed after every
transaction is what each other copy has to show at its watermark, and at the end they agree with `recompute`.

    sync       the model
    zero       "0ms"
    twenty     "20ms"
    manual     refreshed at random moments
    grouped    manual, all in one named group
    late       created after some transactions
    switched   set to another mode at random moments
    on_sync    deferred, made from the synchronous copies of the views that it reads

View managers come, go, are withdrawn, assigned and killed meanwhile, also in the middle of their work; in the middle of
steps there are checkpoints and more transactions; in a directory the database is closed or abandoned, and opened again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from random import Random
from unittest import mock

import viewtide as vt
from tests.properties.sql_cases import BOOL, INT, NUM, STR, Case, Column, History, Table, View, Write, for_engine
from tests.properties.sql_cases import value_of as value_of_text
from tests.properties.sql_views import RISKY
from viewtide.changetables.plan import Answers, LookUp
from viewtide.coordinator import refresher
from viewtide.coordinator.vms import managers, stepping, subsystem, view_manager
from viewtide.coordinator.vms.view_manager import ViewManager
from viewtide.ltm.tables import Tables

MODES = ("sync", "0ms", "20ms", "manual", "target_lag 50ms")
FLAVOURS = ("zero", "twenty", "manual", "grouped", "late", "switched", "on_sync")
STEPS = (6, 10)
#: Each is a reason for another step, in which there may be more.
WRITES_IN_STEPS_MAX = 12

Bag = Counter[tuple[object, ...]]

# --- views of every kind over three tables ---

TABLES = (
    Table(
        "e",
        (
            Column("id", INT, "bigint", False),
            Column("g", INT, "bigint", True),
            Column("v", INT, "int", True),
            Column("x", NUM, "numeric", True),
            Column("s", STR, "text", True),
        ),
        ("id",),
    ),
    Table(
        "p",
        (Column("id", INT, "bigint", False), Column("q", INT, "bigint", True), Column("n", STR, "text", True)),
        ("id",),
    ),
    Table(
        "k",
        (Column("a", INT, "bigint", False), Column("b", BOOL, "boolean", False), Column("c", INT, "bigint", True)),
        ("a", "b"),
    ),
)

#: Two columns each; c0 is an integer, so that others can be made from it.
BASE_VIEWS = {
    "select": "SELECT id AS c0, v + 1 AS c1 FROM e WHERE v > 1",
    "duplicates": "SELECT g AS c0, s AS c1 FROM e",
    "join": "SELECT e.id AS c0, p.n AS c1 FROM e JOIN p ON e.g = p.id",
    "join of three": "SELECT e.v AS c0, p.n AS c1 FROM e JOIN p ON e.g = p.id JOIN k ON k.a = p.q",
    "self-join": "SELECT a.id AS c0, b.s AS c1 FROM e AS a JOIN e AS b ON a.g = b.v",
    "left join": "SELECT p.id AS c0, e.s AS c1 FROM p LEFT JOIN e ON e.g = p.id AND e.v > 1",
    "full join": "SELECT p.id AS c0, e.id AS c1 FROM p FULL JOIN e ON e.g = p.id",
    "right join, grouped": "SELECT p.q AS c0, COUNT(e.id) AS c1 FROM e RIGHT JOIN p ON e.g = p.id GROUP BY p.q",
    "two outer joins": "SELECT p.id AS c0, k.c AS c1 FROM e LEFT JOIN p ON e.g = p.id LEFT JOIN k ON k.a = p.q",
    "sums": "SELECT g AS c0, SUM(x) AS c1, COUNT(*) AS c2, AVG(v) AS c3 FROM e GROUP BY g",
    "sums over a join": "SELECT p.q AS c0, SUM(e.v) AS c1 FROM e JOIN p ON e.g = p.id GROUP BY p.q",
    "min and max": "SELECT g AS c0, MIN(v) AS c1, MAX(s) AS c2 FROM e GROUP BY g",
    "min over a join": "SELECT p.q AS c0, MIN(e.x) AS c1 FROM e JOIN p ON e.g = p.id GROUP BY p.q",
    "count distinct": "SELECT g AS c0, COUNT(DISTINCT v) AS c1, SUM(DISTINCT v) AS c2 FROM e GROUP BY g",
    "without group by": "SELECT COUNT(*) AS c0, SUM(v) AS c1, MIN(s) AS c2, COUNT(DISTINCT g) AS c3 FROM e",
    "having": "SELECT g AS c0, COUNT(*) AS c1 FROM e GROUP BY g HAVING COUNT(*) > 1 AND MAX(v) > 1",
    "filter": "SELECT g AS c0, SUM(v) FILTER (WHERE s <> 'a') AS c1 FROM e GROUP BY g",
    "distinct": "SELECT DISTINCT g AS c0, v AS c1 FROM e",
    "union": "SELECT g AS c0, s AS c1 FROM e UNION SELECT q, n FROM p",
    "union all": "SELECT g AS c0, s AS c1 FROM e UNION ALL SELECT q, n FROM p",
    "except": "SELECT g AS c0, s AS c1 FROM e EXCEPT SELECT q, n FROM p",
    "except all": "SELECT v AS c0, 1 AS c1 FROM e EXCEPT ALL SELECT q, 1 FROM p",
    "intersect all": "SELECT v AS c0, s AS c1 FROM e INTERSECT ALL SELECT q, n FROM p",
    "exists": "SELECT id AS c0, v AS c1 FROM e WHERE EXISTS (SELECT * FROM p WHERE p.id = e.g AND p.q > 1)",
    "not exists": "SELECT id AS c0, v AS c1 FROM e WHERE NOT EXISTS (SELECT * FROM p WHERE p.id = e.g)",
    "not in": "SELECT id AS c0, v AS c1 FROM e WHERE g NOT IN (SELECT q FROM p)",
    "top-k": "SELECT id AS c0, v AS c1 FROM e ORDER BY v DESC, id LIMIT 3",
    "top-k of groups": "SELECT g AS c0, SUM(v) AS c1 FROM e GROUP BY g ORDER BY c1, c0 LIMIT 2",
    "subquery": "SELECT p.q AS c0, SUM(w.c) AS c1 FROM p JOIN"
    " (SELECT g, COUNT(*) AS c FROM e GROUP BY g) AS w ON w.g = p.id GROUP BY p.q",
    "composite key": "SELECT k.a AS c0, COUNT(*) AS c1 FROM k WHERE k.b GROUP BY k.a",
}  # fmt: skip
#: Over a view, which stands where {} does.
UPPER_VIEWS = {
    "counted": "SELECT w.c0, COUNT(*) AS c1 FROM {} AS w GROUP BY w.c0",
    "least": "SELECT w.c0, MIN(w.c1) AS c1 FROM {} AS w GROUP BY w.c0",
    "one row": "SELECT COUNT(*) AS c0, COUNT(DISTINCT w.c0) AS c1 FROM {} AS w",
    "joined": "SELECT w.c0, p.n AS c1 FROM {} AS w JOIN p ON p.id = w.c0",
    "looked up": "SELECT e.id AS c0, w.c1 FROM e LEFT JOIN {} AS w ON w.c0 = e.g",
    "first": "SELECT w.c0, w.c1 FROM {} AS w ORDER BY w.c0 DESC, w.c1 LIMIT 2",
    "missing": "SELECT p.id AS c0, p.n AS c1 FROM p WHERE NOT EXISTS (SELECT * FROM {} AS w WHERE w.c0 = p.id)",
    "distinct": "SELECT DISTINCT w.c1 AS c1, w.c0 FROM {} AS w",
}
FEATURES = (*BASE_VIEWS, *(f"on a view: {kind}" for kind in UPPER_VIEWS))


def plain_case(seed: int, turn: int) -> Case:
    """Two views over tables and one or two over views, with a history. `turn`: each kind has its own."""
    rng = Random(seed)
    views: list[View] = []
    kinds = list(BASE_VIEWS)
    for kind in (kinds[turn % len(kinds)], rng.choice(kinds)):
        after = rng.choice((0, 0, 1))
        views.append(View(f"v{len(views)}", BASE_VIEWS[kind], (), (), after, (kind,)))
    kinds = list(UPPER_VIEWS)
    for kind in (kinds[turn % len(kinds)], *rng.sample(kinds, rng.choice((0, 0, 1)))):
        below = rng.choice(views)
        sql = UPPER_VIEWS[kind].format(below.name)
        views.append(View(f"v{len(views)}", sql, (), (), max(below.after, rng.choice((0, 1))), (f"on a view: {kind}",)))
    steps = tuple(History(rng, TABLES).steps(rng.randint(*STEPS)))
    return Case(f"plain {seed}", TABLES, tuple(views), steps)


def renamed(sql: str, flavour: str) -> str:
    """The text over the copies of one flavour."""
    return re.sub(r"\b(v\d+) AS\b", rf"\1_{flavour} AS", for_engine(sql))


def views_in(sql: str) -> set[str]:
    return set(re.findall(r"\b(v\d+) AS\b", sql))


# --- one history ---


@dataclasses.dataclass
class Seen:
    """What really happened: a test in which it did not must not pass."""

    histories: int = 0
    compared: int = 0
    behind: int = 0
    switches: int = 0
    refusals: int = 0
    killed_at_work: int = 0
    commands: int = 0
    reopened: int = 0
    abandoned: int = 0
    log_reads: int = 0
    checkpoints_in_steps: int = 0
    writes_in_steps: int = 0
    points: Counter[str] = dataclasses.field(default_factory=Counter)
    features: Counter[str] = dataclasses.field(default_factory=Counter)
    flavours: Counter[str] = dataclasses.field(default_factory=Counter)


class Run:
    """A history in one database."""

    def __init__(self, made: Case, seed: int, seen: Seen, directory: Path | None) -> None:
        self.rng = Random(f"{made.name} {seed}")
        #: For what the refresher's thread decides.
        self.dice = Random(seed)
        self.case, self.seen, self.directory = made, seen, directory
        self.tables = {table.name: table for table in made.tables}
        self.views = {view.name: view for view in made.views if RISKY not in view.features}
        self.flavours = self.rng.sample(FLAVOURS, self.rng.choice((2, 2, 3)))
        self.late_at = self.rng.randint(1, max(1, len(made.steps) - 2))
        self.modes: dict[str, str] = {}
        #: (commit_ts, what each view showed from then on).
        self.history: list[tuple[int, dict[str, Bag]]] = []
        self.watermarks: dict[str, int] = {}
        self.kills = self.rng.choice((0.0, 0.0, 0.1, 0.3))
        self.checkpoints = self.rng.choice((0.0, 0.0, 0.2))
        self.writes = self.rng.choice((0.0, 0.2)) if made.tables == TABLES else 0.0
        #: Held by whoever writes, until the model knows of it.
        self.writing = threading.Lock()
        self.writes_before = seen.writes_in_steps
        self.small = self.rng.random() < 0.5
        self.opened = 0

    def __call__(self) -> None:
        with self._limits():
            self._connect()
            try:
                self._run()
            finally:
                self._close()
        self.seen.histories += 1
        for view in self.views.values():
            self.seen.features.update(view.features)
        self.seen.flavours.update(self.flavours)

    @contextlib.contextmanager
    def _limits(self) -> Iterator[None]:
        """Half of the histories have limits so small that all of them are reached."""
        work = ViewManager.work
        read_changes = refresher.Refresher.read_changes

        def watched_work(manager: ViewManager, *args: object) -> Generator[list[LookUp], Answers, object]:
            return self._dangerous(manager, work(manager, *args))  # type: ignore[arg-type]

        def watched_read(*args: object) -> object:
            self.seen.log_reads += 1
            return read_changes(*args)  # type: ignore[arg-type]

        with contextlib.ExitStack() as patches:

            def patch(where: object, name: str, value: object) -> None:
                patches.enter_context(mock.patch.object(where, name, value))

            patch(ViewManager, "work", watched_work)
            patch(refresher.Refresher, "read_changes", watched_read)
            if self.small:
                rng = self.rng
                patch(refresher, "STEP_ROWS_MAX", rng.choice((1, 3, 10)))
                patch(managers, "PIECE_ROWS", rng.choice((1, 2, 3)))
                patch(view_manager, "PIECE_ROWS_MIN", 1)
                patch(view_manager, "PIECE_ROWS_MAX", 3)
                patch(subsystem.Subsystem.__init__, "__defaults__", (rng.choice((1, 3, 8)),))
                patch(stepping, "SHOW_ROWS", 1)
                patch(stepping, "NET_ROWS", 1)
            yield

    def _connect(self) -> None:
        target: str | Path = "memory:" if self.directory is None else self.directory / str(self.opened)
        self.db = vt.connect(
            target, cache_rows=self.rng.choice((100, 200_000)), view_managers=self.rng.choice((1, 2, 5))
        )
        self.db._node.refresher.on_point = self._on_point

    def _close(self) -> None:
        self.db.close()

    # -- in the refresher's thread

    def _dangerous(
        self, manager: ViewManager, working: Generator[list[LookUp], Answers, object]
    ) -> Generator[list[LookUp], Answers, object]:
        """Its work, during which it may be killed."""
        answers: Answers | None = None
        #: Somebody must survive to do the work.
        may_die = self.dice.random() < 0.8
        while True:
            try:
                wanted = next(working) if answers is None else working.send(answers)
            except StopIteration as finished:
                return finished.value
            if may_die and self.dice.random() < self.kills and self.db._node.refresher.managers.alive(manager):
                self.db.view_managers.kill(manager.id)
                self.seen.killed_at_work += 1
            answers = yield wanted

    def _on_point(self, point: str) -> None:
        driven = self.db._node.refresher
        self.seen.points[point] += 1
        if point in ("after published", "before opened", "before cut") or not driven._turns._pauses:
            return  # a watermark and its record are one, and so are a moment and what pins it
        # Where it may pause, a checkpoint may come between, and other transactions.
        if self.dice.random() < self.checkpoints:
            with driven._turns.let_go():
                self.db._engine.checkpoint()
            self.seen.checkpoints_in_steps += 1
        may_write = self.seen.writes_in_steps - self.writes_before < WRITES_IN_STEPS_MAX
        if may_write and self.dice.random() < self.writes and self.writing.acquire(blocking=False):
            try:
                with driven._turns.let_go():
                    for _ in range(self.dice.choice((1, 2, 3))):
                        self._touch_hot_rows()
            finally:
                self.writing.release()

    def _touch_hot_rows(self) -> None:
        """The same few rows again and again: their older versions are the ones that a step needs."""
        dice, ids = self.dice, (0, 1, 2)
        with self.db.transaction() as tx:
            for id_ in ids:
                tx.update("p", id_, {"q": dice.choice((0, 1, 2, None)), "n": dice.choice(("a", "b"))})
                tx.update("e", id_, {"g": dice.choice((0, 1, 2, 3)), "v": dice.choice((1, 2, 3))})
        self._note(tx.token.commit_ts)
        self.seen.writes_in_steps += 1

    # -- the history

    def _run(self) -> None:
        for table in self.case.tables:
            columns = {column.name: vt.column(column.type, nullable=column.nullable) for column in table.columns}
            self.db.create_table(table.name, columns, key=table.key or None)
        for number, step in enumerate(self.case.steps):
            self._create(number)
            # One after the other, or all in one transaction.
            for writes in [[write] for write in step] if self.rng.random() < 0.3 else [step]:
                with self.writing:
                    self._note(self._transact(writes))
            self._act()
            self._check()
        self._create(len(self.case.steps))
        token = self._token()
        for name, mode in self.modes.items():
            if mode != "sync":
                self._catch_up(name, token)
        self._check()
        assert all(mark >= token.commit_ts for mark in self.watermarks.values())
        for name in self.views:
            if f"{name}_sync" in self.modes:
                report = self.db.view(f"{name}_sync").verify()
                assert report.ok, (name, report.differences)

    def _token(self) -> vt.Token:
        with self.db.snapshot() as snapshot:
            return snapshot.token

    def _catch_up(self, name: str, token: vt.Token) -> None:
        self.db.view(name).rows(at_least=token)

    def _create(self, number: int) -> None:
        last = number == len(self.case.steps)
        for name, view in list(self.views.items()):
            if not views_in(view.sql) <= self.views.keys():
                del self.views[name]  # what it reads was refused
            elif f"{name}_sync" not in self.modes and (view.after <= number or last):
                try:
                    with self.writing:
                        self._make(view, "sync", "sync")
                        self._note()
                except vt.UnsupportedView:
                    assert self.tables.keys() != {table.name for table in TABLES}, view.sql
                    del self.views[name]
                    continue
                for flavour in self.flavours:
                    if flavour != "late":
                        self._make_copy(view, flavour)
        if "late" in self.flavours and (number >= self.late_at or last):
            for name, view in self.views.items():
                if f"{name}_sync" in self.modes and f"{name}_late" not in self.modes:
                    self._make_copy(view, "late")

    def _make_copy(self, view: View, flavour: str) -> None:
        modes = {"zero": "0ms", "twenty": "20ms", "manual": "manual", "grouped": "manual"}
        mode = modes.get(flavour) or self.rng.choice(("manual", "0ms"))
        if flavour == "switched":
            below = [self.modes[f"{name}_switched"] for name in views_in(view.sql)]
            mode = self.rng.choice([mode for mode in MODES if mode != "sync" or below == ["sync"] * len(below)])
        self._make(view, flavour, mode, below="sync" if flavour == "on_sync" else flavour)

    def _make(self, view: View, flavour: str, mode: str, below: str = "sync") -> None:
        name = f"{view.name}_{flavour}"
        group = "together" if flavour == "grouped" else ""
        self.db.create_view(name, renamed(view.sql, below), refresh=mode, group=group)
        self.modes[name] = mode

    def _transact(self, step: Sequence[Write]) -> int | None:
        """Its commit_ts. None: what a view cannot hold is refused by the synchronous copy, and then never happened."""
        with contextlib.suppress(vt.DataError, vt.IntegrityError):
            with self.db.transaction() as tx:
                for write in step:
                    self._write(tx, write)
            return tx.token.commit_ts
        return None

    def _write(self, tx: vt.Transaction, write: Write) -> None:
        operation, name, what, *changes = write
        if operation == "sql":
            tx.sql(str(what))
            return
        table = self.tables[str(name)]
        kinds = {column.name: column.kind for column in table.columns}
        assert isinstance(what, tuple | list)
        if operation == "insert":
            rows = [
                {key: value_of_text(kinds[key], text) for key, text in zip(kinds, row, strict=True)} for row in what
            ]
            tx.insert(table.name, rows)
            return
        key = tuple(value_of_text(kinds[part], text) for part, text in zip(table.key, what, strict=True))
        single = key if len(key) > 1 else key[0]
        if operation == "delete":
            tx.delete(table.name, single)
        else:
            assert isinstance(changes[0], dict)
            tx.update(table.name, single, {part: value_of_text(kinds[part], text) for part, text in changes[0].items()})

    def _note(self, commit_ts: int | None = None) -> None:
        """What the model shows from a commit on, or from now on. On a cluster a snapshot is later than the last commit,
        and the watermark of a step may be between them."""
        with self.db.snapshot() as snapshot:
            state = {
                name: bag(snapshot.view(f"{name}_sync").rows()) for name in self.views if f"{name}_sync" in self.modes
            }
            self.history.append((commit_ts or snapshot.token.commit_ts, state))

    # -- what may happen at any time

    def _act(self) -> None:
        rng, token = self.rng, self._token()
        for name, mode in self.modes.items():
            chance = rng.random()
            if mode != "sync" and chance < 0.25:
                assert self.db.view(name).refresh() >= token.commit_ts
            elif mode != "sync" and chance < 0.35:
                assert (self.db.view(name).rows(at_least=token).watermark or 0) >= token.commit_ts
            elif mode != "sync" and chance < 0.4:
                assert (self.db.view(name).rows(latest=True).watermark or 0) >= token.commit_ts
        for name in [name for name in self.modes if name.endswith("_switched")]:
            if rng.random() < 0.4:
                self._switch(name, rng.choice(MODES))
        for _ in range(rng.choice((0, 0, 1, 2))):
            self._command()
        if rng.random() < 0.1:
            self._checkpoint()
        if self.directory is not None and rng.random() < 0.25:
            with self.writing:  # what the refresher's thread commits now would be lost, or not be known to the model
                self._reopen()

    def _checkpoint(self) -> None:
        self.db._engine.checkpoint()

    def _switch(self, name: str, mode: str) -> None:
        before = self.modes[name]
        below = [self.modes[each] for each in self._sources(name) if each in self.modes]
        above = [self.modes[each] for each in self._readers(name)]
        refused = (mode == "sync" != before and any(each != "sync" for each in below)) or (
            mode != "sync" == before and "sync" in above
        )
        if refused:
            with contextlib.suppress(vt.ProgrammingError):
                self.db.view(name).set_refresh(mode)
                raise AssertionError(f"{name} was switched from {before} to {mode}")
            self.seen.refusals += 1
            return
        self.db.view(name).set_refresh(mode)
        self.modes[name] = mode
        self.seen.switches += 1

    def _readers(self, name: str) -> list[str]:
        """The copies that are made from a copy."""
        view, _, flavour = name.partition("_")
        if flavour == "on_sync":
            return []
        readers = [f"{each}_{flavour}" for each, made in self.views.items() if view in views_in(made.sql)]
        return [each for each in readers if each in self.modes and name in self._sources(each)]

    def _sources(self, name: str) -> set[str]:
        """All that a view is really made from: what the text names may be in a branch that is always empty."""
        views = self._tables().views
        found: set[str] = set()
        waiting = [name]
        while waiting:
            read = {*views[waiting.pop()].plan.reads} - found
            found |= read
            waiting += read & views.keys()
        return found

    def _tables(self) -> Tables:
        return self.db._engine.ltm.tables

    def _command(self) -> None:
        pool = self.db.view_managers
        ids = [status.id for status in pool.status()]
        what = self.rng.choice(("add", "remove", "withdraw", "assign", "kill"))
        with contextlib.suppress(vt.OperationalError, vt.ProgrammingError):  # the last one stays; one may be gone
            if what == "add" or not ids:
                pool.add()
            else:
                {"remove": pool.remove, "withdraw": pool.withdraw, "assign": pool.assign, "kill": pool.kill}[what](
                    self.rng.choice(ids)
                )
            self.seen.commands += 1

    def _reopen(self) -> None:
        """Close and open again, or go on with what a crash at this moment would leave."""
        assert self.directory is not None
        if self.rng.random() < 0.5:
            self.db.close()
            self.seen.reopened += 1
        else:
            engine, before = self.db._engine, self.directory / str(self.opened)
            self.opened += 1
            with engine._checkpoint_lock, engine.ltm.lock:
                shutil.copytree(before, self.directory / str(self.opened), ignore=shutil.ignore_patterns("socket"))
            self.db.close()
            shutil.rmtree(before)
            self.seen.abandoned += 1
        self._connect()

    # -- what must hold

    def _check(self) -> None:
        names = list(self.modes)
        self.rng.shuffle(names)
        found: dict[str, int] = {}
        with self.writing, self.db.snapshot() as snapshot:
            for name in names:
                rows = snapshot.view(name).rows()
                assert rows.watermark is not None
                found[name] = rows.watermark
                self._compare(name, bag(rows), rows.watermark)
        for name, mark in found.items():
            before = self.watermarks.get(name, 0)
            assert mark >= before, f"the watermark of {name} went back from {before} to {mark}"
            if self.modes[name] != "sync":
                for reader in self._readers(name):
                    assert found[reader] == mark, f"{reader} is at another watermark than {name}"
        self.watermarks.update(found)
        assert len({mark for name, mark in found.items() if name.endswith("_grouped")}) <= 1, found

    def _compare(self, name: str, got: Bag, watermark: int) -> None:
        view = name.partition("_")[0]
        wanted = self._model(view, watermark)
        assert got == wanted, (
            f"{self.case.name}: {name} ({self.modes[name]}) at {watermark} has {list((got - wanted).elements())[:6]} "
            f"too much and lacks {list((wanted - got).elements())[:6]}: {self.views[view].sql}"
        )
        self.seen.compared += 1
        if got != self._model(view, 1 << 63):
            self.seen.behind += 1

    def _model(self, view: str, watermark: int) -> Bag:
        states = [(ts, state[view]) for ts, state in list(self.history) if view in state]
        return max([item for item in states if item[0] <= watermark] or states[:1], key=lambda item: item[0])[1]


def bag(rows: vt.Result) -> Bag:
    return Counter(tuple(row.values()) for row in rows)
