"""Some follow what is committed to tables and views, in small pages, while ranges move, LTMs come and go, and logs are
trimmed: what they are told is what was committed, all of it and once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast
from unittest.mock import patch

from viewtide.changetables.keys import table_range
from viewtide.coordinator.cluster import gathering
from viewtide.coordinator.cluster.gathering import Gathering
from viewtide.coordinator.two_phase.messages import ChangesAt, ChangesFound, ReadAt, RowsAt
from viewtide.coordinator.vms.groups import group_keys
from viewtide.coordinator.vms.step_rows import STEPS, watermark_key, watermark_of
from viewtide.ltm.key_range import RangeMap
from viewtide.ltm.machine import Outputs
from viewtide.ltm.two_phase.messages import Attempt, Place, Read, ReadChanges, Refresh
from viewtide.ltm.two_phase.participant import Participant
from viewtide.ltm.two_phase.records import LoggedWrite

from . import cluster, stored, views_cluster
from .checkers import Checker
from .process import Host
from .scenario import Built, Mutant, Scenario
from .trace import Event
from .workload import COORDINATORS, tables, with_hidden
from .world import World

FOLLOWERS = ("follower-1", "follower-2", "follower-3")
#: Rows in a page, and how long it waits for an answer and between two looks.
PAGE_ROWS = 2
ANSWER_MS_MAX = 400
THINK_MS_MAX = 30
#: It goes on with the next one if this one is not answered so often: whoever could is away.
ASKED_MAX = 12
SEEDS_MAX = 60
STORED = "following-stored"

#: (timestamp, key, what became of the row or was added to it).
Change: TypeAlias = tuple[int, bytes, object]
Looking: TypeAlias = Generator[ReadAt | ChangesAt, RowsAt | ChangesFound, None]


def followed_ids(name: str) -> tuple[int, ...]:
    if name in tables().by_name:
        return (tables().by_name[name].table.id,)
    return tuple(sorted(tables().views[each].view.id for each in with_hidden(name)))


class Follower:
    def __init__(self, host: Host) -> None:
        self._host = host
        shown = [name for name, rows in tables().views.items() if not rows.view.hidden]
        self._names = [*(name for name in tables().by_name if name != STEPS), *shown]
        self._since: dict[str, int] = {}
        self._looking: Looking | None = None
        self._open: ReadAt | ChangesAt | None = None
        self._number = 0
        self._asked = 0
        self._end_ms = 0

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._end_ms = now_ms + cluster.WORKING_MS
        self._number = incarnation << 32
        return Outputs(timers=((now_ms + 1, "next"),))

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("it writes nothing")

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        open_ = self._open
        if not isinstance(message, RowsAt | ChangesFound) or open_ is None or message.number != self._number:
            return Outputs()
        assert isinstance(message, RowsAt) == isinstance(open_, ReadAt)
        if message.error:
            return self._wait(now_ms)
        self._asked = 0
        return self._go_on(message, now_ms)

    def timer(self, token: object, now_ms: int) -> Outputs:
        if token == "next":
            if now_ms >= self._end_ms:
                return Outputs()
            self._looking = self._look(self._host.random.choice(self._names))
            return self._go_on(None, now_ms)
        if token != self._number or self._open is None:
            return Outputs()
        self._asked += 1
        if self._asked > ASKED_MAX:
            self._asked = 0
            return self._think(now_ms)
        return self._ask(self._open, now_ms)

    def _go_on(self, answer: RowsAt | ChangesFound | None, now_ms: int) -> Outputs:
        assert self._looking is not None
        try:
            asked = next(self._looking) if answer is None else self._looking.send(answer)
        except StopIteration:
            return self._think(now_ms)
        return self._ask(asked, now_ms)

    def _ask(self, question: ReadAt | ChangesAt, now_ms: int) -> Outputs:
        self._number += 1
        self._open = question = question._replace(number=self._number)
        coordinator = self._host.random.choice(COORDINATORS)
        return Outputs(send=((coordinator, question),), timers=((now_ms + ANSWER_MS_MAX, self._number),))

    def _wait(self, now_ms: int) -> Outputs:
        """What was refused is asked again, in a while."""
        return Outputs(timers=((now_ms + THINK_MS_MAX, self._number),))

    def _think(self, now_ms: int) -> Outputs:
        self._open = None
        return Outputs(timers=((now_ms + self._host.random.randint(1, THINK_MS_MAX), "next"),))

    def _moment(self, name: str, ids: Sequence[int]) -> Generator[ReadAt, RowsAt | ChangesFound, int]:
        """A new timestamp; of a deferred view, its watermark."""
        view = tables().views.get(name)
        if view is not None and view.view.deferred:
            read = cast(RowsAt, (yield ReadAt(0, 0, (watermark_key(group_keys(tables())[name]),))))
            return watermark_of(read.rows[0][1])
        return cast(RowsAt, (yield ReadAt(0, 0, (table_range(ids[0])[0],)))).at

    def _look(self, name: str) -> Looking:
        ids = followed_ids(name)
        at = yield from self._moment(name, ids)
        since = self._since.get(name)
        if since is None or at <= since:
            self._since[name] = at if since is None else since
            return
        found: list[Change] = []
        behind: tuple[tuple[str, Place], ...] = ()
        while True:
            told = cast(ChangesFound, (yield ChangesAt(0, at, ids, since, PAGE_ROWS, behind)))
            if told.oldest > since:
                self._since[name] = at
                self._host.note("lost", name, since, told.oldest)
                return
            for _, writes, refreshes, _ in told.logs:
                found += [(ts, key, (old, new)) for ts, key, old, new in writes]
                found += [(ts, key, delta) for ts, _, key, _, delta in refreshes]
            behind = tuple((log, place) for log, _, _, place in told.logs if place[0] <= at)
            if not behind:
                break
        self._since[name] = at
        self._host.note("followed", name, since, at, tuple(sorted(found, key=repr)))


class Followed(Checker):
    """What a follower was told is what was committed in that time."""

    kinds = ("committed", "followed", "lost")

    def __init__(self) -> None:
        super().__init__()
        self._changes: dict[tuple[Attempt, str], list[tuple[int, Change]]] = {}
        self._followed: list[tuple[str, int, int, tuple[Change, ...]]] = []

    def observe(self, event: Event) -> None:
        if event.what == "committed":
            self._committed(event)
        elif event.what == "followed":
            self._followed.append(event.detail)  # type: ignore[arg-type]
        else:
            self.traffic["followers left behind"] += 1

    def _committed(self, event: Event) -> None:
        attempt, log, commit_ts, _, _, writes, refreshes, *_ = event.detail
        made: list[tuple[int, Change]] = []
        for key, old, new in cast("tuple[LoggedWrite, ...]", writes):
            made.append((int.from_bytes(key[:4], "big"), (cast(int, commit_ts), key, (old, new))))
        for view_id, key, _, delta in cast("tuple[Refresh, ...]", refreshes):
            # A slot's transaction has the step's W1 in its name, which is the version of its rows.
            deferred = tables().views_by_id[view_id].view.deferred
            ts = cast(Attempt, attempt)[0][1] if deferred else cast(int, commit_ts)
            made.append((view_id, (ts, key, delta)))
        self._changes[cast(Attempt, attempt), cast(str, log)] = made

    def finish(self) -> None:
        by_table: dict[int, list[Change]] = {}
        for made in self._changes.values():
            for table_id, change in made:
                by_table.setdefault(table_id, []).append(change)
        for name, since, at, found in self._followed:
            some = [change for each in followed_ids(name) for change in by_table.get(each, ())]
            expected = Counter(repr(change) for change in some if since < change[0] <= at)
            told = Counter(map(repr, found))
            if told != expected:
                missing, more = list((expected - told).items())[:3], list((told - expected).items())[:3]
                raise self.violation(f"{name} from {since} to {at}: missing {missing}, and not committed {more}", name)
            self.traffic["changes followed"] += len(found)
        self.traffic["rounds followed"] += len(self._followed)


def _with_follower(build: Callable[[World], Built]) -> Callable[[World], Built]:
    def built(world: World) -> Built:
        made = build(world)
        for name in FOLLOWERS:
            world.add(name, Follower, disk=False)
        made.around.mix = replace(made.around.mix, spared=(*made.around.mix.spared, *FOLLOWERS))
        return Built(made.around, (*made.checkers, Followed()))

    return built


# --- known-bad variants ---

_start_rightly, _ask_rightly = Participant.start, Gathering._ask_logs
_read_rightly = Participant._read_when_decided


def _answer_at_once(self: Participant, sender: str, read: Read | ReadChanges) -> None:
    if isinstance(read, ReadChanges):
        self._mark_read(read)
        self._answer_changes(sender, read)
    else:
        _read_rightly(self, sender, read)


def _forget_what_is_missing(self: Participant, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
    outputs = _start_rightly(self, now_ms, disk, incarnation)
    assert self.recent is not None
    self.recent.floor = 0
    return outputs


def _ask_owners_only(self: Gathering, gathered: Any, ranges: RangeMap, now_ms: int) -> None:
    owners = gathering._owned(ranges, gathered.question.ids)
    _ask_rightly(self, gathered, replace(ranges, hosts={log: ranges.hosts[log] for log in owners}), now_ms)


def _bad(name: str, owner: type, method: str, bad: object, scenario: str = "") -> Mutant:
    return Mutant(name, lambda: patch.object(owner, method, bad), SEEDS_MAX, scenario)


MUTANTS = (
    _bad("whoever has voted is not waited for", Participant, "_read_when_decided", _answer_at_once),
    _bad("only owners are asked", Gathering, "_ask_logs", _ask_owners_only),
    _bad("after a restart nothing is missing", Participant, "start", _forget_what_is_missing, STORED),
)


SCENARIO = Scenario(
    name="following",
    summary="some follow tables and views while ranges move, LTMs come and go, and leaders change",
    build=_with_follower(views_cluster.build),
    make_world=cluster.make_world,
    safety_ms=cluster.SAFETY_MS,
    liveness_ms_max=views_cluster.LIVENESS_MS_MAX,
    mutants=MUTANTS,
    traffic_min={"commits": 60, "rounds followed": 15, "changes followed": 60},
)

SCENARIO_STORED = Scenario(
    name=STORED,
    summary="the same where rows are in a shared store and logs are trimmed",
    build=_with_follower(stored.build_views),
    make_world=cluster.make_world,
    safety_ms=cluster.SAFETY_MS,
    liveness_ms_max=views_cluster.LIVENESS_MS_MAX,
    traffic_min={"commits": 60, "rounds followed": 10, "changes followed": 30},
)

SCENARIOS = (SCENARIO, SCENARIO_STORED)
