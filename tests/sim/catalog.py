"""Catalogs that change: a designer creates, drops and switches tables, indexes and views all the time, while clients
write, coordinators lag behind, ranges move, leaders change and LTMs come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import cast

import viewtide
from viewtide.changetables.errors import Error
from viewtide.changetables.keys import table_range
from viewtide.changetables.schema import Column, Table
from viewtide.changetables.types import INT
from viewtide.coordinator.cluster import catalog_builder as builders
from viewtide.coordinator.cluster import leader as leaders
from viewtide.coordinator.cluster.catalog_changes import (
    Changing,
    Next,
    changing,
    creating,
    indexing,
    once,
    switching,
)
from viewtide.coordinator.cluster.coordinator import ClusterCoordinator
from viewtide.coordinator.local_layout import LOCAL
from viewtide.coordinator.transaction import ANY
from viewtide.coordinator.two_phase.messages import ReadAt, RowsAt
from viewtide.coordinator.vms.cluster_leader import SchedulingLeader
from viewtide.coordinator.vms.cluster_subsystem import FeedingParticipant
from viewtide.coordinator.vms.groups import group_keys
from viewtide.coordinator.vms.step_rows import watermark_key, watermark_of
from viewtide.ltm.catalog import SYNC, Catalog, View
from viewtide.ltm.cluster import member as members
from viewtide.ltm.cluster.catalogs import BEGINNING, Entry, Stored, pack_catalog, tables_of
from viewtide.ltm.cluster.member import Member
from viewtide.ltm.cluster.messages import (
    CATALOG,
    CatalogChanged,
    CatalogIs,
    ChangeCatalog,
    FetchCatalog,
)
from viewtide.ltm.key_range import RangeMap
from viewtide.ltm.machine import Host as MachineHost
from viewtide.ltm.tables import Tables
from viewtide.ltm.two_phase.messages import KeyRange
from viewtide.ltm.two_phase.participant import RefreshRow
from viewtide.ltm.two_phase.views import refresh_with

from . import cluster, views_cluster
from .catalog_checkers import CatalogReplay, Finished, NewestLag
from .catalog_mutants import CALM, FAILING, HASTY, LAGGING, LOCAL_LAYOUT, MUTANTS, RESTARTS, SWITCHING
from .cluster import CANDIDATES, LTMS
from .faults import Planned, Surroundings
from .process import NOTHING, Host, Outputs
from .scenario import Built, Scenario
from .views import ITEMS_MAX, MANAGERS
from .views_checkers import Lag
from .views_failing import FailingManager
from .workload import (
    CLIENTS,
    COORDINATORS,
    DELETE,
    OPERATIONS,
    OPERATIONS_WEIGHTS,
    Client,
    Operation,
    create_tables,
    hidden_of,
    tables,
)
from .world import World

DESIGNER = "designer"
SAFETY_MS = cluster.SAFETY_MS
LIVENESS_MS_MAX = 60_000
HASTY_MS, SWITCHING_MS = 2_500, 3_500
#: Between two changes.
DESIGN_MS_MAX = 400
#: What is not answered is asked again of another coordinator.
ANSWER_MS_MAX = 600
#: So few that most contents take several pages.
PAGE_ROWS = 6
#: Pages of about four rows, and of one.
PAGED, PAGE_BYTES = "catalog-paged", (1_000, 1)
#: Between two of them; and clients that take their time, and pages so small that most crashes are at a new one.
LEADER_DIES_MS, LTM_DIES_MS, CRASHING_THINK_MS, CRASHING_PAGE_ROWS = 600, 800, 200, 2
#: Ids that new tables, indexes and views get begin ranges of their own.
NEW_IDS = 60

PROBES = (*members.CATALOG_PROBES, *leaders.CATALOG_PROBES, *builders.PROBES)
CRASH_POINTS = (*PROBES, leaders.PLACING)
HELD_PROBES = (leaders.CATALOG_RELEASED, builders.GIVEN_UP)
#: Where leaders die in a run: one point for each seed, as in a cluster; those that are passed late come twice.
LEADER_DIES_AT = (
    *leaders.CATALOG_PROBES,
    *builders.PROBES,
    leaders.PLACING,
    leaders.CATALOG_CLEAN,
    leaders.CATALOG_PUBLISHED,
    builders.PAGED,
)

#: What is created and dropped.
NEW_VIEWS = {
    "x_costs": "SELECT product, SUM(cost) AS cost, COUNT(*) AS n FROM events GROUP BY product",
    "x_joined": "SELECT p.category, COUNT(*) AS n, SUM(e.cost) AS cost "
    "FROM events e JOIN products p ON e.product = p.id GROUP BY p.category",
    "x_left": "SELECT p.id, e.cost FROM products p LEFT JOIN events e ON e.product = p.id",
    "x_extremes": "SELECT product, MIN(cost) AS low, MAX(cost) AS high FROM events GROUP BY product",
    "x_same": "SELECT e.id, p.id AS other FROM events e JOIN products p ON p.price = e.cost",
    "x_top": "SELECT id, cost FROM events ORDER BY cost DESC, id LIMIT 4",
    "x_total": "SELECT SUM(balance) AS total, COUNT(*) AS n FROM accounts",
}
#: Where it is deferred, the inner view is deferred and has an index.
BY_TOTAL = "x_by_total"
ALL_VIEWS = {
    **NEW_VIEWS,
    BY_TOTAL: "SELECT s.product, p.id AS other FROM (SELECT product, SUM(cost) AS cost FROM events GROUP BY product) s "
    "JOIN products p ON p.price = s.cost",
}


#: The same as others, in the local layout.
LOCAL_VIEWS = {"x_local_joined": "x_joined", "x_local_same": "x_same", "x_local_total": "x_total"}


@cache
def definitions() -> dict[str, View]:
    """The new views as they are made from SQL, each synchronous."""
    database = viewtide.connect("memory:")
    create_tables(database)
    for name, text in ALL_VIEWS.items():
        database.create_view(name, text)
    found = dict(database._engine.ltm.tables.catalog.views)
    database.close()
    made = {name: View(0, name, found[name].relation, SYNC, found[name].text) for name in ALL_VIEWS}
    partials = (0,) * (len(LTMS) - 1)
    for name, of in LOCAL_VIEWS.items():
        made[name] = replace(made[of], name=name, layout=LOCAL, partials=partials)
    return made


def first_stored() -> Stored:
    catalog = tables().catalog
    return Stored((Entry(catalog.version, BEGINNING, 0, pack_catalog(catalog)),))


def first_map() -> RangeMap:
    """As in a cluster, with ranges for what is to come."""
    ranges = cluster.first_map()
    next_id = tables().catalog.next_id
    starts = tuple(table_range(table_id)[0] for table_id in range(next_id, next_id + NEW_IDS))
    logs = tuple(f"{LTMS[number % len(LTMS)]}/1" for number in range(len(starts)))
    ranges = replace(ranges, starts=(*ranges.starts, *starts), logs=(*ranges.logs, *logs))
    return replace(ranges, catalog=tables().catalog.version, catalog_ts=BEGINNING)


class Designer:
    """One change after another, each as a whole."""

    def __init__(
        self,
        host: Host,
        design_ms_max: int = DESIGN_MS_MAX,
        working_ms: int = cluster.WORKING_MS,
        choose: Callable[[Tables, Random], Next] | None = None,
    ) -> None:
        self._host = host
        self._design_ms_max = design_ms_max
        self._working_ms = working_ms
        self._choose = choose or choose_any
        self._running: Changing | None = None
        self._open: FetchCatalog | ChangeCatalog | None = None
        self._end_ms = 0
        self._number = 0
        self._questions = 0

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._end_ms = now_ms + self._working_ms
        return Outputs(timers=((now_ms + 700, "next"),))

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        assert isinstance(message, CatalogIs | CatalogChanged)
        if self._open is None or message.number != self._open.number:
            return NOTHING
        return self._go_on(message, now_ms)

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("a designer writes nothing")

    def timer(self, token: object, now_ms: int) -> Outputs:
        if token == "next":
            if now_ms >= self._end_ms:
                self._host.note("designed")
                return NOTHING
            self._running = self._design()
            return self._go_on(None, now_ms)
        return self._ask(now_ms) if token == self._questions and self._open is not None else NOTHING

    def _go_on(self, answer: CatalogIs | CatalogChanged | None, now_ms: int) -> Outputs:
        assert self._running is not None
        self._open = None
        try:
            self._open = self._running.send(answer)  # type: ignore[arg-type]  # None begins it
        except StopIteration:
            self._host.note("changed")
        except Error as error:
            self._host.note("not changed", type(error).__name__, error.message)
        if self._open is None:
            return Outputs(timers=((now_ms + self._host.random.randint(1, self._design_ms_max), "next"),))
        return self._ask(now_ms)

    def _ask(self, now_ms: int) -> Outputs:
        self._questions += 1
        coordinator = COORDINATORS[self._questions % len(COORDINATORS)]
        wait_ms = ANSWER_MS_MAX + (1_000 if isinstance(self._open, FetchCatalog) else 0)
        return Outputs(send=((coordinator, self._open),), timers=((now_ms + wait_ms, self._questions),))

    def _new_number(self) -> int:
        self._number += 1
        return self._number

    def _design(self) -> Changing:
        told = yield FetchCatalog(self._new_number())
        assert isinstance(told, CatalogIs)
        chosen = self._choose(tables_of(told.data), self._host.random)
        return (yield from changing(chosen, self._new_number))


def choose_any(now: Tables, random: Random) -> Next:
    views = [name for name in NEW_VIEWS if name in now.views]
    choice = random.random()
    if choice < 0.15:
        return choose_table(now, random)
    if choice < 0.25:
        index = now.by_name["events"].index_on((2,))
        if index is None:
            return indexing(now.table("events"), (2,), "by cost")
        if not any(("events", (2,)) in view.needs for view in now.catalog.views.values()):
            return once(without_index)
    if views and choice < 0.45:
        name = random.choice(views)
        return once(lambda catalog: catalog.without_view(name) if name in catalog.views else catalog)
    if views and choice < 0.65:
        return _switch(now, random.choice(views))
    missing = [name for name in NEW_VIEWS if name not in now.views]
    if not missing:
        return once(lambda catalog: catalog.without_view(views[0]))
    group = random.choice(("", "", "quick"))
    view = definitions()[random.choice(missing)]
    return creating(view if random.random() < 0.5 else replace(view, refresh="300ms", group=group))


def choose_indexed(now: Tables, random: Random) -> Next:
    """Often the view whose inner view has an index; never a synchronous one: the model knows no entries of those."""
    if random.random() < 0.6:
        return choose_any(now, random)
    if BY_TOTAL not in now.views:
        return creating(replace(definitions()[BY_TOTAL], refresh="300ms"))
    return once(lambda catalog: catalog.without_view(BY_TOTAL) if BY_TOTAL in catalog.views else catalog)


def choose_local(now: Tables, random: Random) -> Next:
    """Mostly views of the local layout."""
    if random.random() < 0.3:
        return choose_any(now, random)
    name = random.choice(list(LOCAL_VIEWS))
    if name not in now.views:
        return creating(definitions()[name])
    return once(lambda catalog: catalog.without_view(name) if name in catalog.views else catalog)


def choose_failing(now: Tables, random: Random) -> Next:
    """Mostly deferred views that join others, leave them, and become synchronous."""
    deferred = [name for name in NEW_VIEWS if name in now.views and now.catalog.views[name].deferred]
    missing = [name for name in NEW_VIEWS if name not in now.views]
    choice = random.random()
    if deferred and choice < 0.4:
        return _switch(now, random.choice(deferred))
    if deferred and choice < 0.55:
        name = random.choice(deferred)
        return once(lambda catalog: catalog.without_view(name) if name in catalog.views else catalog)
    if missing and choice < 0.9:
        return creating(replace(definitions()[random.choice(missing)], refresh="100ms", group="quick"))
    return choose_any(now, random)


def choose_paged(now: Tables, random: Random) -> Next:
    """Mostly what takes many pages, and partial rows that have to be placed."""
    choice = random.random()
    if choice < 0.25:
        if now.by_name["events"].index_on((2,)) is None:
            return indexing(now.table("events"), (2,), "by cost")
        if not any(("events", (2,)) in view.needs for view in now.catalog.views.values()):
            return once(without_index)
    if choice > 0.9:
        return choose_any(now, random)
    name = random.choice(list(LOCAL_VIEWS) if choice < 0.5 else ("x_total", "x_left", "x_costs"))
    if name not in now.views:
        return creating(definitions()[name])
    return once(lambda catalog: catalog.without_view(name) if name in catalog.views else catalog)


def choose_table(now: Tables, random: Random) -> Next:
    return once(without_notes if "notes" in now.by_name else with_notes)


def choose_view(now: Tables, random: Random) -> Next:
    """An index, and one view that changes its mode all the time."""
    if random.random() < 0.4:
        return (
            once(without_index)
            if now.by_name["events"].index_on((2,))
            else indexing(now.table("events"), (2,), "by cost")
        )
    if "x_costs" not in now.views:
        return creating(definitions()["x_costs"])
    if random.random() < 0.2:
        return once(lambda catalog: catalog.without_view("x_costs"))
    return _switch(now, "x_costs")


def _switch(now: Tables, name: str) -> Next:
    return switching(name, SYNC if now.catalog.views[name].deferred else "100ms")


def with_notes(catalog: Catalog) -> Catalog:
    columns = (Column("id", INT, False), Column("n", INT, False))
    return catalog.with_table(Table(catalog.next_id, "notes", columns, (0,)))


def without_notes(catalog: Catalog) -> Catalog:
    return catalog.without_table("notes")


def without_index(catalog: Catalog) -> Catalog:
    index = next(index for index in catalog.tables["events"].indexes if index.columns == (2,))
    return catalog.without_index("events", index)


class CatalogClient(Client):
    """Asks for the catalog, too."""

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        if isinstance(message, CatalogIs):
            open_ = cast(object, self._open)
            if isinstance(open_, FetchCatalog) and open_.number == message.number:
                return self._go_on(cast(RowsAt, message), now_ms)
            return NOTHING
        return super().receive(sender, message, now_ms)

    def _ask(self, now_ms: int) -> Outputs:
        open_ = cast(object, self._open)
        if not isinstance(open_, FetchCatalog):
            return super()._ask(now_ms)
        self._questions += 1
        self._open = cast(ReadAt, open_._replace(number=self._place << 32 | self._questions))
        coordinator = self._coordinators[(self._place + self._questions) % len(self._coordinators)]
        return Outputs(send=((coordinator, self._open),), timers=((now_ms + self._answer_ms_max, self._questions),))


def _whole(now: Tables, name: str) -> list[KeyRange]:
    ids = [
        number for each in hidden_of(now, name) for number in (now.views[each].view.id, *now.views[each].view.partials)
    ]
    return [(*table_range(number), 0, False) for number in ids]


def look_new(client: Client, random: Random) -> Operation:
    """A new view, if there is one: now, or at its watermark."""
    told = cast(CatalogIs, (yield cast(ReadAt, FetchCatalog(0))))
    now = tables_of(told.data)
    ready = [name for name in (*ALL_VIEWS, *LOCAL_VIEWS) if name in now.views and now.catalog.views[name].ready_ts]
    if not ready:
        return
    name = random.choice(ready)
    at = 0
    if now.catalog.views[name].deferred:
        read = cast("RowsAt | None", (yield ReadAt(0, 0, (watermark_key(group_keys(now)[name]),))))
        if read is None:
            return
        at = watermark_of(read.rows[0][1])
    yield ReadAt(0, at, (), tuple(_whole(now, name)))


def note(client: Client, random: Random) -> Operation:
    """A row of a table that comes and goes."""
    told = cast(CatalogIs, (yield cast(ReadAt, FetchCatalog(0))))
    now = tables_of(told.data)
    if "notes" not in now.by_name:
        return
    writes = {}
    for number in random.sample(range(8), 2):
        key = now.by_name["notes"].codec.keys.encode((number,))
        writes[key] = DELETE if random.random() < 0.2 else (ANY, (number, random.randint(0, 9)), None, True)
    yield client.submit({"notes": writes})._replace(catalog_version=told.version)


OPERATIONS["look_new"] = look_new
OPERATIONS["note"] = note
WEIGHTS = {**OPERATIONS_WEIGHTS, "write_events": 30, "look_late": 6, "look_new": 25, "note": 8}


def _client(host: Host) -> Client:
    return CatalogClient(host, cluster.WORKING_MS, WEIGHTS)


def _leader(host: Host) -> SchedulingLeader:
    leader = SchedulingLeader(host, tables(), COORDINATORS)
    leader.builder.page_rows = PAGE_ROWS
    return leader


def build(world: World, ranges: RangeMap | None = None) -> Built:
    built = views_cluster.build(world, ranges or first_map())
    zookeeper = built.around.zookeeper
    assert zookeeper is not None
    zookeeper.ensure(CATALOG, first_stored().pack())
    for names, factory in ((CANDIDATES, _leader), (CLIENTS, _client)):
        for name in names:
            world.nodes[name].factory = factory
    world.add(DESIGNER, Designer, disk=False)
    around = built.around
    around.mix = replace(
        around.mix,
        crash_points=(*around.mix.crash_points, *PROBES * 2),
        spared=(*around.mix.spared, DESIGNER),
    )
    replay = CatalogReplay(world, zookeeper)
    kept = [each for each in built.checkers if not isinstance(each, views_cluster.ClusterViewsReplay | Lag)]
    lag = NewestLag(world, replay, CANDIDATES[0])
    return Built(around, (*kept, replay, lag, Finished(world, zookeeper)))


def _no_faults(around: Surroundings) -> tuple[Planned, ...]:
    return ()


def _build_hasty(world: World) -> Built:
    """A table comes and goes, all the time."""
    built = build(world)
    world.nodes[DESIGNER].factory = lambda host: Designer(host, 30, HASTY_MS, choose_table)
    for name in CLIENTS:
        world.nodes[name].factory = _hasty_client
    return built


def _hasty_client(host: Host) -> Client:
    return CatalogClient(host, HASTY_MS, {"count": 4, "write_events": 4, "crowd": 2, "note": 2}, think_ms_max=10)


def plan_hasty(around: Surroundings) -> tuple[Planned, ...]:
    """Some hear of new maps late, requests are slow on their way, and so are timestamps."""
    slow = [(name, ltm) for name in ("zookeeper", *CANDIDATES, COORDINATORS[0]) for ltm in LTMS[:2]]
    slow += [(name, coordinator) for name in CANDIDATES for coordinator in COORDINATORS]
    return tuple(Planned(0, "slow_link", link, HASTY_MS * 1_000) for link in slow)


def _build_paged(world: World) -> Built:
    """Answers have few rows, of some processes only one; and a deferred view has an index."""
    built = build(world)
    world.nodes[DESIGNER].factory = lambda host: Designer(host, choose=choose_indexed)
    for name in LTMS:
        world.nodes[name].factory = _paged_member
    for name in COORDINATORS:
        world.nodes[name].factory = _paged_coordinator
    return built


def _paged_participant(host: MachineHost, log: str, oracle: str, refresh: RefreshRow) -> FeedingParticipant:
    made = FeedingParticipant(host, log, oracle, refresh, tables(), ITEMS_MAX)
    made.page_bytes = PAGE_BYTES[len(log) % 2]
    return made


def _paged_member(host: Host) -> Member:
    return Member(host, refresh_with(tables()), _paged_participant)


def _paged_coordinator(host: Host) -> ClusterCoordinator:
    made = ClusterCoordinator(host, tables())
    made.inner.page_bytes = PAGE_BYTES[COORDINATORS.index(host.name) % 2]
    return made


def _build_failing(world: World) -> Built:
    """Half of the steps cannot be computed, those up to the timestamp of a new catalog, too."""
    built = build(world)
    world.nodes[DESIGNER].factory = lambda host: Designer(host, DESIGN_MS_MAX // 2, choose=choose_failing)
    for name in MANAGERS:
        world.nodes[name].factory = _failing_manager
    return built


def _failing_manager(host: Host) -> FailingManager:
    return FailingManager(host, MANAGERS.index(host.name) + 1, tables(), COORDINATORS, CANDIDATES)


def plan_failing(around: Surroundings) -> tuple[Planned, ...]:
    """Leaders die where it is decided whether a change stays or is taken back; they come less often to the first."""
    random = around.world.streams["plan"]
    dying_at = (leaders.CATALOG_RELEASED, *HELD_PROBES, *HELD_PROBES)
    return tuple(
        Planned(at_ms * 1_000, "crash_at", (), random.randint(10_000, 300_000), random.choice(dying_at), 1)
        for at_ms in range(900, SAFETY_MS - 300, 2 * LEADER_DIES_MS)
    )


def _build_switching(world: World) -> Built:
    """A view changes its mode all the time, and an index comes and goes."""
    built = build(world)
    world.nodes[DESIGNER].factory = lambda host: Designer(host, 100, SWITCHING_MS, choose_view)
    for name in CLIENTS:
        world.nodes[name].factory = _switching_client
    return built


def _switching_client(host: Host) -> Client:
    return CatalogClient(host, SWITCHING_MS, {"write_events": 6, "buy": 3, "look_new": 3}, think_ms_max=25)


def _build_local(world: World) -> Built:
    """Views of the local layout come and go; what is new is all in one place at first."""
    ranges = first_map()
    ranges = replace(ranges, logs=(*ranges.logs[:-NEW_IDS], *(f"{LTMS[0]}/1",) * NEW_IDS))
    built = build(world, ranges)
    world.nodes[DESIGNER].factory = lambda host: Designer(host, choose=choose_local)
    return built


def _build_crashing(world: World) -> Built:
    """Views, indexes and partial rows all the time, in small pages; clients that take their time."""
    built = _build_local(world)
    world.nodes[DESIGNER].factory = lambda host: Designer(host, DESIGN_MS_MAX // 2, choose=choose_paged)
    for names, factory in ((CANDIDATES, _crashing_leader), (CLIENTS, _slow_client)):
        for name in names:
            world.nodes[name].factory = factory
    return built


def _crashing_leader(host: Host) -> SchedulingLeader:
    leader = _leader(host)
    leader.builder.page_rows = CRASHING_PAGE_ROWS
    return leader


def _slow_client(host: Host) -> Client:
    return CatalogClient(host, cluster.WORKING_MS, WEIGHTS, think_ms_max=CRASHING_THINK_MS)


def plan_crashes(around: Surroundings) -> tuple[Planned, ...]:
    """Somebody dies at every named point of a change, again and again: leaders at the one of this seed."""
    random = around.world.streams["plan"]
    point = LEADER_DIES_AT[around.world.seed % len(LEADER_DIES_AT)]
    planned = [
        Planned(at_ms * 1_000, "crash_at", (), random.randint(10_000, 300_000), point, 1)
        for at_ms in range(600, SAFETY_MS - 300, LEADER_DIES_MS)
    ]
    points = random.sample(members.CATALOG_PROBES, len(members.CATALOG_PROBES))
    for number, at_ms in enumerate(range(600, SAFETY_MS - 300, LTM_DIES_MS)):
        at_us = at_ms * 1_000 + random.randint(0, 100_000)
        passage, down_us = random.randint(1, 3), random.randint(10_000, 300_000)
        planned.append(Planned(at_us, "crash_at", (), down_us, points[number % len(points)], passage))
    return tuple(sorted(planned))


def plan_lagging(around: Surroundings) -> tuple[Planned, ...]:
    """Coordinators lose ZooKeeper again and again: they work by an old catalog, and are slow to reach LTMs."""
    random = around.world.streams["plan"]
    planned = [Planned(0, "slow_link", (COORDINATORS[0], name), SAFETY_MS * 1_000) for name in LTMS[:2]]
    for at_ms in range(600, SAFETY_MS - 1_000, 900):
        at_us = at_ms * 1_000 + random.randint(0, 300_000)
        planned.append(
            Planned(at_us, "zk_disconnect", (random.choice(COORDINATORS),), random.randint(200_000, 900_000))
        )
    return tuple(sorted(planned))


def plan_restarts(around: Surroundings) -> tuple[Planned, ...]:
    """LTMs, leaders and coordinators die while catalogs are pending and views are being made."""
    random = around.world.streams["plan"]
    planned = []
    for at_ms in range(700, SAFETY_MS - 500, 350):
        at_us = at_ms * 1_000 + random.randint(0, 200_000)
        name = random.choice((*LTMS, *CANDIDATES, *COORDINATORS))
        planned.append(Planned(at_us, "crash", (name,), random.randint(1_000, 300_000)))
    return tuple(sorted(planned))


SCENARIO = Scenario(
    name="catalog",
    summary="tables, indexes and views come, go and change their mode in a cluster with faults",
    build=build,
    make_world=cluster.make_world,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    mutants=MUTANTS,
    probes=PROBES,
    traffic_min={"commits": 60, "catalogs": 5, "new views read": 2},
)

SCENARIO_CALM = Scenario(
    name=CALM,
    summary="the same without faults, but with ranges that move",
    build=build,
    make_world=cluster.make_world,
    plan=_no_faults,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    traffic_min={"commits": 150, "catalogs": 15, "new views read": 10},
)

SCENARIO_LAGGING = Scenario(
    name=LAGGING,
    summary="coordinators that work by an old catalog",
    build=build,
    make_world=cluster.make_world,
    plan=plan_lagging,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_RESTARTS = Scenario(
    name=RESTARTS,
    summary="whoever takes part in a change of the catalog dies, again and again",
    build=build,
    make_world=cluster.make_world,
    plan=plan_restarts,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_HASTY = Scenario(
    name=HASTY,
    summary="a table comes and goes, and some hear of it late",
    build=_build_hasty,
    make_world=cluster.make_world,
    plan=plan_hasty,
    safety_ms=HASTY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_PAGED = Scenario(
    name=PAGED,
    summary="whatever is read comes in pages of few rows, and deferred views look into indexes of others",
    build=_build_paged,
    make_world=cluster.make_world,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_SWITCHING = Scenario(
    name=SWITCHING,
    summary="a view changes its mode all the time, and an index comes and goes",
    build=_build_switching,
    make_world=cluster.make_world,
    plan=_no_faults,
    safety_ms=SWITCHING_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
)

SCENARIO_LOCAL = Scenario(
    name=LOCAL_LAYOUT,
    summary="views of the local layout come and go, their partial rows move, with faults",
    build=_build_local,
    make_world=cluster.make_world,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    probes=(leaders.PLACING,),
    traffic_min={"commits": 60, "catalogs": 5, "new views read": 2},
)

SCENARIO_CRASHES = Scenario(
    name="catalog-crashes",
    summary="LTMs and leaders die at every named point of a change of the catalog",
    build=_build_crashing,
    make_world=cluster.make_world,
    plan=plan_crashes,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    crash_points=CRASH_POINTS,
    traffic_min={"commits": 60, "catalogs": 3},
)

SCENARIO_FAILING = Scenario(
    name=FAILING,
    summary="deferred views that cannot be computed when they are to become something else",
    build=_build_failing,
    make_world=cluster.make_world,
    plan=plan_failing,
    safety_ms=SAFETY_MS,
    liveness_ms_max=LIVENESS_MS_MAX,
    probes=HELD_PROBES,
    crash_points=HELD_PROBES,
    traffic_min={"commits": 60, "catalogs": 5, "designs changed": 3, "designs not changed": 2},
)

DIRECTED = (
    SCENARIO_CALM,
    SCENARIO_LAGGING,
    SCENARIO_RESTARTS,
    SCENARIO_HASTY,
    SCENARIO_PAGED,
    SCENARIO_SWITCHING,
    SCENARIO_LOCAL,
)
SCENARIOS = (SCENARIO, SCENARIO_CRASHES, SCENARIO_FAILING, *DIRECTED)
