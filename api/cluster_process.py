"""`viewtide ltm` and `viewtide view-manager`: one process of a cluster, made from its configuration."""

from __future__ import annotations

import gc
import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from .changetables.errors import InterfaceError, InternalError
from .cluster_gateway import ClusterGateway
from .cluster_stored import StorePlace
from .coordinator.cluster.directory import LTM, Address, Superseded
from .coordinator.cluster.process import Process
from .coordinator.cluster.roles import ltm_roles, prepare_tree, view_manager_roles
from .coordinator.cluster.zookeeper import NOBODY, Login, ZooKeeper
from .coordinator.vms.step_rows import with_steps
from .json_logs import log_as_json
from .ltm.catalog import Catalog
from .ltm.cluster.settings import HistorySettings, StoreSettings
from .ltm.commit_log.elsewhere import LogsElsewhere
from .ltm.commit_log.shared import SharedDirectory
from .ltm.garbage import database_closed, database_opened
from .ltm.keys import AllowList, Keys
from .ltm.ports import Damaged
from .ltm.tables import Tables
from .ltm.transport import Hub
from .ltm.versions import Horizon
from .metrics_server import Figure, MetricsServer, process_figures
from .process_config import ANY_PROCESSOR, HBASE, KEYS_HINT, ProcessConfig, read_password

if TYPE_CHECKING:
    from .ltm.store.hbase import HbaseStore

#: A process that broke an invariant of its own, as the system's own programs end (EX_SOFTWARE).
EXIT_BROKEN = 70
#: What it read is not what was written (EX_DATAERR): it has to be restored, and starting again does not help.
EXIT_DAMAGED = 65
#: Another process has its name (EX_UNAVAILABLE): starting it again at once would only take that one's place.
EXIT_SUPERSEDED = 69

#: The thread that handles messages takes turns with those that read for clients: with Python's own 5 ms, an answer
#: that is ready may wait as long as a commit takes.
SWITCH_S = 0.001

_log = logging.getLogger("viewtide.process")


def run_process(config: ProcessConfig, role: str) -> int:
    """Until SIGTERM or SIGINT. Returns the exit code."""
    log_as_json(config.name, config.log_level)
    served = _Served()
    with ExitStack() as closing:
        if config.metrics:
            served.server = MetricsServer(config.metrics, served.figures, served.why_not_ready)
            closing.callback(served.server.close)
        gateway = _gateway(config, role)
        if gateway is not None:
            closing.callback(gateway.close)
        clients = (config.advertise_clients or gateway.address) if gateway is not None else ""
        process, hub = closing.enter_context(_made(config, role, clients, served.address))
        served.process, served.hub = process, hub
        if gateway is not None:
            gateway.start(process, process.ltm_names)
            process.host(gateway)
        closing.enter_context(_ended_by_signals(process))
        _log.info("%s listens at %s", config.name, hub.address, extra={"role": role, "metrics": served.address})
        return _run(process, config.processor)


class _Served:
    """What /metrics and /readyz show. They answer from the beginning, before there is a connection to anything."""

    def __init__(self) -> None:
        self.server: MetricsServer | None = None
        self.process: Process | None = None
        self.hub: Hub | None = None

    @property
    def address(self) -> str:
        return self.server.address if self.server is not None else ""

    def figures(self) -> list[Figure]:
        process, hub = self.process, self.hub
        if process is None or hub is None:
            return []
        labels = {"process": process.name}
        own = process.figures() | process_figures()
        figures: list[Figure] = [(name, labels, value) for name, value in own.items()]
        figures += [(f"transport_{name}_total", labels, count) for name, count in asdict(hub.counts).items()]
        figures += [("events_total", {**labels, "event": event}, n) for event, n in list(process.events.items())]
        return figures

    def why_not_ready(self) -> str:
        if self.process is None or not self.process.directory.connected:
            return "no connection to ZooKeeper"
        return "" if self.process.is_ready else "not all machines run yet"


def _run(process: Process, processor: int) -> int:
    stay_on(processor)
    # What is alive now stays: the collector need not look at it again. Rows will, too, and are in no cycle.
    gc.collect()
    gc.freeze()
    database_opened()
    sys.setswitchinterval(SWITCH_S)
    try:
        process.run()
    except Superseded as error:
        _log.critical("%s", error)
        return EXIT_SUPERSEDED
    except Damaged as error:
        _log.critical("%s", error)
        return EXIT_DAMAGED
    except InternalError as error:
        _log.critical("%s", error, exc_info=error)
        return EXIT_BROKEN
    finally:
        database_closed()
    _log.info("%s ends", process.name)
    return 0


def stay_on(processor: int) -> None:
    """This thread, and those that it begins from now on."""
    if processor != ANY_PROCESSOR:
        os.sched_setaffinity(0, {processor})


@contextmanager
def _made(config: ProcessConfig, role: str, clients: str, metrics: str) -> Iterator[tuple[Process, Hub]]:
    with ExitStack() as closing:
        zookeeper = ZooKeeper(config.zookeeper.hosts, config.zookeeper.session_ms, _login(config))
        zookeeper.start()
        closing.callback(zookeeper.stop)
        keys = _keys(config, role)
        allowed = AllowList.for_server(Path(config.keys.allowed)) if keys is not None else None
        hub = Hub(config.name, listen=config.listen, keys=keys, allowed=allowed, keys_hint=KEYS_HINT)
        closing.callback(hub.close)
        public_key = keys.public if keys is not None else ""
        address = Address(config.advertise or hub.address, role, public_key, clients, metrics)
        tables = Tables(with_steps(Catalog()), Horizon())
        logs: LogsElsewhere | None = None
        store: HbaseStore | None = None
        if role == LTM:
            prepare_tree(zookeeper, config.name)
            logs, store = _storage(config, closing)
            history = HistorySettings(config.history.seconds * 1_000, config.history.megabytes * 2**20)
            settings = StoreSettings() if store is not None else None
            roles = ltm_roles(config.name, tables, settings, history, config.balance)
        else:
            roles = view_manager_roles(config.name, tables)
        session_ms = config.zookeeper.session_ms
        describe = store.describe if store is not None else None
        process = Process(config.name, address, roles, hub, zookeeper, logs, session_ms, store=store, describe=describe)
        process.stays_awake = config.processor != ANY_PROCESSOR
        if store is not None:
            store.may_write = process.check_lease
        yield process, hub


def _gateway(config: ProcessConfig, role: str) -> ClusterGateway | None:
    """Where clients are served, if they are: it listens before the others are told."""
    if not config.clients:
        return None
    if role != LTM:
        raise InterfaceError("clients are served by LTMs only", hint="leave `clients` out")
    keys = _keys(config, role)
    allowed = AllowList.for_server(Path(config.keys.allowed)) if keys is not None else None
    on_hbase = config.storage.kind == HBASE
    place = StorePlace(config.hbase.thrift, config.hbase.namespace) if on_hbase else None
    return ClusterGateway(config.name, config.clients, keys=keys, allowed=allowed, place=place)


def _login(config: ProcessConfig) -> Login:
    settings = config.zookeeper
    return Login(settings.user, read_password(settings.password_file)) if settings.user else NOBODY


def _keys(config: ProcessConfig, role: str) -> Keys | None:
    if not config.keys.file:
        return None
    keys = Keys.load(Path(config.keys.file))
    if (keys.name, keys.role) != (config.name, role):
        folder = Path(config.keys.file).parent
        make_it = ["viewtide", "keys", "new", config.name, "--role", role, "--dir", str(folder)]
        raise InterfaceError(
            f"{config.keys.file} is the key of {keys.name} ({keys.role}), not of {config.name} ({role})",
            hint=f"make one: {shlex.join(make_it)}",
        )
    return keys


def _storage(config: ProcessConfig, closing: ExitStack) -> tuple[LogsElsewhere, HbaseStore | None]:
    """Where commit logs are, and rows; without a store all of them are in memory."""
    if config.storage.kind == HBASE:
        # Imported here: who has no HBase need not have its library.
        from .ltm.commit_log.hbase import HbaseLogs
        from .ltm.hbase_client import Hbase
        from .ltm.store.hbase import HbaseStore

        client, namespace = Hbase(_rotated(config.hbase.thrift, config.name)), config.hbase.namespace
        closing.callback(client.close)
        client.create_namespace(namespace)
        store = HbaseStore(client, namespace, config.name)
        closing.callback(store.close)
        return HbaseLogs(client, namespace), store
    if not config.storage.directory:
        raise InterfaceError("storage.directory is missing", hint="the same for all processes of the cluster")
    return SharedDirectory(Path(config.storage.directory)), None


def _rotated(endpoints: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Processes begin with different ones: all of them have work, and the next one of a process is warm when it is
    needed. By the sum of the name's letters: names that end with 1, 2, 3 take turns."""
    first = sum(name.encode()) % len(endpoints)
    return (*endpoints[first:], *endpoints[:first])


@contextmanager
def _ended_by_signals(process: Process) -> Iterator[None]:
    def end(signum: int, frame: FrameType | None) -> None:
        process.stop()

    before = {ending: signal.signal(ending, end) for ending in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)
