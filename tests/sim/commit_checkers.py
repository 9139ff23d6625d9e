"""What must hold of the commit protocol, checked from what clients saw and what participants noted.

Most of it is said at the end of a run: everything that was committed is replayed, in the order of (commit_ts, tx_id),
on a model of plain dicts, and every read is compared with the model at its timestamp.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import NamedTuple, TypeAlias, cast

from viewtide.changetables.types import Row
from viewtide.coordinator.two_phase.messages import CONFLICT, UNKNOWN, Outcome, ReadAt, RowsAt, Submit
from viewtide.ltm.two_phase.messages import COMMITTED, Attempt, TxId
from viewtide.ltm.two_phase.participant import Participant
from viewtide.ltm.two_phase.records import LoggedWrite

from .checkers import Checker
from .client_checkers import Bank, Lists
from .liveness_checkers import Liveness
from .model import Changed, Impossible, Model
from .trace import Event
from .workload import CLIENTS, LTMS, VIEWS, range_map, tables
from .world import World

#: Timestamps at which all that is stored is compared with the model at the end.
STORED_CHECKS = 6


class Part(NamedTuple):
    """What one participant noted of a commit."""

    commit_ts: int
    min_ts: int
    logs: tuple[str, ...]
    writes: tuple[LoggedWrite, ...]
    refreshes: tuple[object, ...]
    #: Several that were run as one.
    tx_ids: tuple[TxId, ...]
    catalog_version: int


Parts: TypeAlias = dict[str, Part]


class Seen(NamedTuple):
    """A read that was answered."""

    asked_us: int
    known_us: int
    process: str
    question: ReadAt
    answer: RowsAt


class Replay(Checker):
    """Atomic, serial by commit_ts, in real time, and as clients were told."""

    kinds = ("committed", "submit", "outcome", "reads", "read")

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.parts: dict[Attempt, Parts] = {}
        self.submits: dict[TxId, tuple[int, Submit]] = {}
        self.outcomes: dict[TxId, Outcome] = {}
        self.reads: list[Seen] = []
        self._asked_us: dict[tuple[str, int], int] = {}
        #: (when, timestamp): somebody knows from then on that it has passed.
        self._known: list[tuple[int, int]] = []

    def observe(self, event: Event) -> None:
        getattr(self, f"_{event.what}")(event)

    def _committed(self, event: Event) -> None:
        attempt, log, *rest = event.detail
        part = Part(*rest)  # type: ignore[arg-type]
        before = self.parts.setdefault(cast(Attempt, attempt), {}).setdefault(cast(str, log), part)
        if before != part:
            raise self.violation(f"{log} committed {attempt} as {before} and as {part}", attempt)

    def _submit(self, event: Event) -> None:
        submit = cast(Submit, event.detail[0])
        self.submits[submit.tx_id] = (event.time_us, submit)

    def _outcome(self, event: Event) -> None:
        outcome = cast(Outcome, event.detail[0])
        before = self.outcomes.setdefault(outcome.tx_id, outcome)
        if (before.state == COMMITTED) != (outcome.state == COMMITTED) or before.commit_ts != outcome.commit_ts:
            raise self.violation(f"{outcome.tx_id} was answered {before} and {outcome}", outcome.tx_id)
        if outcome.state == COMMITTED:
            self._known.append((event.time_us, outcome.commit_ts))

    def _reads(self, event: Event) -> None:
        self._asked_us[event.process, cast(int, event.detail[0])] = event.time_us

    def _read(self, event: Event) -> None:
        question, answer = cast(ReadAt, event.detail[0]), cast(RowsAt, event.detail[1])
        if answer.error:
            self.traffic["reads refused"] += 1
            return
        self.reads.append(
            Seen(self._asked_us[event.process, question.number], event.time_us, event.process, question, answer)
        )
        self._known.append((event.time_us, answer.at))

    # At the end.

    def finish(self) -> None:
        commits = self._atomic()
        self._answered(commits)
        self._in_real_time(commits)
        self._serial(commits)
        self._stored(commits)
        self._count(commits)

    def _atomic(self) -> dict[TxId, tuple[int, Parts]]:
        """One attempt of a transaction is committed, by all on its list, at the highest min_ts."""
        commits: dict[TxId, tuple[int, Parts]] = {}
        for attempt, parts in self.parts.items():
            tx_id = attempt[0]
            first = next(iter(parts.values()))
            for log, part in parts.items():
                if (part.logs, part.commit_ts, part.tx_ids) != (first.logs, first.commit_ts, first.tx_ids):
                    raise self.violation(f"{attempt} was committed as {first}, and by {log} as {part}", tx_id)
            if set(parts) != set(first.logs):
                missing = sorted(set(first.logs).symmetric_difference(parts))
                raise self.violation(f"{attempt} is on the list {first.logs}: {missing} differ", tx_id)
            if first.commit_ts != max(part.min_ts for part in parts.values()):
                raise self.violation(f"{attempt} was committed at {first.commit_ts}, not the highest min_ts", tx_id)
            for member in first.tx_ids:
                if member in commits:
                    raise self.violation(f"two attempts of {member} were committed", member)
                commits[member] = (first.commit_ts, parts)
            self.traffic["commits run as one with others"] += len(first.tx_ids) > 1
        return commits

    def _answered(self, commits: dict[TxId, tuple[int, Parts]]) -> None:
        for tx_id, outcome in self.outcomes.items():
            if outcome.state == UNKNOWN:
                raise self.violation(f"{tx_id} was answered unknown, and it was just submitted", tx_id)
            if outcome.state == COMMITTED and tx_id not in commits:
                raise self.violation(f"{tx_id} was answered {outcome} and is committed nowhere", tx_id)
            if tx_id in commits and (outcome.state != COMMITTED or outcome.commit_ts != commits[tx_id][0]):
                raise self.violation(f"{tx_id} was answered {outcome} and is committed at {commits[tx_id][0]}", tx_id)
        for tx_id in commits:
            if tx_id not in self.submits:
                raise self.violation(f"{tx_id} is committed and was never submitted", tx_id)

    def _in_real_time(self, commits: dict[TxId, tuple[int, Parts]]) -> None:
        """What begins after something was known comes after it in the order of timestamps."""
        self._known.sort()
        times = [known_us for known_us, _ in self._known]
        highest: list[int] = []
        for _, ts in self._known:
            highest.append(max(ts, highest[-1]) if highest else ts)

        def passed(time_us: int) -> int:
            place = bisect_left(times, time_us)
            return highest[place - 1] if place else 0

        for tx_id, (commit_ts, _) in commits.items():
            if commit_ts <= passed(self.submits[tx_id][0]):
                raise self.violation(f"{tx_id} was submitted after {passed(self.submits[tx_id][0])}", tx_id)
        for read in self.reads:
            if not read.question.at and read.answer.at <= passed(read.asked_us):
                raise self.violation(
                    f"a read of {read.process} at {read.answer.at} began after {passed(read.asked_us)} was known",
                    read.answer.at,
                )

    def _serial(self, commits: dict[TxId, tuple[int, Parts]]) -> None:
        model = self.model()
        based_on: dict[tuple[str, int], list[Seen]] = defaultdict(list)
        for read in self.reads:
            based_on[read.process, read.answer.at].append(read)
        reads = sorted(self.reads, key=lambda read: read.answer.at)
        place = 0
        for commit_ts, tx_id in sorted((ts, tx_id) for tx_id, (ts, _) in commits.items()):
            while place < len(reads) and reads[place].answer.at < commit_ts:
                self.advance(model, reads[place].answer.at)
                self._compare(model, reads[place])
                place += 1
            self.advance(model, commit_ts)
            submit = self.submits[tx_id][1]
            if submit.snapshot:
                self._still_so(model, submit, based_on)
            group = sorted(next(iter(commits[tx_id][1].values())).tx_ids)
            if tx_id == group[0]:
                # Those that were run as one do not touch each other: any order will do.
                self._replay(model, commit_ts, [self.submits[each][1] for each in group], commits[tx_id][1])
        for read in reads[place:]:
            self.advance(model, read.answer.at)
            self._compare(model, read)

    def _replay(self, model: Model, commit_ts: int, submits: list[Submit], parts: Parts) -> None:
        tx_id = submits[0].tx_id
        expected: dict[bytes, tuple[Row | None, Row | None]] = {}
        for submit in submits:
            try:
                expected.update(model.apply(submit, commit_ts))
            except Impossible as impossible:
                raise self.violation(str(impossible), submit.tx_id) from None
        noted: dict[bytes, tuple[Row | None, Row | None]] = {}
        for log, part in parts.items():
            for cell, old, new in part.writes:
                if not self.is_owner(cell, log) or cell in noted:
                    raise self.violation(f"{log} wrote {cell!r} for {tx_id}", tx_id)
                noted[cell] = (old, new)
        noted, expected = self.judged(model, noted), self.judged(model, expected)
        if noted != expected:
            cell = next(cell for cell in {**noted, **expected} if noted.get(cell) != expected.get(cell))
            raise self.violation(
                f"{tx_id} at {commit_ts} made {noted.get(cell)} of {cell!r}, the model {expected.get(cell)}", tx_id
            )

    def _still_so(self, model: Model, submit: Submit, based_on: dict[tuple[str, int], list[Seen]]) -> None:
        client = CLIENTS[submit.tx_id[0] // 1_000_000 - 1]
        for read in based_on[client, submit.snapshot]:
            if (read.question.keys, read.question.ranges) == (submit.seen, submit.seen_ranges):
                why = model.differs(read.question, read.answer)
                if why:
                    raise self.violation(f"{submit.tx_id} read at {submit.snapshot}: {why}", submit.tx_id)
                return
        raise self.violation(f"{submit.tx_id} has a snapshot that nobody read", submit.tx_id)

    def _compare(self, model: Model, read: Seen) -> None:
        why = model.differs(read.question, read.answer, exact=True)
        if why:
            raise self.violation(f"{read.process} read at {read.answer.at}: {why}", read.process, read.answer.at)

    def _stored(self, commits: dict[TxId, tuple[int, Parts]]) -> None:
        """All that participants keep is what the model has: now, and at some timestamps of the past."""
        order = sorted((ts, tx_id) for tx_id, (ts, _) in commits.items())
        if not order:
            return
        chosen = {order[-1][0], *(order[number * len(order) // STORED_CHECKS][0] for number in range(STORED_CHECKS))}
        chosen = {ts for ts in chosen if ts >= self.horizon()}
        model = self.model()
        for number, (commit_ts, tx_id) in enumerate(order):
            self.advance(model, commit_ts)
            model.apply(self.submits[tx_id][1], commit_ts)
            if commit_ts in chosen and (number + 1 == len(order) or order[number + 1][0] > commit_ts):
                why = model.differs_from_cells(self.cells_at(commit_ts))
                if why:
                    raise self.violation(f"stored at {commit_ts}: {why}", commit_ts)

    def model(self) -> Model:
        return Model()

    def advance(self, model: Model, ts: int) -> None:
        """The model comes to a timestamp: where catalogs change, it gets that of then."""

    def judged(self, model: Model, cells: Changed) -> Changed:
        """Of the cells that a transaction wrote, those that the model knows."""
        return cells

    def is_owner(self, cell: bytes, log: str) -> bool:
        return range_map().owner(cell) == log

    def cells_at(self, ts: int) -> dict[bytes, Row]:
        return _cells_at(self._world, ts)

    def horizon(self) -> int:
        """Below it versions were forgotten."""
        return max(_participant(self._world, name).cells.horizon for name in LTMS)

    def _count(self, commits: dict[TxId, tuple[int, Parts]]) -> None:
        for commit_ts, parts in commits.values():
            self.traffic["commits"] += 1
            self.traffic["commits of several"] += len(parts) > 1
            self.traffic["raised"] += commit_ts & 0xFF > 0
        for outcome in self.outcomes.values():
            self.traffic["conflicts"] += outcome.state == CONFLICT
        for read in self.reads:
            self.traffic["reads"] += 1
            self.traffic["view rows"] += sum(len(rows) for rows in read.answer.ranges)


def _cells_at(world: World, ts: int) -> dict[bytes, Row]:
    """What all participants together keep, as of a timestamp."""
    found: dict[bytes, Row] = {}
    for name in LTMS:
        cells = _participant(world, name).cells
        for cell in cells.chains:
            row = cells.at(cell, ts)[1]
            if row is not None:
                found[cell] = row
    return found


def _participant(world: World, name: str) -> Participant:
    process = world.nodes[name].process
    assert isinstance(process, Participant)
    return process


class ExactlyOnce(Checker):
    """Counters are what was acknowledged."""

    kinds = ("submit", "outcome", "read")

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._counts: dict[TxId, bytes] = {}
        self._committed: dict[TxId, None] = {}

    def observe(self, event: Event) -> None:
        if event.what == "submit":
            submit = cast(Submit, event.detail[0])
            for table, intents in submit.writes:
                if table == "counters":
                    self._counts[submit.tx_id] = intents[0][0]
        elif event.what == "outcome":
            outcome = cast(Outcome, event.detail[0])
            if outcome.state == COMMITTED:
                self._committed[outcome.tx_id] = None
        else:
            question, answer = cast(ReadAt, event.detail[0]), cast(RowsAt, event.detail[1])
            for cell, (_, row) in zip(question.keys, answer.rows, strict=False):
                if cell in self._counts.values() and row is not None:
                    most = sum(counted == cell for counted in self._counts.values())
                    if cast(int, row[1]) > most:
                        raise self.violation(f"{cell!r} shows {row[1]} after {most} increments", event.process)

    def finish(self) -> None:
        acknowledged = Counter(cell for tx_id, cell in self._counts.items() if tx_id in self._committed)
        for cell, times in acknowledged.items():
            self.traffic["increments"] += times
            row = self.newest(cell)
            if row is None or row[1] != times:
                raise self.violation(f"{cell!r} is {row} after {times} acknowledged increments")

    def newest(self, cell: bytes) -> Row | None:
        row: Row | None = _participant(self._world, range_map().owner(cell)).cells.newest(cell)[1]
        return row


def checkers(world: World) -> tuple[Checker, ...]:
    return (Replay(world), Bank(), Lists(world), ExactlyOnce(world), Liveness(world))


assert set(VIEWS) == {name for name, view in tables().views.items() if not (view.view.hidden or view.view.deferred)}
