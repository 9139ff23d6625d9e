"""The balancer in the leader (`coordinator/cluster/balancer.py`): which range goes where, and when nothing does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster_database import open_cluster
from viewtide.changetables.keys import table_range
from viewtide.coordinator.cluster import balancer as balancer_module
from viewtide.coordinator.cluster.balancer import Balancer, BalanceSettings
from viewtide.ltm.cluster.load import KEYS_MAX, Load
from viewtide.ltm.cluster.messages import MoveRange, Split
from viewtide.ltm.key_range import Hosting, RangeMap
from viewtide.ltm.two_phase.messages import Read

SETTINGS = BalanceSettings(measure_ms=1_000, rate_min=10, ratio_min=1.5, keys_min=4, ranges_max=10)
LIVES = ("a/1", "b/1", "c/1")


def key(number: int) -> bytes:
    return bytes([number])


def ranges(*owners: str, starts: Sequence[int] = ()) -> RangeMap:
    """The first range begins with nothing, the others where it is said."""
    hosts = {life: Hosting(1, (life,)) for life in LIVES}
    return RangeMap(1, (b"", *map(key, starts)), tuple(f"{owner}/1" for owner in owners), {}, 0, hosts)


def asked(balancer: Balancer, known: RangeMap, load: dict[int, int], now_ms: int) -> None:
    """So many requests for each of these keys, told by their owners."""
    for life in LIVES:
        mine = [number for number in load if known.owner(key(number)) == life]
        keys = [key(number) for number in mine for _ in range(load[number])]
        balancer.told(life, len(keys), keys)


def advice(
    known: RangeMap, load: dict[int, int], lives: Sequence[str] = LIVES, fixed: Sequence[int] = ()
) -> Split | MoveRange | None:
    balancer = Balancer(SETTINGS)
    assert balancer.advise(known, lives, 0) is None
    asked(balancer, known, load, 0)
    assert balancer.advise(known, lives, SETTINGS.measure_ms - 1) is None
    return balancer.advise(known, lives, SETTINGS.measure_ms, fixed)


def test_the_largest_range_that_does_not_have_to_come_back_goes_to_the_idlest() -> None:
    known = ranges("a", "a", "a", "b", starts=(10, 20, 30))
    assert advice(known, {5: 60, 15: 40, 25: 10, 35: 20}) == MoveRange(0, key(10), key(20), "c/1")
    assert advice(known, {5: 60, 15: 70, 35: 20}) == MoveRange(0, b"", key(10), "c/1")


def test_what_is_fixed_stays_and_is_not_cut() -> None:
    known = ranges("a", "a", "a", "b", starts=(10, 20, 30))
    load = {5: 90, 15: 40, 25: 30, 35: 20}
    assert advice(known, load) == MoveRange(0, key(10), key(20), "c/1")
    assert advice(known, load, fixed=(15,)) == MoveRange(0, key(20), key(30), "c/1")
    assert advice(ranges("a"), {1: 10, 2: 40, 3: 30, 4: 30}, fixed=(1, 2, 3, 4)) is None


def test_one_that_is_too_large_is_cut_where_half_of_its_requests_are_below() -> None:
    assert advice(ranges("a"), {1: 10, 2: 40, 3: 30, 4: 30}) == Split(0, key(3))
    assert advice(ranges("a"), {1: 100, 2: 20}) == Split(0, key(2))
    assert advice(ranges("a"), {1: 5, 2: 60, 3: 35}) == Split(0, key(3))


def test_a_single_key_cannot_be_cut() -> None:
    assert advice(ranges("a"), {7: 100}) is None
    assert advice(ranges("a"), {7: 100, 8: 5}) is None, "what could go is not worth it"


def test_where_rows_come_at_the_end_nothing_is_cut() -> None:
    """All that is asked for is above the cut by the time that the range is cut: it would be cut again and again."""
    balancer, known = Balancer(SETTINGS), ranges("a")
    for number in range(20):
        assert balancer.advise(known, LIVES, number * SETTINGS.measure_ms) is None, number
        for report in range(4):
            balancer.told("a/1", 10, [bytes([number, report, each]) for each in range(10)])
            balancer.told("b/1", 0, [])
            balancer.told("c/1", 0, [])


def test_what_is_told_while_nobody_acts_is_bounded() -> None:
    balancer, known = Balancer(SETTINGS), ranges("a").begin_move(b"", key(5), "c/1")
    for number in range(200):
        balancer.told("a/1", KEYS_MAX, [key(5)] * KEYS_MAX)
        assert balancer.advise(known, LIVES, number) is None
    assert len(balancer._told["a/1"].keys) <= balancer_module.KEYS_MAX


def test_nothing_is_moved_where_it_does_not_pay() -> None:
    known = ranges("a", "b", "c", starts=(10, 20))
    assert advice(known, {5: 14, 15: 10, 25: 10}) is None, "they differ by little"
    assert advice(ranges("a"), {5: 4, 6: 4}) is None, "there is little to do"
    assert advice(ranges("a"), {5: 50, 6: 50}, LIVES[:1]) is None, "there is nobody else"
    moving = known.begin_move(b"", key(5), "c/1")
    assert advice(moving, {5: 100, 15: 10}) is None, "one at a time"


def test_what_was_told_before_the_map_changed_does_not_count() -> None:
    balancer, known = Balancer(SETTINGS), ranges("a", "a", starts=(10,))
    balancer.advise(known, LIVES, 0)
    asked(balancer, known, {5: 50, 15: 50}, 0)
    assert balancer.advise(known.split(key(5)), LIVES, SETTINGS.measure_ms) is None
    assert balancer.advise(known.split(key(5)), LIVES, 2 * SETTINGS.measure_ms) is None


def test_who_has_told_nothing_gets_nothing() -> None:
    balancer, known = Balancer(SETTINGS), ranges("a", "a", starts=(10,))
    balancer.advise(known, LIVES, 0)
    balancer.told("a/1", 100, [key(5)] * 50 + [key(15)] * 50)
    assert balancer.advise(known, LIVES, SETTINGS.measure_ms) is None


@settings(max_examples=200)
@given(st.dictionaries(st.integers(1, 60), st.integers(1, 50), min_size=1, max_size=20))
def test_it_comes_to_rest_and_nobody_has_much_more_than_he_must(load: dict[int, int]) -> None:
    """With the same load again and again, no range goes back and forth."""
    balancer, known = Balancer(SETTINGS._replace(keys_min=2)), ranges("a")
    now_ms = moves = 0
    while True:
        balancer.advise(known, LIVES, now_ms)
        asked(balancer, known, load, now_ms)
        now_ms += SETTINGS.measure_ms
        found = balancer.advise(known, LIVES, now_ms)
        if found is None:
            break
        moves += 1
        assert moves < 60
        if isinstance(found, Split):
            known = known.split(found.at)
        else:
            known = known.begin_move(found.start, found.stop or None, found.target)
            known = known.end_move(known.moves[0].number)
    loads = [sum(load[number] for number in load if known.owner(key(number)) == life) for life in LIVES]
    total = sum(load.values())
    if total >= SETTINGS.rate_min and len(known.starts) < SETTINGS.ranges_max:
        assert max(loads) < SETTINGS.ratio_min * min(loads) or max(loads) - min(loads) <= 2 * max(load.values())


def test_keys_are_taken_from_all_requests() -> None:
    load = Load()
    for number in range(1_000):
        load.note(Read(number, 1, 1, (key(number // 4),)))
    requests, keys = load.take()
    assert requests == 1_000 and KEYS_MAX // 2 <= len(keys) <= KEYS_MAX
    assert abs(sum(each < key(125) for each in keys) - len(keys) / 2) <= 2
    assert load.take() == (0, ())


def test_ltms_that_come_get_their_share_while_others_write() -> None:
    """The first LTM has all keys; each of the others gets some of a table."""
    first = RangeMap(1, (b"",), ("ltm-1/1",), {}, 0, {"ltm-1/1": Hosting(1, ("ltm-1/1",))})
    quick = BalanceSettings(measure_ms=400, rate_min=20, ratio_min=1.5, keys_min=8)
    with open_cluster(ranges=first, balance=quick) as cluster:
        db = cluster.database()
        db.create_table("events", {"id": int, "kind": int, "cost": int}, key="id")
        view = db.create_view("costs", "SELECT kind, SUM(cost) AS cost, COUNT(*) AS n FROM events GROUP BY kind")
        start, stop = table_range(db._node.engine.ltm.tables.by_name["events"].table.id)
        numbers, deadline = Random(1), time.monotonic() + 60
        while {log for log, _, _ in cluster.map().owners(start, stop)} != {f"ltm-{each}/1" for each in (1, 2, 3)}:
            assert time.monotonic() < deadline, cluster.map()
            number = numbers.randrange(1_000)
            with db.transaction() as tx:
                tx.upsert("events", {"id": number, "kind": number % 7, "cost": number})
        assert view.verify().ok
        assert sum(row["n"] for row in view.rows()) == sum(1 for _ in db.sql("SELECT id FROM events"))
