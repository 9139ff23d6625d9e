"""`viewtide cluster`: what each command does and prints."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.status import Status
from rich.table import Table

from .changetables.errors import InterfaceError, counted
from .changetables.types import Value
from .cluster_client import ClusterClient, ClusterStatus
from .coordinator.cluster.directory import LTM, VIEW_MANAGER
from .dev_cluster import Report, quiet
from .development import Development

ROLES = (LTM, VIEW_MANAGER)


class ClusterCommands:
    def __init__(self, directory: Path, *, as_json: bool, out: TextIO) -> None:
        self._directory = directory
        self._as_json = as_json
        self._out = out
        self._console = Console(file=out)

    def up(self, ltms: int | None, view_managers: int | None, storage: str | None) -> None:
        began = time.monotonic()
        with self._progress("starting a cluster") as report:
            cluster = Development.up(self._directory, ltms, view_managers, storage, report)
        took_s = time.monotonic() - began
        more = cluster.more_than(ltms, view_managers)
        told = f"{counted(len(cluster.processes), 'process', 'es')} in {took_s:.1f} s."
        if more:
            told += f" There are {' and '.join(more)} already, and `up` takes none away."
        self._say(
            {
                "address": cluster.address,
                "zookeeper": cluster.zookeeper,
                "processes": cluster.processes,
                "seconds": round(took_s, 1),
            },
            f"{told} Its address is {cluster.address}",
        )

    def status(self) -> None:
        cluster = Development.attach(self._directory)
        with self._client(cluster) as client:
            status = client.status()
        if self._as_json:
            self._say(_plain(cluster, status), "")
        else:
            self._show(cluster, status)

    def down(self) -> None:
        with self._progress("ending the cluster") as report:
            Development.attach(self._directory).down(report)
        self._say({"down": True}, "Ended. The data is still there.")

    def kill(self, name: str) -> None:
        cluster = Development.attach(self._directory)
        cluster.kill(name)
        self._say({"killed": name}, f"{name} was killed. Start it again with: {cluster.command('start', name)}")

    def start(self, name: str) -> None:
        cluster = Development.attach(self._directory)
        cluster.check_known(name)
        with self._progress(f"starting {name}") as report:
            cluster.start(name, report)
            # Others may have been killed: that is nothing to wait for.
            cluster.await_ready(report, [name])
        self._say({"started": name}, f"{name} runs.")

    def add(self, role: str) -> None:
        if role not in ROLES:
            raise InterfaceError(f"{role!r} cannot be added", hint=f"one of {', '.join(ROLES)}")
        with self._progress(f"adding a process: {role}") as report:
            name = Development.attach(self._directory).add(role, report)
        self._say({"added": name}, f"{name} runs.")

    def split(self, table: str, key: list[str]) -> None:
        with self._client(Development.attach(self._directory)) as client:
            client.split(table, _values(key))
        self._say({"split": table, "key": key}, f"A range begins at {table} {' '.join(key)}".rstrip() + ".")

    def move(self, table: str, start: list[str], stop: list[str], target: str) -> None:
        cluster = Development.attach(self._directory)
        cluster.check_known(target, LTM)
        # Keys go to the log of the target. Without the target that is soon another LTM's, which gets them instead.
        cluster.check_alive(target, f"start it: {cluster.command('start', target)}")
        with self._client(cluster) as client, self._progress(f"moving keys to {target}"):
            epoch = client.move(table, _values(start), _values(stop), target)
        cluster.check_alive(target, f"it has ended meanwhile; {cluster.command('status')} shows who has its keys")
        self._say({"moved": table, "to": target, "epoch": epoch}, f"{target} owns them.")

    # -- output

    @contextmanager
    def _progress(self, what: str) -> Iterator[Report]:
        """A spinner with the step that is under way; as JSON, or where there is no terminal, nothing."""
        if self._as_json or not self._console.is_terminal:
            yield quiet
            return
        with Status(what, console=self._console) as status:
            yield lambda step: status.update(f"{what}: {step}")

    @contextmanager
    def _client(self, cluster: Development) -> Iterator[ClusterClient]:
        client = cluster.client()
        try:
            yield client
        finally:
            client.close()

    def _say(self, plain: dict[str, object], text: str) -> None:
        self._out.write((json.dumps(plain) if self._as_json else text) + "\n")

    def _show(self, cluster: Development, status: ClusterStatus) -> None:
        processes = Table(title=cluster.address, title_justify="left")
        for column in ("process", "role", "state", "address", "metrics"):
            processes.add_column(column)
        for name, role, state, address, metrics in _processes(cluster, status):
            processes.add_row(name, role, state, address, metrics)
        ranges = Table(
            title=f"key ranges, epoch {status.epoch}, catalog {status.catalog_version}", title_justify="left"
        )
        for column in ("from", "process", "log", ""):
            ranges.add_column(column)
        for each in status.ranges:
            ranges.add_row(each.start, each.process, each.log, f"moves to {each.moving_to}" if each.moving_to else "")
        servers = Table(title="servers", title_justify="left")
        for column in ("server", "state"):
            servers.add_column(column)
        for name, state in cluster.servers().items():
            servers.add_row(name, state)
        self._console.print(processes, ranges, servers)


def _processes(cluster: Development, status: ClusterStatus) -> Iterator[tuple[str, str, str, str, str]]:
    for name in sorted({*cluster.processes, *status.processes}):
        known = status.processes.get(name)
        alive = cluster.is_alive(name)
        state = ("leads" if name == status.leader else "runs") if known and alive else "starting" if alive else "gone"
        address, metrics = (known.address, known.metrics) if known is not None else ("", "")
        yield name, known.role if known is not None else "", state, address, metrics


def _plain(cluster: Development, status: ClusterStatus) -> dict[str, object]:
    fields = ("name", "role", "state", "address", "metrics")
    return {
        "address": cluster.address,
        "zookeeper": cluster.zookeeper,
        "storage": cluster.storage,
        "leader": status.leader,
        "epoch": status.epoch,
        "catalog": status.catalog_version,
        "processes": [dict(zip(fields, each, strict=True)) for each in _processes(cluster, status)],
        "ranges": [each._asdict() for each in status.ranges],
        "servers": cluster.servers(),
    }


def _values(texts: list[str]) -> tuple[Value, ...]:
    """Each is JSON; what is none is a string."""

    def value(text: str) -> Value:
        try:
            found: Value = json.loads(text)
        except ValueError:
            return text
        return found

    return tuple(value(text) for text in texts)
