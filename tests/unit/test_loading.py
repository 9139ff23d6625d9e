"""Requests that wait for rows from the store: what is asked for, in which order they go on, and what is not trusted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from viewtide.ltm.cluster import checkpoint, loading
from viewtide.ltm.cluster.loading import Load, Loader
from viewtide.ltm.cluster.saving import Saver
from viewtide.ltm.cluster.settings import StoreSettings
from viewtide.ltm.cluster.store_messages import NEWEST, LoadedCells, WriteCells
from viewtide.ltm.machine import PlainHost
from viewtide.ltm.two_phase.cells import ABSENT
from viewtide.ltm.two_phase.journal import Journal, Stored
from viewtide.ltm.two_phase.messages import Ask, Decide, NotServed, Prepare, Read, ReadRows, Timestamps
from viewtide.ltm.two_phase.participant import NOT_STORED, Participant
from viewtide.ltm.two_phase.stored_cells import StoredCells

KEY, OTHER = b"\0\0\0\x01a", b"\0\0\0\x01b"
WHOLE = (b"\0\0\0\x01", b"\0\0\0\x02")
ATTEMPT = ((1, 10), 10)


class Bench:
    """A loader, what it asked the store, and what went on."""

    def __init__(self) -> None:
        self.machine = Participant(PlainHost("ltm-1"), "ltm-1", "oracle", lambda refresh, row: row)
        self.cells = self.machine.cells = StoredCells()
        self.asked: list[tuple[Load, Callable[[LoadedCells], None]]] = []
        self.passed: list[object] = []
        self.loader = Loader(PlainHost("ltm-1"), self.machine, StoreSettings(keys_max=0), self._ask, self._again)

    def _ask(self, load: Load, then: Callable[[LoadedCells], None]) -> None:
        self.asked.append((load, then))

    def _again(self, sender: str, message: object) -> None:
        self.come(message)

    def come(self, message: object) -> None:
        if self.loader.may_pass("coordinator", message, 0):
            self.passed.append(message)

    def answer(self, *rows: tuple[int, tuple[object, ...] | None] | None, last: bytes | None = None) -> Load:
        load, then = self.asked.pop(0)
        then(LoadedCells(1, rows, (), (last,) * len(load.tables)))  # type: ignore[arg-type]
        return load


def ask(*keys: bytes) -> Ask:
    return Ask(ATTEMPT, 1, 10, 1, 0, keys)


def test_a_request_waits_for_its_keys_and_what_comes_later_for_the_attempt_waits_behind() -> None:
    bench = Bench()
    prepare = Prepare(ATTEMPT, 10, 1, 0, 1, ("ltm-1",), ((KEY, (1,)),), ())
    for message in (ask(KEY), prepare, Decide(ATTEMPT, 0)):
        bench.come(message)
    assert bench.passed == []
    load = bench.answer((5, (7,)), last=KEY)
    assert (load.keys, load.at, load.tables) == ((KEY,), NEWEST, (WHOLE,))
    assert bench.passed == [ask(KEY), prepare, Decide(ATTEMPT, 0)]
    assert bench.cells.newest(KEY) == (5, (7,), None)
    # Above the last key of the table in the store there is nothing: that needs no further question.
    bench.come(ask(OTHER))
    assert bench.passed[-1] == ask(OTHER) and not bench.asked


def test_absent_keys_are_known_to_be_absent() -> None:
    bench = Bench()
    bench.come(ask(KEY))
    bench.answer(None, last=OTHER)
    assert bench.cells.chains == {KEY: ABSENT}
    bench.come(ask(KEY))
    assert len(bench.passed) == 2 and not bench.asked


def test_a_reader_below_the_newest_version_asks_for_what_it_sees() -> None:
    bench = Bench()
    read = Read(1, 20, 1, (KEY,))
    bench.come(read)
    bench.answer((50, (2,)), last=OTHER)
    assert bench.passed == []
    load = bench.answer((15, (1,)))
    assert (load.at, load.keys) == (20, (KEY,))
    assert bench.passed == [read]
    assert bench.cells.at(KEY, 20) == (15, (1,), None)


def test_a_range_is_loaded_page_by_page() -> None:
    bench = Bench()
    read = Read(1, 20, 1, (), ((*WHOLE, 0, False),))
    bench.come(read)
    load = bench.answer(last=OTHER)
    assert (load.ranges, load.tables) == ((), (WHOLE,))
    load, then = bench.asked.pop()
    assert load.ranges == ((WHOLE[0], OTHER + b"\0"),)
    then(LoadedCells(1, (), ((((KEY, 5, (1,)),), KEY + b"\0"),)))
    load, then = bench.asked.pop()
    assert load.ranges == ((KEY + b"\0", OTHER + b"\0"),) and bench.passed == []
    then(LoadedCells(2, (), ((((OTHER, 5, (2,)),), OTHER + b"\0"),)))
    assert bench.passed == [read]


def test_of_an_empty_table_no_range_is_loaded() -> None:
    bench = Bench()
    reads = [Read(number, 20, 1, (), ((KEY + bytes((number,)), OTHER, 0, False),)) for number in range(3)]
    bench.come(reads[0])
    assert bench.answer(last=None).tables == (WHOLE,)
    for read in reads[1:]:
        bench.come(read)
    assert bench.passed == reads and not bench.asked


def test_what_was_asked_before_keys_were_forgotten_is_not_believed() -> None:
    """Meanwhile the key was loaded, changed, saved and forgotten: what comes now is from before."""
    bench = Bench()
    bench.come(ask(KEY))
    bench.cells.learn(KEY, (5, (1,), None))
    bench.cells.put(KEY, 9, (2,))
    bench.cells.touched.clear()
    assert bench.cells.evict(0, lambda key: False) == 1
    bench.answer((5, (1,)))
    assert bench.passed == [] and KEY not in bench.cells.chains
    bench.answer((9, (2,)), last=KEY)
    assert bench.cells.newest(KEY) == (9, (2,), None) and len(bench.passed) == 1


def test_keys_that_somebody_waits_for_are_not_forgotten() -> None:
    bench = Bench()
    bench.cells.learn(KEY, (5, (1,), None))
    bench.cells.learn(OTHER, (5, (1,), None))
    bench.come(Ask(ATTEMPT, 1, 10, 1, 0, (KEY, b"\0\0\0\x01c")))
    bench.loader.evict()
    assert list(bench.cells.chains) == [KEY]


def test_who_waits_too_long_is_forgotten_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(loading, "WAITING_MAX", 1)
    bench.come(ask(KEY))
    assert bench.loader.is_full
    bench.loader.forget_old(loading.WAITING_MS_MAX + 1)
    assert not bench.loader.is_full
    bench.answer((5, (1,)), last=KEY)
    assert bench.passed == []
    bench.come(ask(KEY))
    assert bench.passed == [ask(KEY)]


def test_the_first_row_that_was_deleted_while_a_reader_waited_lets_the_next_one_be_loaded() -> None:
    bench = Bench()
    machine = bench.machine
    machine.must_load = lambda sender, message: not bench.loader.may_pass(sender, message, 0)
    machine.start(0, (), 1)
    machine.receive("oracle", Timestamps(1, 1, 1, 1), 0)
    bench.cells.learn_range(OTHER, WHOLE[1], [(OTHER, 5, (2,))])
    machine.receive("coordinator", Prepare(ATTEMPT, 10, 0, 0, 0, ("ltm-1", "ltm-2"), ((OTHER, None),), ()), 0)
    read = Read(1, 100, 0, (), ((*WHOLE, 1, True),))
    assert bench.loader.may_pass("reader", read, 0)
    machine.receive("reader", read, 0)
    told = machine.receive("coordinator", Decide(ATTEMPT, 50), 0)
    assert not [each for each in told.send if isinstance(each[-1], ReadRows)]
    bench.answer(last=OTHER)
    load, then = bench.asked.pop()
    assert load.ranges == ((WHOLE[0], OTHER),)
    then(LoadedCells(1, (), ((((KEY, 5, (1,)),), OTHER),)))
    assert bench.passed == [read]
    told = machine.receive("reader", read, 0)
    assert [each[-1].ranges for each in told.send] == [(((KEY, 5, (1,)),),)]


def test_who_wants_it_in_the_store_waits_for_votes_and_then_for_a_checkpoint_and_loads_nothing() -> None:
    bench = Bench()
    machine, cells = bench.machine, bench.cells
    machine.journal = Journal()
    machine.start(0, (), 1)
    machine.receive("oracle", Timestamps(1, 1, 1, 1), 0)
    cells.learn(OTHER, ABSENT)
    machine.receive("coordinator", Prepare(ATTEMPT, 10, 0, 0, 0, ("ltm-1", "ltm-2"), ((OTHER, (2,)),), ()), 0)
    read = Read(1, 1_024, 0, (), ((*WHOLE, 0, False),), True)
    assert bench.loader.may_pass("reader", read, 0)
    assert machine.receive("reader", read, 0).send == (), "a vote may be decided below the timestamp"
    told = machine.receive("coordinator", Decide(ATTEMPT, 50), 0)
    assert ("reader", NotServed(1, 1, NOT_STORED)) in told.send
    settings = StoreSettings()
    saver = Saver(PlainHost("ltm-1"), machine, "ltm-1", 1, settings, checkpoint.NONE)
    assert saver.begin(lambda own: ("ltm-1/1", own), ("", 0)) and machine.wanted_ts == 0
    assert saver.target == Stored(1_024, {}), "nobody waits for the usual lag"
    while (write := saver.next_write()) is not None:
        assert isinstance(write(1), WriteCells)
        assert machine.receive("reader", read, 0).send == (("reader", NotServed(1, 1, NOT_STORED)),)
    saver.saved()
    assert machine.receive("reader", read, 0).send == (("reader", ReadRows(1, 1, (), ((),))),)
    # Versions that came with their keys are not in the store yet, whatever the time says.
    cells.place(KEY, (40, (1,), None))
    cells.touched[KEY] = 0
    assert cells.misses(*WHOLE, 40) and not cells.misses(*WHOLE, 39)
    assert machine.receive("reader", read, 0).send == (("reader", NotServed(1, 1, NOT_STORED)),)
