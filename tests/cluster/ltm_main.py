"""A process with the simulator's tables: python -m tests.cluster.ltm_main NAME ZOOKEEPER LOGS."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

from tests.sim.workload import tables
from viewtide.coordinator.cluster.directory import LTM, VIEW_MANAGER, Address
from viewtide.coordinator.cluster.process import Process
from viewtide.coordinator.cluster.roles import ltm_roles, prepare_tree, view_manager_roles
from viewtide.coordinator.cluster.zookeeper import ZooKeeper
from viewtide.ltm.commit_log.shared import SharedDirectory
from viewtide.ltm.transport import Hub

SESSION_MS = 2_000


def main(name: str, zookeeper_path: str, directory: Path) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    zookeeper = ZooKeeper(zookeeper_path, SESSION_MS)
    zookeeper.start()
    prepare_tree(zookeeper, name)
    hub = Hub(name, listen="tcp://127.0.0.1:0")
    if name.startswith("ltm"):
        address, roles = Address(hub.address, LTM), ltm_roles(name, tables())
        process = Process(name, address, roles, hub, zookeeper, SharedDirectory(directory), SESSION_MS)
    else:
        address, roles = Address(hub.address, VIEW_MANAGER), view_manager_roles(name, tables())
        process = Process(name, address, roles, hub, zookeeper, None, SESSION_MS)
    signal.signal(signal.SIGTERM, lambda *_: process.stop())
    try:
        process.run()
    finally:
        hub.close()
        zookeeper.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
