"""What is replayed and loaded when another life answers for a log, and what outlives the log beside a checkpoint."""

from __future__ import annotations

import pytest

from viewtide.ltm.cluster import checkpoint
from viewtide.ltm.cluster.checkpoint import Checkpoint
from viewtide.ltm.cluster.saving import Memory
from viewtide.ltm.cluster.settings import StoreSettings
from viewtide.ltm.cluster.taking_over import Found, LogIncomplete, plan
from viewtide.ltm.machine import PlainHost
from viewtide.ltm.two_phase import hand_over
from viewtide.ltm.two_phase.journal import Journal, Stored
from viewtide.ltm.two_phase.messages import Decide, Prepare, Timestamps
from viewtide.ltm.two_phase.participant import Participant
from viewtide.ltm.two_phase.records import Adopted, Committed, Decided, Forgotten, Voted

KEY, OTHER, VIEW_ROW = b"\0\0\0\x01a", b"\0\0\0\x01b", b"\0\0\0\x02a"


def committed(number: int, commit_ts: int, key: bytes = KEY) -> Committed:
    return Committed(((number, 1), 1), commit_ts, 1, ((key, None, (number,)),), ())


def test_replay_begins_after_the_checkpoint_with_what_is_kept_beside_it() -> None:
    kept = (committed(1, 10), committed(2, 20))
    last = checkpoint.NONE._replace(stored=Stored(5, {}), segment="ltm-2/1", lsn=7, kept=kept)
    found = {
        "ltm-1/1": Found(1, ((1, committed(3, 1)),)),
        "ltm-2/1": Found(5, ((6, committed(4, 2)), (9, committed(5, 30, OTHER)))),
        "ltm-3/1": Found(100, ((101, committed(6, 40)),)),
    }
    made = plan(last, ("ltm-1/1", "ltm-2/1", "ltm-3/1"), found)
    assert made.kept == 2
    assert made.records == (*kept, committed(5, 30, OTHER), committed(6, 40))
    assert made.origins == (("ltm-2/1", 9), ("ltm-3/1", 101))
    assert made.bases == {5: [KEY, OTHER]}


def test_records_that_nothing_makes_superfluous_must_be_there() -> None:
    last = checkpoint.NONE._replace(segment="ltm-2/1", lsn=7)
    with pytest.raises(LogIncomplete, match="begins with 9, not with 8"):
        plan(last, ("ltm-2/1",), {"ltm-2/1": Found(9, ())})


def test_adopted_keys_begin_with_what_came_or_with_what_the_store_had_then() -> None:
    rows = ((VIEW_ROW, ((50, (1,)),)),)
    adopted = Adopted(b"", None, rows, (), (), 0, 0, (60, ((b"\0\0\0\x02", 40),)), (20, ((b"\0\0\0\x02", 15),)))
    found = {"ltm-1/1": Found(1, ((1, adopted), (2, committed(1, 70)), (3, committed(2, 71, OTHER))))}
    before = checkpoint.NONE._replace(stored=Stored(20, {b"\0\0\0\x02": 15}))
    assert plan(before, ("ltm-1/1",), found).bases == {60: [KEY, OTHER]}
    # A later checkpoint of this log has the rows that came.
    after = checkpoint.NONE._replace(stored=Stored(65, {b"\0\0\0\x02": 55}))
    assert plan(after, ("ltm-1/1",), found).bases == {55: [VIEW_ROW], 65: [KEY, OTHER]}


class CountedKey(bytes):
    """Counts how often one of them is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedKey.compared += 1
        return bytes.__eq__(self, other)  # type: ignore[arg-type]

    __hash__ = bytes.__hash__


def test_a_large_range_that_came_is_not_searched_for_each_of_its_keys() -> None:
    """The thread that answers for everything else does this: with 5,000 rows it once stood still for seconds."""
    keys = [CountedKey(b"\0\0\0\x01%05d" % number) for number in range(1_000)]
    adopted = Adopted(b"", None, tuple((key, ((5, (1,)),)) for key in keys), (), (), 0, 0)
    CountedKey.compared = 0
    assert plan(checkpoint.NONE, ("ltm-1/1",), {"ltm-1/1": Found(1, ((1, adopted),))}).bases == {}
    assert CountedKey.compared < 10 * len(keys)


def test_a_checkpoint_is_packed_and_unpacked() -> None:
    vote = Voted(((1, 1), 2), 2, 3, 1, ("a", "b"), ((KEY, None, (1, "x")),), (), (OTHER,), ((KEY, OTHER),))
    made = Checkpoint(
        Stored(7, {b"\0\0\0\x02": 5}), "ltm-1/1", 9, (vote, Decided(vote.attempt, 0)), (("m", 4),), 1, 2, None
    )
    assert Checkpoint.unpack(made.pack()) == made


def test_memory_is_written_in_chunks_and_goes_when_it_is_forgotten() -> None:
    memory = Memory("log", 2, StoreSettings(page_cells=2))
    entries = [((number, number * 10), 1, number) for number in range(1, 6)]
    writes = memory.add(entries)
    assert [name for name, _ in writes] == [f"memory/log/2/{number}" for number in range(3)]
    found = [each for name in memory.chunks for each in checkpoint.unpack_memory(dict(writes)[name])]
    assert found == entries
    assert memory.expire(20) == [(next(iter(dict(writes))), b"")]


def test_votes_and_late_decisions_outlive_the_log() -> None:
    """Rule V6: whatever is decided above the checkpoint, and votes that are not decided, whenever they were given."""
    machine = Participant(PlainHost("ltm-1"), "ltm-1", "oracle", lambda refresh, row: row)
    journal = machine.journal = Journal()
    machine.start(0, (), 1)
    machine.receive("oracle", Timestamps(1, 10 << 8, 1, 0), 0)
    first, second = ((1, 11 << 8), 11 << 8), ((2, 12 << 8), 12 << 8)
    for attempt, key in ((first, KEY), (second, OTHER)):
        machine.receive("coordinator", Prepare(attempt, attempt[1], 1, 0, 1, ("ltm-1", "ltm-2"), ((key, (1,)),), ()), 0)
    machine.persisted(2, 0)
    assert machine.lowest_undecided() == 11 << 8
    covered = (11 << 8) - 1
    position = journal.needed_from(covered, machine.last_lsn)
    assert position == 2
    votes = journal.kept(machine, position, covered)
    assert [record.attempt for record in votes if isinstance(record, Voted)] == [first, second]
    # Decided while the checkpoint is written: the vote is in no log that is replayed, so the next one has it, too.
    machine.receive("coordinator", Decide(first, 13 << 8), 0)
    journal.saved(Stored(covered, {}), position, covered)
    machine._drop(first)
    position = journal.needed_from(covered, machine.last_lsn)
    kept = journal.kept(machine, position, covered)
    assert [type(record) for record in kept] == [Voted, Decided, Forgotten, Voted]
    assert journal.needed_from(14 << 8, machine.last_lsn) == 3
    journal.saved(Stored(14 << 8, {}), 3, 14 << 8)
    assert [type(record) for record in journal.kept(machine, 3, 14 << 8)] == [Voted]


def test_a_move_goes_in_pages() -> None:
    rows = tuple((bytes([number]), ((1, (number,)),)) for number in range(5))
    memory = tuple(((number, 8), 8, 9) for number in range(3))
    whole = Adopted(b"", None, rows, memory, (((9, 1), 4),), 7, 8)
    pages = hand_over.in_pages(whole, 2)
    assert [(page.start, page.stop) for page in pages[:3]] == [(b"", b"\x02"), (b"\x02", b"\x04"), (b"\x04", None)]
    assert [len(page.rows) for page in pages] == [2, 2, 1, 0, 0, 0]
    assert sum((page.committed for page in pages), ()) == memory
    assert pages[-1].refused == whole.refused
    machine = Participant(PlainHost("ltm-1"), "ltm-1", "oracle", lambda refresh, row: row)
    machine.start(0, (), 1)
    for page in pages:
        machine.adopt(page, 0)
    assert hand_over.give_away(machine, b"", None)[:7] == whole[:7]


def test_transactions_that_are_too_old_do_not_move_on() -> None:
    """Keys that went to and fro took them along, each time behind younger ones: nobody ever forgot them."""
    one, other = (Participant(PlainHost(name), name, "oracle", lambda refresh, row: row) for name in ("a", "b"))
    old, young = ((1, 5), 5, 6), ((2, 8), 8, 9)
    for machine in (one, other):
        machine.start(0, (), 1)
    one.adopt(Adopted(b"", b"", (), (young, old), (), 4, 0), 0)
    assert hand_over.give_away(one, b"a", None).committed == (young, old)
    one.forgotten_ts = 7
    other.adopt(hand_over.give_away(one, b"a", None), 0)
    assert list(other.committed) == [young[0]] and other.forgotten_ts == 7
