"""The machines of the view maintenance system, each by itself: nothing here reads a clock, a disk or a thread."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from typing import cast

import pytest

import viewtide as vt
from viewtide.changetables.algebra import Scan
from viewtide.changetables.change_table import Change
from viewtide.changetables.plan import Answers, Contribution, LookUp
from viewtide.coordinator.vms import scheduler as scheduling
from viewtide.coordinator.vms.groups import Group, groups_of
from viewtide.coordinator.vms.hash_ring import HashRing
from viewtide.coordinator.vms.managers import VIEW_MANAGERS_MAX, ViewManagers
from viewtide.coordinator.vms.modes import Mode, mode_of, quickest
from viewtide.coordinator.vms.scheduler import Cost, Schedule, Scheduler, Tuning
from viewtide.coordinator.vms.stepping import Progress
from viewtide.coordinator.vms.subsystem import Net, Subsystem, divide, net
from viewtide.coordinator.vms.view_manager import ViewManager
from viewtide.ltm.catalog import View
from viewtide.ltm.outputs import CommitRecord, Write
from viewtide.ltm.steps import Dropped, Opened, Refreshed, Shown

# --- the hash ring ---

KEYS = [f"key {number}".encode() for number in range(10_000)]


def divided(changes: Net, ring: HashRing) -> dict[int, list[Change]]:
    shares: dict[int, list[Change]] = {member: [] for member in ring.members}
    divide([(key, old, new) for key, (old, new) in changes.items()], ring, shares)
    return {member: share for member, share in shares.items() if share}


def test_a_ring_gives_every_member_about_the_same_share() -> None:
    for count in (2, 3, 5, 10):
        shares = Counter(map(HashRing(tuple(range(1, count + 1))).owner, KEYS))
        assert len(shares) == count
        assert max(shares.values()) < 1.35 * len(KEYS) / count
        assert min(shares.values()) > 0.65 * len(KEYS) / count


def test_a_member_that_comes_takes_keys_from_the_others_and_moves_none_between_them() -> None:
    before, after = HashRing((1, 2, 3)), HashRing((1, 2, 3, 4))
    moved = [key for key in KEYS if before.owner(key) != after.owner(key)]
    assert all(after.owner(key) == 4 for key in moved)
    assert 0.15 < len(moved) / len(KEYS) < 0.35


def test_a_member_that_goes_gives_its_keys_away_and_nothing_else_moves() -> None:
    before, after = HashRing((1, 2, 3, 4, 5)), HashRing((1, 2, 4, 5))
    assert all(before.owner(key) == 3 for key in KEYS if before.owner(key) != after.owner(key))


def test_the_ring_does_not_depend_on_the_order_of_its_members() -> None:
    one, two = HashRing((3, 1, 2)), HashRing((2, 3, 1))
    assert one.members == two.members == (1, 2, 3)
    assert all(one.owner(key) == two.owner(key) for key in KEYS[:100])


# --- the subsystem ---

TABLE, OTHER, VIEW = 1, 2, 7


def committed(commit_ts: int, writes: Sequence[Write], table: int = TABLE) -> CommitRecord:
    return CommitRecord(((0, commit_ts),), commit_ts, 1, ((table, list(writes)),), ())


def insert(number: int) -> Write:
    return b"%d" % number, None, (number,)


def rows_of(changes: Iterable[Sequence[tuple[object, ...]]]) -> list[tuple[object, ...]]:
    return list(itertools.chain.from_iterable(changes))


def test_the_subsystem_keeps_what_somebody_waits_for_and_nothing_else() -> None:
    fed = Subsystem()
    assert not fed.feed(committed(5, [insert(1)]))
    fed.watch((TABLE,), 10)
    assert fed.feed(committed(11, [insert(1)]))
    assert not fed.feed(committed(12, [insert(2)], OTHER))
    assert fed.pending((TABLE,), 10) and not fed.pending((TABLE,), 11)
    assert rows_of(fed.changes(TABLE, 10, 20)) == [insert(1)]
    assert fed.changes(OTHER, 0, 20) == []
    assert fed.missing_up_to((TABLE,), 10) == 10
    # Of the time before it was watched, the log has to tell.
    assert fed.missing_up_to((TABLE,), 4) == 10


def test_contributions_to_a_synchronous_view_are_changes_too() -> None:
    fed = Subsystem()
    fed.watch((VIEW,), 0)
    contribution = Contribution(b"k", (1,), (2,))
    assert fed.feed(CommitRecord(((0, 1),), 5, 1, ((TABLE, [insert(1)]),), ((VIEW, [contribution]),)))
    assert rows_of(fed.changes(VIEW, 0, 9)) == [contribution]


def test_changes_are_taken_by_commit_ts() -> None:
    fed = Subsystem()
    fed.watch((TABLE,), 0)
    for commit_ts in (10, 20, 30):
        fed.feed(committed(commit_ts, [insert(commit_ts)]))
    assert rows_of(fed.changes(TABLE, 10, 30)) == [insert(20), insert(30)]
    assert rows_of(fed.changes(TABLE, 9, 29)) == [insert(10), insert(20)]


def test_what_all_have_passed_is_forgotten_without_a_gap() -> None:
    fed = Subsystem()
    fed.watch((TABLE,), 0)
    for commit_ts in (10, 20, 30):
        fed.feed(committed(commit_ts, [insert(commit_ts)]))
    fed.passed({TABLE: 20})
    assert rows_of(fed.changes(TABLE, 0, 99)) == [insert(30)]
    assert fed.missing_up_to((TABLE,), 20) == 20
    assert fed.backlog_rows((TABLE,), 20) == 1
    assert fed.total((TABLE,)) == 3


def test_an_overflow_leaves_the_older_half_to_the_log_and_says_so() -> None:
    fed = Subsystem(rows_max=6)
    fed.watch((TABLE, OTHER), 0)
    for number in range(1, 8):
        fed.feed(committed(10 * number, [insert(number)], TABLE if number % 2 else OTHER))
    missing = fed.missing_up_to((TABLE,), 0)
    assert missing == fed.missing_up_to((OTHER,), 0) == 40
    kept = [*fed.changes(TABLE, missing, 99), *fed.changes(OTHER, missing, 99)]
    assert len(rows_of(kept)) == 3
    assert fed.missing_up_to((TABLE,), 40) == 40
    assert fed.pending((TABLE,), 40)


def test_one_transaction_that_is_larger_than_the_memory_is_left_to_the_log() -> None:
    fed = Subsystem(rows_max=2)
    fed.watch((TABLE,), 0)
    fed.feed(committed(10, [insert(number) for number in range(5)]))
    assert fed.missing_up_to((TABLE,), 0) == 10
    assert not fed.pending((TABLE,), 0)
    assert fed.changes(TABLE, 0, 99) == []


def test_a_table_that_nobody_watches_any_more_takes_no_memory() -> None:
    fed = Subsystem(rows_max=3)
    fed.watch((TABLE, OTHER), 0)
    fed.feed(committed(10, [insert(1), insert(2)]))
    fed.watch((OTHER,), 10)
    fed.feed(committed(20, [insert(3), insert(4)], OTHER))
    assert fed.missing_up_to((OTHER,), 0) == 0
    assert len(rows_of(fed.changes(OTHER, 0, 99))) == 2


def test_the_net_effect_of_many_updates_is_one() -> None:
    changes: Net = {}
    net(changes, [(b"a", (1, 0), (1, 1)), (b"b", None, (2, 0))])
    net(changes, [(b"a", (1, 1), (1, 2)), (b"b", (2, 0), None)])
    net(changes, [(b"a", (1, 2), (1, 3)), (b"c", (3, 0), None)])
    net(changes, [(b"c", None, (3, 0)), (b"d", (4, 0), (4, 1))])
    shares = divided(changes, HashRing((1,)))
    # b came and went, c was put back as it was.
    assert shares == {1: [((1, 0), -1), ((1, 3), 1), ((4, 0), -1), ((4, 1), 1)]}


def test_all_changes_of_a_row_go_to_one_view_manager() -> None:
    ring = HashRing((1, 2, 3))
    changes: Net = {key: ((0, key), (1, key)) for key in KEYS[:300]}
    shares = divided(changes, ring)
    assert set(shares) == {1, 2, 3}
    for member, share in shares.items():
        assert all(ring.owner(cast(bytes, row[1])) == member for row, _ in share)
        assert sum(count for _, count in share) == 0
    assert sum(map(len, shares.values())) == 600


def test_rows_that_differ_only_in_their_digits_are_changes() -> None:
    from decimal import Decimal

    assert divided({b"a": ((Decimal("1.0"),), (Decimal("1.00"),))}, HashRing((1,)))
    assert not divided({b"a": ((Decimal("1.0"),), (Decimal("1.0"),))}, HashRing((1,)))


# --- groups ---


@pytest.fixture
def db() -> Iterable[vt.Database]:
    with vt.connect("memory:") as opened:
        opened.create_table("t", {"id": int, "g": int, "v": int}, key="id")
        yield opened


def groups(db: vt.Database) -> dict[tuple[str, ...], Group]:
    return {group.names: group for group in groups_of(db._engine.ltm.tables)}


def test_views_of_one_dag_and_of_a_named_group_move_together(db: vt.Database) -> None:
    count = "SELECT g, COUNT(*) AS n FROM t GROUP BY g"
    db.create_view("alone", count, refresh="manual")
    db.create_view("below", count, refresh="500ms")
    db.create_view("above", "SELECT n, COUNT(*) AS m FROM below GROUP BY n", refresh="20ms")
    db.create_view("synced", count)
    db.create_view("over_synced", "SELECT n, COUNT(*) AS m FROM synced GROUP BY n", refresh="manual")
    db.create_view("one", count, refresh="1s", group="named")
    db.create_view("two", count, refresh="manual", group="named")
    found = groups(db)
    assert set(found) == {("alone",), ("below", "above"), ("over_synced",), ("one", "two")}
    assert found["below", "above"].mode == Mode(interval_ms=20)
    assert found["one", "two"].mode == Mode(interval_ms=1000)
    assert found["alone",].mode == Mode()
    assert [[rows.view.name for rows in level] for level in found["below", "above"].levels()] == [["below"], ["above"]]
    assert set(found["over_synced",].sources(db._engine.ltm.tables)) == {"synced"}
    assert set(found["below", "above"].sources(db._engine.ltm.tables)) == {"t"}


def test_a_view_that_joins_two_groups_makes_them_one(db: vt.Database) -> None:
    count = "SELECT g, COUNT(*) AS n FROM t GROUP BY g"
    db.create_view("one", count, refresh="manual")
    db.create_view("two", count, refresh="manual")
    assert len(groups(db)) == 2
    db.create_view("both", "SELECT a.n, b.g FROM one AS a JOIN two AS b ON a.g = b.g", refresh="manual")
    assert set(groups(db)) == {("one", "two", "both")}
    db.drop_view("both")
    assert len(groups(db)) == 2


def test_hidden_views_belong_to_the_group_of_their_view(db: vt.Database) -> None:
    db.create_view("least", "SELECT g, MIN(v) AS m FROM t GROUP BY g", refresh="manual")
    (group,) = groups_of(db._engine.ltm.tables)
    assert group.names == ("least",)
    assert len(group.ids) == 2
    assert group.key == min(group.ids)
    assert len(group.levels()) == 2


def test_modes_as_texts() -> None:
    assert mode_of("sync") == mode_of("manual") == Mode()
    assert mode_of("0ms") == Mode(interval_ms=0)
    assert mode_of("target_lag 2000ms") == Mode(target_ms=2000)
    modes = ("manual", "500ms", "target_lag 100ms")
    made = [View(1, "a", Scan("t", "t", (), ()), refresh, "") for refresh in modes]
    assert quickest(made) == Mode(target_ms=100)
    assert quickest(made[:2]) == Mode(interval_ms=500)
    assert quickest(made[:1]) == Mode()


# --- the scheduler ---


class Clock:
    """Groups whose watermark the test sets."""

    def __init__(self, db: vt.Database, **modes: str) -> None:
        for name, refresh in modes.items():
            db.create_view(name, f"SELECT g, COUNT(*) AS {name} FROM t GROUP BY g", refresh=refresh)
        # The database's own refresher must not move them.
        db._node.refresher.close()
        self.groups = {group.names[0]: group for group in groups_of(db._engine.ltm.tables)}
        self.scheduler = Scheduler()
        self.scheduler.adopt(self.groups.values())

    def schedule(self, name: str) -> Schedule:
        return self.scheduler.schedules[self.groups[name].key]

    def next(self, now_ms: float, *pending: str) -> tuple[str | None, float | None]:
        waiting = [(group, name in pending) for name, group in self.groups.items()]
        group, wait_ms = self.scheduler.next(waiting, now_ms)
        return None if group is None else group.names[0], wait_ms

    def published(self, name: str, began_ms: float, duration_ms: float = 1.0, rows: int = 10) -> None:
        self.scheduler.published(self.groups[name].key, began_ms, Cost(rows, 0, 0.2, 0.4, 0.2, duration_ms))


def test_an_interval_counts_from_the_beginning_of_the_last_step(db: vt.Database) -> None:
    clock = Clock(db, v="100ms")
    assert clock.next(1_000) == ("v", 0.0)
    clock.published("v", 1_000, duration_ms=0.0)
    found, wait_ms = clock.next(1_020)
    assert found is None and wait_ms == pytest.approx(80)
    assert clock.next(1_100) == ("v", 0.0)


def test_a_step_begins_earlier_by_what_steps_take_but_not_more_than_half_an_interval(db: vt.Database) -> None:
    clock = Clock(db, v="100ms")
    for number in range(40):
        clock.published("v", 1_000 + 100 * number, duration_ms=10)
    began_ms = 1_000 + 100 * 39
    _, wait_ms = clock.next(began_ms)
    assert wait_ms is not None and 50 <= wait_ms < 100
    for number in range(40):
        clock.published("v", 9_000 + 100 * number, duration_ms=500)
    assert clock.next(9_000 + 100 * 39) == (None, pytest.approx(50))


def test_manual_views_wait_until_they_are_asked(db: vt.Database) -> None:
    clock = Clock(db, v="manual")
    assert clock.next(1_000, "v") == (None, None)
    clock.scheduler.request(clock.groups["v"].key, clock.groups["v"].watermark + 1)
    assert clock.next(1_000) == ("v", 0.0)
    # What it has is not asked for.
    other = Clock(db)
    other.scheduler.adopt(other.groups.values())


def test_what_is_reached_is_not_asked_for_again(db: vt.Database) -> None:
    clock = Clock(db, v="manual")
    clock.scheduler.request(clock.groups["v"].key, clock.groups["v"].watermark)
    assert clock.next(1_000, "v") == (None, None)


def test_continuous_views_go_whenever_something_changed(db: vt.Database) -> None:
    clock = Clock(db, v="0ms")
    clock.published("v", 1_000)
    assert clock.next(1_001, "v") == ("v", 0.0)
    found, wait_ms = clock.next(1_001)
    assert found is None and wait_ms == pytest.approx(scheduling.IDLE_MS - 1)


def test_a_group_that_is_always_due_does_not_keep_the_others_from_theirs(db: vt.Database) -> None:
    clock = Clock(db, busy="0ms", calm="100ms")
    made = []
    for now_ms in range(1_000, 2_000, 5):
        name, _ = clock.next(now_ms, "busy")
        assert name is not None
        clock.published(name, now_ms)
        made.append(name)
    assert 8 <= made.count("calm") <= 25
    assert made.count("busy") > 150


def test_held_groups_wait(db: vt.Database) -> None:
    clock = Clock(db, v="0ms", w="manual")
    clock.schedule("v").held += 1
    clock.scheduler.request(clock.groups["v"].key, clock.groups["v"].watermark + 1)
    assert clock.next(1_000, "v") == (None, None)
    clock.schedule("v").held -= 1
    assert clock.next(1_000, "v") == ("v", 0.0)


def test_failures_are_retried_later_and_later_and_a_request_at_once(db: vt.Database) -> None:
    clock = Clock(db, v="10ms", w="10ms")
    key = clock.groups["v"].key
    clock.published("w", 1_000)
    waits = []
    now_ms = 1_000.0
    for _ in range(12):
        clock.scheduler.failed(key, now_ms, "division by zero")
        waits.append(clock.schedule("v").retry_at_ms - now_ms)
        now_ms = clock.schedule("v").retry_at_ms
    assert waits[:3] == [100, 200, 400]
    assert max(waits) == waits[-1] == scheduling.RETRY_MS_MAX
    assert clock.schedule("v").failures_count == 12
    assert clock.schedule("v").failure == "division by zero"
    # It keeps nobody else from working.
    clock.scheduler.failed(key, now_ms, "division by zero")
    assert clock.next(now_ms + 50, "v", "w") == ("w", 0.0)
    clock.published("w", now_ms + 50)
    clock.scheduler.request(key, clock.groups["v"].watermark + 1)
    assert clock.next(now_ms + 50) == ("v", 0.0)
    clock.published("v", now_ms + 51)
    assert clock.schedule("v").failures_count == 0
    assert clock.schedule("v").failure == ""


def test_a_schedule_outlives_a_new_catalog_and_takes_the_new_mode(db: vt.Database) -> None:
    clock = Clock(db, v="10ms")
    clock.published("v", 1_000)
    known = clock.schedule("v")
    changed = [Group(group.views, Mode(interval_ms=500)) for group in clock.groups.values()]
    clock.scheduler.adopt(changed)
    assert clock.schedule("v") is known
    assert known.interval_ms == 500
    clock.scheduler.adopt([])
    clock.published("v", 2_000)  # a group that is gone meanwhile
    clock.scheduler.failed(clock.groups["v"].key, 2_000, "gone")
    assert clock.scheduler.schedules == {}


def steps(tuning: Tuning, target_ms: float, cost: Cost, since_last_ms: float, count: int = 60) -> None:
    for _ in range(count):
        tuning.measured(cost, since_last_ms, target_ms)


def test_a_target_lag_leads_to_an_interval_just_below_it() -> None:
    tuning = Tuning()
    steps(tuning, 1_000, Cost(100, 0, 0.2, 0.4, 0.2, 2.0), 500)
    assert 700 < tuning.interval_ms < 1_000
    assert tuning.backed_off_times == 1
    assert "backed off" not in tuning.text(1_000)


def test_the_dearer_the_rows_the_shorter_the_interval_that_keeps_the_lag() -> None:
    cheap, dear = Tuning(), Tuning()
    steps(cheap, 1_000, Cost(1_000, 0, 0.0, 2.0, 0.0, 5.0), 500)
    steps(dear, 1_000, Cost(1_000, 0, 0.0, 20.0, 0.0, 100.0), 500)
    assert dear.interval_ms < cheap.interval_ms


def test_it_backs_off_when_writers_suffer_says_so_and_comes_back() -> None:
    tuning = Tuning()
    steps(tuning, 100, Cost(1_000, 0, 10.0, 40.0, 10.0, 70.0), 100)
    assert tuning.backed_off_times > 1
    assert tuning.interval_ms > 100
    assert tuning.interval_ms <= scheduling.BACKED_OFF_TIMES_MAX * 100
    assert "backed off" in tuning.text(100) and "%" in tuning.text(100)
    steps(tuning, 100, Cost(10, 0, 0.0, 0.1, 0.0, 0.5), 100)
    assert tuning.backed_off_times == 1
    assert tuning.interval_ms <= 100


def test_the_interval_of_a_target_lag_is_never_too_short() -> None:
    tuning = Tuning()
    steps(tuning, 1, Cost(1_000, 0, 0.0, 1.0, 0.0, 50.0), 100)
    assert tuning.interval_ms >= scheduling.INTERVAL_MS_MIN


def test_steps_that_were_asked_for_teach_the_controller_nothing(db: vt.Database) -> None:
    clock = Clock(db, v="target_lag 1000ms")
    clock.published("v", 1_000)
    interval_ms = clock.schedule("v").interval_ms
    clock.scheduler.request(clock.groups["v"].key, clock.groups["v"].watermark + 1)
    assert clock.next(1_001) == ("v", 0.0)
    clock.published("v", 1_001, duration_ms=900)
    assert clock.schedule("v").interval_ms == interval_ms


# --- view managers ---


def test_the_pool_gives_a_slot_to_its_own_view_manager_or_to_another() -> None:
    pool = ViewManagers(3, "ltm-1")
    assert pool.ring() == (1, 2, 3)
    assert pool.worker(2).id == 2
    pool.kill(2)
    assert pool.ring() == (1, 3)
    assert pool.worker(2).id in (1, 3)
    pool.withdraw(1)
    assert pool.ring() == (3,)
    assert pool.worker(1).id == pool.worker(2).id == 3
    pool.assign(1)
    assert pool.ring() == (1, 3)
    assert pool.add() == 4
    assert [status.id for status in pool.status()] == [1, 3, 4]
    pool.remove(3)
    assert pool.ring() == (1, 4)


def test_reassign_is_another_name_of_assign() -> None:
    pool = ViewManagers(2, "ltm-1", "ltm-2")
    pool.reassign(1, "ltm-2")
    assert [status.ltm for status in pool.status()] == ["ltm-2", "ltm-1"]
    pool.withdraw(1)
    pool.reassign(1)
    assert [status.ltm for status in pool.status()] == ["ltm-1", "ltm-1"]
    with pytest.raises(vt.ProgrammingError, match="no LTM"):
        pool.reassign(2, "elsewhere")


def test_the_work_of_the_last_one_that_died_goes_to_a_new_one() -> None:
    pool = ViewManagers(1, "ltm-1")
    worker = pool.worker(1)
    pool.kill(1)
    assert not pool.alive(worker)
    assert pool.worker(1).id == 2
    pool.kill(2)
    assert pool.ring() == (3,)


def test_the_last_one_stays_and_unknown_ones_are_named() -> None:
    pool = ViewManagers(2, "ltm-1")
    pool.withdraw(1)
    for command in (pool.remove, pool.withdraw):
        with pytest.raises(vt.OperationalError, match="last one"):
            command(2)
    pool.remove(1)
    for command in (pool.remove, pool.withdraw, pool.assign, pool.kill):
        with pytest.raises(vt.ProgrammingError, match="no view manager 9"):
            command(9)
    with pytest.raises(vt.ProgrammingError, match="no LTM"):
        pool.assign(2, "elsewhere")


def test_a_second_command_during_one_is_refused() -> None:
    pool = ViewManagers(2, "ltm-1")
    refused: list[vt.OperationalError] = []

    def meanwhile() -> None:
        with pytest.raises(vt.OperationalError, match="another command") as caught:
            pool.add()
        refused.append(caught.value)

    pool.await_marker = meanwhile
    pool.remove(1)
    assert len(refused) == 1
    pool.await_marker = lambda: None
    assert pool.add() == 3


def test_there_is_a_limit_to_their_number() -> None:
    pool = ViewManagers(VIEW_MANAGERS_MAX, "ltm-1")
    with pytest.raises(vt.OperationalError, match="already"):
        pool.add()


def finished(working: Generator[list[LookUp], Answers, object]) -> tuple[object, int]:
    """What it gives if it needs no look-up, and how often it paused."""
    pauses = 0
    try:
        wanted = next(working)
        while True:
            assert wanted == []
            pauses += 1
            wanted = working.send([])
    except StopIteration as done:
        return done.value, pauses


@pytest.mark.parametrize("piece_rows", [1, 3, 7, 100])
def test_pieces_of_any_size_give_the_same_change_table(db: vt.Database, piece_rows: int) -> None:
    db.create_view("v", "SELECT g, SUM(v) AS s, COUNT(*) AS n FROM t GROUP BY g", refresh="manual")
    rows = db._engine.ltm.tables.views["v"]
    change = [((number, number % 3, number), 1) for number in range(20)]
    change += [((number, number % 3, number), -1) for number in range(0, 20, 3)]
    manager = ViewManager(1, "ltm-1", piece_rows)
    done, pauses = finished(manager.work([rows], {"t": change}, frozenset({"t"}), True, False))
    assert pauses == -(-len(change) // piece_rows)
    ((view_id, contributions),) = cast("list[tuple[int, list[Contribution]]]", done)
    assert view_id == rows.view.id
    # The rows of group 0 came and went: nothing is left of it.
    assert {item.key_values for item in contributions} == {(1,), (2,)}
    whole, _ = finished(ViewManager(2, "ltm-1", 1_000).work([rows], {"t": change}, frozenset({"t"}), True, False))
    assert sorted(contributions) == sorted(cast("list[tuple[int, list[Contribution]]]", whole)[0][1])
    assert manager.rows_count == len(change)
    assert manager.slots_count == 1


def test_shares_of_several_view_managers_add_up(db: vt.Database) -> None:
    db.create_view("v", "SELECT g, SUM(v) AS s, COUNT(*) AS n FROM t GROUP BY g", refresh="manual")
    rows = db._engine.ltm.tables.views["v"]
    changes: Net = {b"%d" % number: (None, (number, number % 4, number)) for number in range(100)}
    plan = rows.plan

    def contents(members: tuple[int, ...]) -> dict[bytes, object]:
        states: dict[bytes, object] = {}
        for member, share in divided(changes, HashRing(members)).items():
            manager = ViewManager(member, "ltm-1", 9)
            done, _ = finished(manager.work([rows], {"t": share}, frozenset({"t"}), True, False))
            for _, contributions in cast("list[tuple[int, list[Contribution]]]", done):
                for item in contributions:
                    states[item.key] = plan.refresh(states.get(item.key), item)  # type: ignore[arg-type]
        return states

    assert contents((1,)) == contents((1, 2, 5)) == contents((3, 4))
    assert len(contents((1,))) == 4


def test_the_size_of_pieces_follows_what_they_take() -> None:
    manager = ViewManager(1, "ltm-1", 500)
    for _ in range(20):
        manager.took(100.0, 1.0)
    low = manager.piece_rows
    for _ in range(20):
        manager.took(0.01, 1.0)
    assert 0 < low < 500 < manager.piece_rows < 100_000


def test_a_view_without_a_share_has_nothing_to_do(db: vt.Database) -> None:
    db.create_view("v", "SELECT g, COUNT(*) AS n FROM t GROUP BY g", refresh="manual")
    rows = db._engine.ltm.tables.views["v"]
    assert finished(ViewManager(1, "ltm-1", 5).work([rows], {}, frozenset({"t"}), True, False)) == ([], 0)


def test_a_status_line_is_a_copy() -> None:
    pool = ViewManagers(1, "ltm-1")
    (status,) = pool.status()
    assert replace(status, rows=5).rows == 5
    assert pool.status()[0].rows == 0


# --- what the log has of a step ---


def test_a_step_that_was_being_taken_back_is_not_resumed() -> None:
    progress = Progress(Opened((5, 6), 10, 20, (1, 2), 3))
    shown = Shown(progress.id, 0, ((5, [(b"k", None, (1,))]),))
    progress.note(Refreshed(progress.id, 0, 1, ((5, [Contribution(b"k", (1,), (1,))]),)))
    progress.note(shown)
    assert not progress.lost
    progress.note(shown._replace(rows=((5, [(b"k", (1,), None)]),)))
    assert progress.lost
    assert progress.shown == {0: shown}
    assert progress.touched() == {5: {b"k"}}
    assert progress.dropped({5: [(b"k", None)]}) == Dropped((5, 6), 10, 20, ((5, [(b"k", None)]),))
