"""A development cluster on this machine: ZooKeeper and HBase, LTM processes and view managers, in one directory.

    D/cluster.json      the storage, and the processes with their numbers
    D/hbase             ZooKeeper and HBase (`dev_cluster`)
    D/logs              commit logs, if they are not in HBase
    D/ltm-1.toml, D/ltm-1.log ...   what each process was started with, and what it says

Everything listens on this machine only, without keys: not for data that matters.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .changetables.errors import InterfaceError, OperationalError, counted
from .cluster_client import ClusterClient
from .coordinator.cluster.directory import LTM, VIEW_MANAGER
from .dev_cluster import HBASE_DATA, DevelopmentHbase, Report, had_servers, quiet, start
from .ltm.cluster.messages import MAP
from .process_config import HBASE, LOCAL

STORAGES = (LOCAL, HBASE)
PROCESSES_MAX = 40
#: Of a new cluster, unless told otherwise.
LTMS, VIEW_MANAGERS = 3, 2
READY_S_MAX = 60.0
#: A process that was asked to end is killed after this long.
END_S_MAX = 10.0
#: Of what is in a directory, when it is told that this is no cluster.
NAMES_TOLD_MAX = 3
#: In ZooKeeper, below which all nodes of the cluster are.
CHROOT = "/viewtide"
#: On a busy machine the JVM with everything in it may pause for seconds.
SESSION_MS = 6_000

#: In place of the number of a process that is planned and was never started: no process has it.
NOT_STARTED = 0

_STATE = "cluster.json"
_PART = f"{_STATE}.part"
_WRITTEN_BY = "# Written by `viewtide cluster`: other changes than `processor` are lost.\n"
_COMMANDS = {LTM: "ltm", VIEW_MANAGER: "view-manager"}
_NAMES = {LTM: "LTM", VIEW_MANAGER: "view manager"}


class Development:
    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.storage = HBASE
        self.session_ms = SESSION_MS
        self.processes: dict[str, int] = {}

    # -- commands

    @classmethod
    def up(
        cls,
        directory: Path,
        ltms: int | None = None,
        view_managers: int | None = None,
        storage: str | None = None,
        report: Report = quiet,
        session_ms: int = SESSION_MS,
    ) -> Development:
        """Start what does not run yet; a cluster that was there before goes on with its data. What is not said is as it
        was there, or as usual."""
        if storage not in (None, *STORAGES):
            raise InterfaceError(f"storage is {storage!r}", hint=f"one of {', '.join(STORAGES)}")
        made = cls(directory)
        with made._in_place():
            made._check_place()
            names = made._planned(ltms, view_managers, storage)
            made.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.session_ms = session_ms
            made._save()
        made._start_servers(report)
        # Before the first one runs: whoever is interrupted here gets the others the next time.
        made.processes = {name: made.processes.get(name, NOT_STARTED) for name in names}
        made._save()
        for name in names:
            made.start(name, report)
        made.await_ready(report)
        return made

    @classmethod
    def attach(cls, directory: Path) -> Development:
        found = cls(directory)
        if not os.path.exists(found.directory / _STATE):  # Path.exists raises for a name that there cannot be
            raise OperationalError(f"there is no cluster in {directory}", hint=f"start one: {found.command('up')}")
        found._load()
        return found

    def start(self, name: str, report: Report = quiet) -> None:
        """A process of the cluster, unless it runs."""
        if self.is_alive(name):
            return
        report(f"starting {name}")
        role = role_of(name)
        config = self.directory / f"{name}.toml"
        config.write_text(self._config(name, _processor_line(config)), encoding="utf-8")
        with open(self.directory / f"{name}.log", "ab") as log:
            command = [sys.executable, "-m", "viewtide.cli", _COMMANDS[role], "--config", str(config)]
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory, start_new_session=True
            )
        _children[child.pid] = child
        self.processes[name] = child.pid
        self._save()

    def more_than(self, ltms: int | None, view_managers: int | None) -> list[str]:
        """What there is more of than `up` was asked for: it takes none away."""
        asked = {LTM: ltms, VIEW_MANAGER: view_managers}
        there = {role: sum(role_of(name) == role for name in self.processes) for role in asked}
        return [
            counted(there[role], _NAMES[role])
            for role, count in asked.items()
            if count is not None and count < there[role]
        ]

    def add(self, role: str, report: Report = quiet) -> str:
        """One more process, with the next name. Returns the name."""
        prefix = "ltm" if role == LTM else "vm"
        number = next(n for n in range(1, PROCESSES_MAX * 10) if f"{prefix}-{n}" not in self.processes)
        name = f"{prefix}-{number}"
        self.start(name, report)
        self.await_ready(report, [name])
        return name

    def kill(self, name: str) -> None:
        """kill -9, as a test of what the others do."""
        self.check_known(name)
        self.check_alive(name)
        os.kill(self.processes[name], signal.SIGKILL)
        _until(lambda: not self.is_alive(name), f"{name} does not end")

    def check_known(self, name: str, role: str = "") -> None:
        """That there is, or was, such a process, with the role if one is named."""
        known = [each for each in sorted(self.processes) if role in ("", role_of(each))]
        if name in known:
            return
        hint = f"there are {', '.join(known)}" if known else f"add one: {self.command('add', role or LTM)}"
        if name in self.processes:
            raise OperationalError(f"{name} is no {role}", hint=hint)
        if name in self.servers():
            raise OperationalError(
                f"{name} is a server of the cluster, none of its processes",
                hint=f"{hint}; {self.command('down')} ends all",
            )
        raise OperationalError(f"there is no process {name}", hint=hint)

    def check_alive(self, name: str, hint: str = "") -> None:
        if not self.is_alive(name):
            self._hbase()  # raises: if the whole cluster does not run, that is what to say
            raise OperationalError(f"{name} does not run", hint=hint or f"{self.command('status')} shows who does")

    def down(self, report: Report = quiet) -> None:
        """End everything; the data stays."""
        for name in self.processes:
            if self.is_alive(name):
                report(f"ending {name}")
                os.kill(self.processes[name], signal.SIGTERM)
        deadline = time.monotonic() + END_S_MAX
        for name in self.processes:
            with suppress(OperationalError):
                _until(lambda name=name: not self.is_alive(name), "", max(deadline - time.monotonic(), 0))  # type: ignore[misc]
            if self.is_alive(name):
                self.kill(name)
        with suppress(OperationalError):
            servers = DevelopmentHbase.attach(self.directory / "hbase")
            report(f"ending {', '.join(servers.pids)}")
            servers.stop()

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OperationalError(
                f"there cannot be a cluster in {self.directory}: {error.strerror}", hint="choose another directory"
            ) from error

    def _check_place(self) -> None:
        """That there is a cluster, or room for one."""
        if not self.directory.is_dir():
            if self.directory.exists():
                raise OperationalError(
                    f"{self.directory} is a file", hint="a cluster is in a directory: choose another path"
                )
            return
        # A new file system has a folder, and somebody may have written `processor` into files of processes before.
        names = {each.name for each in self.directory.iterdir() if each.name != "lost+found" and each.suffix != ".toml"}
        # Who was killed at once has left a part. Servers may be there before the cluster is, or without its file.
        if _STATE not in names and names - {_PART} and not had_servers(self.directory / "hbase"):
            told = sorted(names)[:NAMES_TOLD_MAX] + ["..."] * (len(names) > NAMES_TOLD_MAX)
            raise OperationalError(
                f"{self.directory} holds something else than a cluster: {', '.join(told)}",
                hint="choose an empty or a new directory",
            )

    def _planned(self, ltms: int | None, view_managers: int | None, storage: str | None) -> list[str]:
        """The processes that are to run: those that were there, and what is asked for."""
        if (self.directory / _STATE).exists():
            self._load()
        # A first `up` whose servers did not start has left no processes, and no data: this one is the first again.
        known = bool(self.processes)
        begun = any(pid != NOT_STARTED for pid in self.processes.values())
        if begun and storage not in (None, self.storage):
            raise InterfaceError(
                f"the cluster in {self.directory} has the storage {self.storage}",
                hint=f"leave out --storage, or give another directory for one with {storage}",
            )
        if storage is not None:
            self.storage = storage
        asked = {LTM: ltms, VIEW_MANAGER: view_managers}
        ltms = (0 if known else LTMS) if ltms is None else ltms
        view_managers = (0 if known else VIEW_MANAGERS) if view_managers is None else view_managers
        if not (ltms <= PROCESSES_MAX and 0 <= view_managers <= PROCESSES_MAX and (known or ltms >= 1)):
            raise InterfaceError(f"from 1 to {PROCESSES_MAX} LTMs and at most as many view managers")
        names = [f"ltm-{number}" for number in range(1, ltms + 1)]
        names += [f"vm-{number}" for number in range(1, view_managers + 1)]
        # Of those that were only planned, as many as are asked for.
        names += [name for name, pid in self.processes.items() if pid != NOT_STARTED or asked[role_of(name)] is None]
        return list(dict.fromkeys(names))

    # -- state

    @property
    def zookeeper(self) -> str:
        return self._hbase().zookeeper + CHROOT

    @property
    def address(self) -> str:
        """What `connect` takes."""
        return f"zk://{self.zookeeper}"

    def _hbase(self) -> DevelopmentHbase:
        try:
            return DevelopmentHbase.attach(self.directory / "hbase")
        except OperationalError:
            raise OperationalError(
                f"the cluster in {self.directory} does not run",
                hint=f"start it again with: {self.command('up')}",
            ) from None

    def client(self) -> ClusterClient:
        return ClusterClient(self.zookeeper, status=self.command("status"))

    def command(self, *words: str) -> str:
        """One of `viewtide cluster` on this directory, so that it can be copied as it is."""
        return shlex.join(["viewtide", "cluster", *words, "--dir", str(self.directory)])

    def is_alive(self, name: str) -> bool:
        """Whether it runs, and is the one that was started here: numbers of processes are used again."""
        pid = self.processes.get(name, NOT_STARTED)
        if pid == NOT_STARTED:
            return False
        if pid in _children:
            return _children[pid].poll() is None
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            dead = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False
        return str(self.directory / f"{name}.toml").encode() in command and not dead

    def servers(self) -> dict[str, str]:
        """ZooKeeper and HBase: "runs", "gone", or what is wrong. A region server may end in a JVM that goes on."""
        hbase = self._hbase()
        dead = hbase.dead
        states = {name: "gone" if name in dead else "runs" for name in hbase.pids}
        if self.storage == HBASE and not dead and not hbase.region_servers():
            states["region servers"] = "gone: end the cluster and start it again"
        return states

    def await_ready(self, report: Report = quiet, names: Collection[str] = ()) -> None:
        """Every process, or each that is named, is known to the others, and every LTM of them answers for a log."""
        report("waiting for the processes")
        names = names or list(self.processes)
        client = self.client()
        try:
            _until(
                lambda: not self._missing(client, names),
                lambda: f"not ready: {', '.join(self._missing(client, names))}",
            )
        finally:
            client.close()

    def _missing(self, client: ClusterClient, names: Collection[str]) -> list[str]:
        dead = [name for name in names if not self.is_alive(name)]
        if dead:
            raise OperationalError(f"{dead[0]} has ended", hint=f"see {self.directory / dead[0]}.log")
        if client.zookeeper.read(MAP) is None:
            return list(names)
        hosting = {host.process for host in client.map().hosts.values()}
        known = client.status().processes
        return [name for name in names if name not in known or (role_of(name) == LTM and name not in hosting)]

    def _start_servers(self, report: Report) -> None:
        place = self.directory / "hbase"
        with suppress(OperationalError):
            if DevelopmentHbase.attach(place).alive:
                return
        # What was begun with HBase goes on with it: its ZooKeeper keeps its data in another place.
        only_zookeeper = self.storage == LOCAL and not (place / HBASE_DATA).exists()
        start(place, report=report, only_zookeeper=only_zookeeper)

    def _config(self, name: str, processor: str) -> str:
        hbase = self._hbase()
        thrift = ", ".join(f'"{each}"' for each in hbase.thrift)
        clients = 'clients = "tcp://127.0.0.1:0"\n' if role_of(name) == LTM else ""
        return (
            f'{_WRITTEN_BY}name = "{name}"\n{clients}{processor}\n'
            f'[zookeeper]\nhosts = "{self.zookeeper}"\nsession_ms = {self.session_ms}\n\n'
            f'[storage]\nkind = "{self.storage}"\ndirectory = "{self.directory / "logs"}"\n\n'
            f"[hbase]\nthrift = [{thrift}]\n"
        )

    def _load(self) -> None:
        file = self.directory / _STATE
        try:
            self.storage, self.processes, self.session_ms = _state_in(file.read_text())
        except OSError as error:
            raise OperationalError(f"{file} cannot be read: {error.strerror}", hint="check its permissions") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise OperationalError(
                f"{file} is damaged: it does not say what the cluster has",
                hint="restore it; or end its processes, remove it, and say with --storage, --ltms and --view-managers "
                f"what was there: {self.command('up')}",
            ) from error

    def _save(self) -> None:
        part = self.directory / _PART
        state = {"storage": self.storage, "session_ms": self.session_ms, "processes": self.processes}
        part.write_text(json.dumps(state, indent=1))
        part.rename(self.directory / _STATE)


#: Those that this process started, so that it can take their exit status from the system.
_children: dict[int, subprocess.Popen[bytes]] = {}


def _state_in(text: str) -> tuple[str, dict[str, int], int]:
    state = json.loads(text)
    storage, processes, session_ms = state["storage"], state["processes"], state.get("session_ms", SESSION_MS)
    if storage not in STORAGES or not all(isinstance(number, int) for number in (session_ms, *processes.values())):
        raise ValueError("not what is written here")
    return storage, processes, session_ms


def role_of(name: str) -> str:
    return LTM if name.startswith("ltm-") else VIEW_MANAGER


def _processor_line(config: Path) -> str:
    """The one line that people write into such a file, "" if they did not. Wherever it is: at the end it is in a table
    that has no such key, and what was meant is plain."""
    lines = config.read_text(encoding="utf-8", errors="replace").splitlines() if config.exists() else []
    return next((f"{line}\n" for line in lines if line.partition("=")[0].strip() == "processor"), "")


def _until(condition: Callable[[], bool], failure: str | Callable[[], str], timeout_s: float = READY_S_MAX) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise OperationalError(failure if isinstance(failure, str) else failure())
        time.sleep(0.05)
