"""Which machines run in which process, and what each of them understands."""

from __future__ import annotations

from ...ltm.cluster.member import Member
from ...ltm.cluster.messages import (
    BOUND,
    LTMS,
    MAP,
    CatalogChanged,
    CatalogIs,
    ChangeCatalog,
    FetchCatalog,
    FetchMap,
    FetchRange,
    ForLog,
    Lease,
    Merge,
    MoveRange,
    NewMap,
    NotHere,
    RangeRows,
    Report,
    Split,
)
from ...ltm.cluster.settings import HistorySettings, StoreSettings
from ...ltm.key_range import Hosting, RangeMap
from ...ltm.machine import Host, Machine
from ...ltm.tables import Tables
from ...ltm.two_phase.messages import (
    Answer,
    Draw,
    FoundChanges,
    NotServed,
    ReadRows,
    Refused,
    Resolved,
    Settled,
    Timestamps,
    Told,
    Vote,
)
from ...ltm.two_phase.participant import RefreshRow
from ...ltm.two_phase.views import refresh_with
from ..two_phase.messages import ChangesAt, Outcome, ReadAt, RowsAt, Submit, Submits
from ..vms.cluster_leader import SchedulingLeader
from ..vms.cluster_messages import (
    Changed,
    Closed,
    GroupIs,
    Hello,
    Marker,
    SlotDone,
    SlotRefused,
    WantGroup,
    Work,
    Working,
)
from ..vms.cluster_subsystem import FeedingParticipant
from ..vms.cluster_view_manager import ClusterViewManager
from .balancer import Balancer
from .coordinator import ClusterCoordinator
from .directory import LIVES, PROCESSES
from .leader import LEADING
from .process import ALL, ANY, Birth, ProcessHost, Role
from .zookeeper import ZooKeeper

COORDINATOR, LEADER = "coordinator", "leader"
#: Changed rows in one message of a subsystem to a view manager.
ITEMS_MAX = 500
USUAL_HISTORY = HistorySettings()

_MEMBER_TAKES = (ForLog, Lease, NewMap, Timestamps, FetchRange, RangeRows, NotHere)
_COORDINATOR_TAKES = (
    *(Submit, Submits, ReadAt, ChangesAt, NewMap, NotHere, Timestamps, WantGroup, GroupIs),
    *(ChangeCatalog, CatalogChanged, FetchCatalog),
    *(Told, Refused, Vote, Settled, Answer, Resolved, ReadRows, FoundChanges, NotServed),
)
_LEADER_TAKES = (
    *(Draw, Report, FetchMap, Split, Merge, MoveRange, ChangeCatalog, NotHere),
    *(Closed, Hello, Outcome, RowsAt, SlotDone, SlotRefused, WantGroup, Working),
)
_VIEW_MANAGER_TAKES = (Work, Changed, Marker, RowsAt, Outcome, NotHere, CatalogIs)


def ltm_roles(
    name: str,
    tables: Tables,
    store: StoreSettings | None = None,
    history: HistorySettings = USUAL_HISTORY,
    balance: bool = False,
) -> tuple[Role, ...]:
    """The LTM, a coordinator, and a candidate for leader, which schedules deferred views by that coordinator. `store`:
    rows are in a store that all LTM processes share, which the process is given, too. `balance`: whoever leads spreads
    key ranges over the LTMs."""

    def feeding(host: Host, log: str, oracle: str, refresh: RefreshRow) -> FeedingParticipant:
        made = FeedingParticipant(host, log, oracle, refresh, tables, ITEMS_MAX)
        made.recent.bytes_max, made.changes_ms = history.bytes_max, history.ms
        return made

    def member(host: ProcessHost, birth: Birth) -> Member:
        return Member(host, refresh_with(tables), feeding, store)

    def coordinator(host: ProcessHost, birth: Birth) -> ClusterCoordinator:
        return ClusterCoordinator(host, tables)

    def leader(host: ProcessHost, birth: Birth) -> SchedulingLeader:
        return SchedulingLeader(host, tables, (f"{name}.{COORDINATOR}",), Balancer() if balance else None)

    return (
        Role(name, member, _MEMBER_TAKES, True, _newest_catalog, _figures_of_member),
        Role(f"{name}.{COORDINATOR}", coordinator, _COORDINATOR_TAKES, figures_of=_figures_of_coordinator),
        Role(f"{name}.{LEADER}", leader, _LEADER_TAKES, figures_of=_figures_of_leader),
    )


def _newest_catalog(machine: Machine) -> bytes:
    """Pending or open: rows of a table come after the catalog that has it."""
    assert isinstance(machine, Member)
    entries = machine.catalogs.stored.entries
    return entries[-1].data if entries else b""


# Of machines at work in another thread: what they keep is copied before it is looked through.


def _figures_of_member(machine: Member) -> dict[str, float]:
    ranges = machine.map
    hosted = [each.machine for each in list(machine.hosted.values()) if each.machine is not None]
    parts = [part for each in hosted for part in list(each.parts.values())]
    return {
        "map_epoch": ranges.epoch,
        "ranges_owned": sum(ranges.hosts[log].life == machine.life for log in ranges.logs if log in ranges.hosts),
        "rows_in_memory": sum(len(each.cells.chains) for each in hosted),
        "transactions_undecided": sum(bool(part.min_ts) and part.decided is None for part in parts),
    }


def _figures_of_coordinator(machine: ClusterCoordinator) -> dict[str, float]:
    return {"transactions_running": len(machine.inner.work)}


def _figures_of_leader(machine: SchedulingLeader) -> dict[str, float]:
    return {"leads": float(machine.state == LEADING)}


def view_manager_roles(name: str, tables: Tables) -> tuple[Role, ...]:
    def manager(host: ProcessHost, birth: Birth) -> ClusterViewManager:
        return ClusterViewManager(host, birth.id, tables, (ANY + COORDINATOR,), (ALL + LEADER,))

    return (Role(name, manager, _VIEW_MANAGER_TAKES),)


def prepare_tree(zookeeper: ZooKeeper, name: str) -> None:
    """What has to be in ZooKeeper before a process `name` can begin; whoever comes first creates it. In the first map
    all keys are of its first life's log: if that never existed, whoever takes over seals it empty."""
    log = f"{name}/1"
    first = RangeMap(1, (b"",), (log,), {}, 0, {log: Hosting(1, (log,))})
    for path, data in ((LTMS, b""), (PROCESSES, b""), (LIVES, b""), (BOUND, b"0"), (MAP, first.pack())):
        zookeeper.ensure(path, data)
