"""Changes of the catalog in a cluster: pending, then open at S; votes of earlier versions end with it (rule C1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.sim import cluster
from tests.sim.process import Host, Outputs
from tests.sim.workload import COORDINATORS, key, tables
from tests.sim.world import World
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.types import INT
from viewtide.coordinator.cluster.catalog_builder import CatalogBuilder, is_uncertain
from viewtide.coordinator.cluster.coordinator import ClusterCoordinator
from viewtide.coordinator.local_layout import LOCAL
from viewtide.coordinator.transaction import ANY
from viewtide.coordinator.two_phase import coordinator as coordinator_module
from viewtide.coordinator.two_phase.messages import CONFLICT, Outcome, ReadAt, RowsAt, Submit
from viewtide.coordinator.vms.groups import Group, changed_groups, groups_in_force, groups_of
from viewtide.coordinator.vms.step_rows import Step, opened, published, step_key, watermark_key, watermark_of
from viewtide.ltm.catalog import Catalog, without_views
from viewtide.ltm.cluster.catalogs import Catalogs, Stored, pack_catalog, tables_of, unpack_catalog
from viewtide.ltm.cluster.messages import (
    CATALOG,
    MAP,
    OTHER_BASE,
    CatalogChanged,
    CatalogIs,
    ChangeCatalog,
    FetchCatalog,
)
from viewtide.ltm.key_range import RangeMap
from viewtide.ltm.machine import PlainHost
from viewtide.ltm.tables import Tables
from viewtide.ltm.two_phase.messages import COMMITTED, Decide, Prepare, Timestamps
from viewtide.ltm.two_phase.participant import Participant
from viewtide.ltm.versions import Horizon

MS = 1_000
FIRST = tables().catalog
GONE = "late_by_branch"


def with_notes(catalog: Catalog) -> Catalog:
    return catalog.with_table(Table(catalog.next_id, "notes", (Column("id", INT, False), Column("n", INT)), (0,)))


class Designer:
    """Sends what a test wants, and keeps what comes back."""

    def __init__(self, host: Host) -> None:
        self.received: list[object] = []
        self.waiting: list[tuple[str, object]] = []

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        return self.timer("send", now_ms)

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        self.received.append(message)
        return Outputs()

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("a designer writes nothing")

    def timer(self, token: object, now_ms: int) -> Outputs:
        send, self.waiting = tuple(self.waiting), []
        return Outputs(send=send, timers=((now_ms + 10, "send"),))


class Bench:
    """A cluster without clients and faults."""

    def __init__(self) -> None:
        self.world = World(3, stops=(cluster.LifeOver,))
        built = cluster.build(self.world)
        assert built.around.zookeeper is not None
        self.zookeeper = built.around.zookeeper
        for name in (*cluster.CLIENTS, cluster.OPERATOR):
            del self.world.nodes[name]
        self.world.add("designer", Designer, disk=False)
        self.world.boot()
        self.world.run_until(2_000 * MS)

    def ask(self, *messages: object, coordinator: str = COORDINATORS[0], ms: int = 1_500) -> list[object]:
        """What is answered to these, sent in a moment."""
        designer = self.world.nodes["designer"].process
        assert isinstance(designer, Designer)
        designer.received.clear()
        designer.waiting += [(coordinator, message) for message in messages]
        self.world.run_until(self.world.now_us + ms * MS)
        return list(designer.received)

    @property
    def stored(self) -> Stored:
        data = self.zookeeper.peek(CATALOG)
        return Stored() if data is None else Stored.unpack(data)

    @property
    def map(self) -> RangeMap:
        data = self.zookeeper.peek(MAP)
        assert data is not None
        return RangeMap.unpack(data)

    def coordinator(self, name: str) -> ClusterCoordinator:
        process = self.world.nodes[name].process
        assert isinstance(process, ClusterCoordinator)
        return process


def test_a_change_is_open_at_a_timestamp_that_the_map_names() -> None:
    bench = Bench()
    assert bench.ask(FetchCatalog(1)) == [CatalogIs(1, 0, 0, pack_catalog(FIRST))]
    after = with_notes(FIRST)
    (answer,) = bench.ask(ChangeCatalog(7, 0, pack_catalog(after)))
    assert isinstance(answer, CatalogChanged)
    assert (answer.number, answer.version, answer.error) == (7, after.version, "")
    assert (bench.map.catalog, bench.map.catalog_ts) == (after.version, answer.ts)
    assert not bench.stored.pending
    assert "notes" in bench.coordinator(COORDINATORS[0]).inner.tables.by_name


def test_a_change_that_is_asked_for_again_is_not_made_again() -> None:
    bench = Bench()
    change = ChangeCatalog(7, 0, pack_catalog(with_notes(FIRST)))
    first = bench.ask(change)
    assert bench.ask(change, coordinator=COORDINATORS[1]) == first
    assert len(bench.stored.entries) == 1


def test_of_two_changes_of_one_version_the_second_is_refused() -> None:
    bench = Bench()
    changes = [ChangeCatalog(number, 0, pack_catalog(with_notes(FIRST))) for number in (7, 8)]
    answers = bench.ask(*changes)
    assert sorted(getattr(answer, "error", None) for answer in answers) == ["", OTHER_BASE]


def test_what_is_no_catalog_is_refused() -> None:
    bench = Bench()
    (answer,) = bench.ask(ChangeCatalog(7, 0, b"\x01"))
    assert isinstance(answer, CatalogChanged) and "cannot be used" in answer.error
    assert bench.stored.entries == ()


def test_who_waits_for_a_newer_catalog_is_told_when_it_is_open() -> None:
    bench = Bench()
    first = with_notes(FIRST)
    bench.ask(ChangeCatalog(7, 0, pack_catalog(first)))
    second = first.without_table("notes")
    answers = bench.ask(FetchCatalog(1, first.version), ChangeCatalog(8, first.version, pack_catalog(second)))
    (told,) = [answer for answer in answers if isinstance(answer, CatalogIs)]
    assert (told.version, unpack_catalog(told.data).tables.keys()) == (second.version, second.tables.keys())


def _submit(number: int, ts: int, catalog: Catalog) -> Submit:
    write = (key("counters", 0), (ANY, (0, number), None, True))
    return Submit((number, ts), False, (("counters", (write,)),), catalog_version=catalog.version)


def test_a_transaction_is_committed_by_the_catalog_that_there_is_and_above_its_timestamp() -> None:
    bench = Bench()
    (read,) = bench.ask(ReadAt(1, 0, (key("counters", 0),)))
    assert isinstance(read, RowsAt)
    after = with_notes(FIRST)
    # The second coordinator does not know: its vote is refused, it finds out, and tries again.
    answers = bench.ask(ChangeCatalog(7, 0, pack_catalog(after)))
    assert isinstance(answers[0], CatalogChanged)
    (outcome,) = bench.ask(_submit(5, read.at, after), coordinator=COORDINATORS[1])
    assert isinstance(outcome, Outcome)
    assert outcome.state == COMMITTED and outcome.commit_ts > answers[0].ts


def _note(bench: Bench, ts: int, catalog: Catalog) -> Submit:
    rows = bench.coordinator(COORDINATORS[0]).catalogs.tables_by_version(catalog.version)
    assert rows is not None
    write = (rows.by_name["notes"].codec.keys.encode((1,)), (ANY, (1, 2), None, True))
    return Submit((5, ts), False, (("notes", (write,)),), catalog_version=catalog.version)


def test_a_transaction_by_a_catalog_that_its_coordinator_does_not_know_yet_waits_for_it() -> None:
    """Another process knew it, and passed the transaction on."""
    bench = Bench()
    (read,) = bench.ask(ReadAt(1, 0, (key("counters", 0),)))
    assert isinstance(read, RowsAt)
    after = with_notes(FIRST)
    (changed,) = bench.ask(ChangeCatalog(7, 0, pack_catalog(after)))
    there = bench.coordinator(COORDINATORS[1])
    there.catalogs, there.inner.tables = Catalogs(), Tables(FIRST, Horizon())
    there.inner.tables_by_version = there.catalogs.tables_by_version
    (outcome,) = bench.ask(_note(bench, read.at, after), coordinator=COORDINATORS[1])
    assert isinstance(outcome, Outcome) and isinstance(changed, CatalogChanged)
    assert outcome.state == COMMITTED and outcome.commit_ts > changed.ts


def test_one_by_a_catalog_that_never_comes_is_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "AHEAD_MS_MAX", 100)
    bench = Bench()
    (read,) = bench.ask(ReadAt(1, 0, (key("counters", 0),)))
    assert isinstance(read, RowsAt)
    (outcome,) = bench.ask(_submit(5, read.at, replace(FIRST, version=99)))
    assert isinstance(outcome, Outcome)
    assert outcome.state == CONFLICT and "has not come here" in outcome.error[1]


def test_a_transaction_of_a_table_that_was_dropped_is_a_conflict() -> None:
    bench = Bench()
    (read,) = bench.ask(ReadAt(1, 0, (key("counters", 0),)))
    assert isinstance(read, RowsAt)
    first = with_notes(FIRST)
    bench.ask(ChangeCatalog(7, 0, pack_catalog(first)))
    second = first.without_table("notes")
    bench.ask(ChangeCatalog(8, first.version, pack_catalog(second)))
    third = with_notes(second)
    bench.ask(ChangeCatalog(9, second.version, pack_catalog(third)))
    (outcome,) = bench.ask(_note(bench, read.at, first))
    assert isinstance(outcome, Outcome)
    assert outcome.state == CONFLICT and "'notes' was dropped meanwhile" in outcome.error[1]


def test_the_catalog_of_a_timestamp_is_known_for_a_while() -> None:
    catalogs = Catalogs()
    first, second = with_notes(FIRST), with_notes(FIRST).without_table("notes")
    stored = Stored().begin(first.version, 1, pack_catalog(first))
    assert catalogs.adopt(stored) and catalogs.tables() is None
    stored = stored.open(100).begin(second.version, 2, pack_catalog(second))
    assert catalogs.adopt(stored)
    newest = catalogs.tables()
    assert newest is not None and "notes" in newest.by_name
    assert catalogs.adopt(stored.open(200))
    assert not catalogs.adopt(stored)
    at = {ts: catalogs.tables_at(ts) for ts in (99, 100, 199, 200)}
    assert at[99] is None
    assert {ts: "notes" in found.by_name for ts, found in at.items() if found} == {100: True, 199: True, 200: False}


def test_a_stored_catalog_is_read_as_it_was_written() -> None:
    stored = Stored().begin(3, 1, b"a").open(10).begin(4, 2, b"b")
    assert Stored.unpack(stored.pack()) == stored


def test_versions_are_kept_for_a_minute_and_three_of_them_for_ever() -> None:
    stored = Stored()
    for number in range(1, 9):
        stored = stored.begin(number, number, b"x").open(number * 25_000 << 20)
    assert [entry.version for entry in stored.entries] == [4, 5, 6, 7, 8]
    stored = stored.begin(9, 9, b"x").open(1_000_000 << 20).begin(10, 10, b"x")
    assert [entry.version for entry in stored.entries] == [8, 9, 10]


def test_a_request_to_vote_that_waits_is_refused_when_the_catalog_changes() -> None:
    """It would be granted by an earlier catalog, above S (rule C1)."""
    participant = Participant(PlainHost("a"), "a", "oracle", lambda refresh, row: row)
    participant.start(0, (), 1)
    participant.receive("oracle", Timestamps(1, 1_000 << 20, 1, 0), 0)
    first, second = (((number, 1), (1_000 + number) << 20) for number in (1, 2))
    writes = ((b"\0\0\0\1k", (1,)),)
    participant.receive("c", Prepare(first, first[1], 0, 0, 5, ("a", "b"), writes, ()), 0)
    waiting = participant.receive("c", Prepare(second, second[1], 0, 0, 5, ("a",), writes, ()), 0)
    assert waiting.persist == ()
    assert participant.has_older_votes(6) and not participant.has_older_votes(5)
    refused = participant.refuse_older(6, "another catalog", 0)
    assert [type(record).__name__ for record in refused.persist] == ["Refusal"]
    decided = participant.receive("c", Decide(first, 0), 0)
    assert [type(record).__name__ for record in decided.persist] == ["Decided"]
    assert not participant.has_older_votes(6)


def test_a_catalog_is_pending_until_every_ltm_has_said_that_nothing_of_earlier_ones_is_undecided() -> None:
    bench = Bench()
    bench.world.pause("ltm-2")
    after = with_notes(FIRST)
    assert bench.ask(ChangeCatalog(7, 0, pack_catalog(after)), ms=600) == []
    assert bench.stored.pending and bench.map.catalog_pending
    # Nobody commits meanwhile, by whichever catalog.
    bench.world.resume("ltm-2")
    (answer,) = bench.ask(ms=1_500)
    assert isinstance(answer, CatalogChanged)
    assert not answer.error and not bench.stored.pending


def test_rows_of_views_that_are_made_or_deferred_are_not_final() -> None:
    """What goes to the store is never changed again: rows of a view whose contents come at S wait until it is ready."""
    catalog = tables().catalog
    made = replace(catalog.views["bank"], ready_ts=0)
    deferred = {view.id for view in catalog.views.values() if view.deferred}
    known = Catalogs()
    assert known.unfinished() == frozenset()
    known.adopt(Stored().begin(1, 1, pack_catalog(catalog.with_view(made))))
    found = {int.from_bytes(prefix, "big") for prefix in known.unfinished()}
    assert found == {made.id, *deferred}


def test_a_view_keeps_its_own_plan_where_another_database_has_its_partial_rows_under_its_id() -> None:
    """(The 35th seed of catalog-crashes after 34 others in one process: a view was kept under the id of an index.)"""
    free = FIRST.next_id
    near = replace(FIRST.views["bank"], name="near")
    one = FIRST.with_view(replace(near, id=free, layout=LOCAL, partials=(free + 1, free + 2)))
    other = FIRST.with_view(replace(near, id=free + 1, layout=LOCAL, partials=(free + 2, free + 3)))
    for catalog in (one, other, replace(one, version=one.version + 1)):
        assert tables_of(pack_catalog(catalog)).views["near"].plan.view_id == catalog.views["near"].id


# --- groups that lose a view ---


def _divided() -> tuple[Stored, Group, Group]:
    """A group before and after its first view is dropped, which is being done."""
    group = next(each for each in groups_of(tables()) if GONE in each.names)
    after = without_views(FIRST, GONE)
    stored = Stored().begin(FIRST.version, 1, pack_catalog(FIRST)).open(100)
    stored = stored.begin(after.version, 2, pack_catalog(after)).open(200, True)
    left = next(each for each in changed_groups(tables(), tables_of(pack_catalog(after))) if each.key != group.key)
    return stored, group, left


def test_what_is_left_of_a_group_stays_where_it_is() -> None:
    stored, group, left = _divided()
    assert set(left.ids) < set(group.ids)
    in_force = groups_in_force(stored)[group.key]
    assert in_force.stays and not in_force.final_ts
    assert not is_uncertain(stored)


def test_a_group_is_not_divided_before_its_step_has_ended() -> None:
    stored, group, left = _divided()
    builder = CatalogBuilder(PlainHost("leader"), ("coordinator",))
    builder.begin(1)
    rows = {
        step_key(group.key): opened(Step(group.key, 50, 90, 2, FIRST.version))[1],
        watermark_key(group.key): published(Step(group.key, 20, 50))[1],
    }

    def answer(out: Outputs) -> Outputs:
        ((_, question),) = out.send  # type: ignore[misc]
        assert isinstance(question, ReadAt)
        found = tuple((9, rows.get(key)) for key in question.keys)
        return builder.receive(RowsAt(question.number, 300, found, ()), 1_000)

    waiting = answer(builder.follow(stored, 1_000))
    assert waiting.send == ()
    del rows[step_key(group.key)]
    ((_, (_, token)),) = waiting.timers[-1:]  # type: ignore[misc]
    ((_, submit),) = answer(builder.timer(token, 1_020)).send  # type: ignore[misc]
    assert isinstance(submit, Submit) and step_key(group.key) in submit.seen
    written = {key: watermark_of(intent[1]) for _, intents in submit.writes for key, intent in intents}
    assert written[watermark_key(left.key)] == 50
