"""A development HBase on this machine: ZooKeeper, master, region servers and Thrift servers from Maven's jars.

`viewtide cluster up` and the tests start it. The jars and the compiled launcher live in the user's cache, keyed by the
digest of `hbase/pom.xml` and `hbase/Launcher.java`: they are fetched once, and anew when a version changes.

    with running(directory) as hbase:                  # all in one JVM: some 5 s until it is ready, 300 MB
        hbase.zookeeper, hbase.thrift                  # "127.0.0.1:port", ("127.0.0.1:port",)
    hbase = start(directory, separate=True)            # a process each: 12 s, 0.9 GB; kill("region-1"), revive(...)

Not for data that matters: the local file system is not made durable against the loss of the machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from xml.sax.saxutils import escape

from .changetables.errors import OperationalError
from .coordinator.cluster.zookeeper import ZooKeeper
from .ltm.hbase_client import Hbase, RowOf, Value

READY_S_MAX = 120.0
RESOLVE_S_MAX = 900.0
COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
#: HBase on fewer falls over; on more, a laptop notices.
HEAP_MB = 512
#: What a region server's and a master's ZooKeeper session may last: on a busy machine, 6 s without a heartbeat
#: happened, and a region server that is taken for dead ends. ZooKeeper allows 2 ticks at least.
SESSION_MS, SESSION_MS_MAX, TICK_MS = 20_000, 60_000, 500
REGION_SERVERS_SEPARATE = 2

_SOURCES = Path(__file__).with_name("hbase")
_STATE = "servers.json"
#: Where HBase has its files, in the directory of its servers.
HBASE_DATA = "data"
_GUARD = "in-use"
_SITE_FILE = "hbase-site.xml"
_READY_TABLE = b"viewtide_ready"

_OPENS = ("java.io", "java.nio", "sun.nio.ch", "java.lang", "jdk.internal.ref", "java.lang.reflect", "java.util",
          "java.util.concurrent")  # fmt: skip
_EXPORTS = ("java.base/jdk.internal.misc", "java.base/sun.net.dns", "java.base/sun.net.util",
            "java.security.jgss/sun.security.krb5")  # fmt: skip
_JAVA_OPTIONS = (
    # Short runs: the second compiler costs more than it gains.
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true",
    # Maven has compared the digests of the jars: to verify their classes, too, is a sixth of a start.
    "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote",
    "-Dzookeeper.admin.enableServer=false", "-Dorg.apache.hbase.thirdparty.io.netty.tryReflectionSetAccessible=true",
    "--add-modules", "jdk.unsupported",
    *(f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in _OPENS),
    *(f"--add-exports={each}=ALL-UNNAMED" for each in _EXPORTS),
)  # fmt: skip
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1} %m%n
"""
_REGION_PORT = "hbase.regionserver.port"
_SITE = {
    # The local file system without checksums, and a log that needs no HDFS.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "hbase.wal.provider": "filesystem",
    "hbase.master.store.region.wal.hsync": "false",
    "hbase.unsafe.stream.capability.enforce": "false",
    # Loopback only, without web pages, on ports that the system chooses.
    "hbase.zookeeper.quorum": "127.0.0.1",
    "hbase.master.hostname": "localhost",
    "hbase.unsafe.regionserver.hostname": "localhost",
    "hbase.master.ipc.address": "127.0.0.1",
    "hbase.regionserver.ipc.address": "127.0.0.1",
    "hbase.master.port": "0",
    _REGION_PORT: "0",
    "hbase.master.info.port": "-1",
    "hbase.regionserver.info.port": "-1",
    "hbase.thrift.info.port": "-1",
    # HBase is patient by default: seconds at the start, minutes after a failure.
    "hbase.master.wait.on.regionservers.mintostart": "1",
    "hbase.regionserver.msginterval": "100",
    "hbase.ipc.client.failed.servers.expiry": "100",
    "hbase.client.pause": "20",
    "hbase.client.retries.number": "6",
    "hbase.assignment.dispatch.wait.msec": "5",
    "hbase.procedure.remote.dispatcher.delay.msec": "5",
    # A connection that its client keeps for later is not an idle one.
    "hbase.thrift.server.socket.read.timeout": "0",
}
_ZOOKEEPER = "org.apache.hadoop.hbase.zookeeper.HQuorumPeer"
_MASTER = "org.apache.hadoop.hbase.master.HMaster"
_REGION_SERVER = "org.apache.hadoop.hbase.regionserver.HRegionServer"
_THRIFT2 = "org.apache.hadoop.hbase.thrift2.ThriftServer"

Report = Callable[[str], None]


def quiet(_: str) -> None:
    """Nobody wants to know."""


class DevelopmentHbase:
    """Running servers, as `servers.json` in their directory describes them: any process may `attach` to them."""

    def __init__(self, directory: Path, state: Mapping[str, object]) -> None:
        self.directory = directory
        self.zookeeper = str(state["zookeeper"])
        #: Thrift 2, which Viewtide speaks, and Thrift 1, which happybase and most others do (only in one JVM).
        self.thrift = _strings(state["thrift"])
        self.thrift1 = _strings(state["thrift1"])
        commands, pids = state["commands"], state["pids"]
        assert isinstance(commands, dict) and isinstance(pids, dict)
        self._commands: dict[str, list[str]] = commands
        self.pids: dict[str, int] = pids

    @classmethod
    def attach(cls, directory: Path) -> DevelopmentHbase:
        try:
            state = json.loads((directory / _STATE).read_text())
        except FileNotFoundError:
            raise OperationalError(f"no HBase was started in {directory}", hint="start one there first") from None
        return cls(directory, state)

    @property
    def alive(self) -> bool:
        return bool(self.pids) and not self.dead

    @property
    def dead(self) -> list[str]:
        """Those of `pids` that have ended by themselves."""
        return [name for name, pid in self.pids.items() if not _is_alive(pid)]

    def region_server_of(self, table: str) -> str:
        """Which one of `pids` has a table, or its first region."""
        port = self.admin("where", table)[0]
        option = f"-D{_REGION_PORT}={port}"
        return next(name for name, command in self._commands.items() if option in command)

    def region_servers(self) -> list[str]:
        """Those that ZooKeeper takes for alive, by their names there."""
        zookeeper = ZooKeeper(self.zookeeper, SESSION_MS)
        zookeeper.start()
        try:
            return zookeeper.children("/hbase/rs")
        finally:
            zookeeper.stop()

    def kill(self, name: str) -> None:
        """SIGKILL to one of `pids`: it is gone when this returns."""
        _kill(self.pids.pop(name))
        self._save()

    def revive(self, name: str) -> None:
        """Start it again. It does not wait until the server is ready: whoever needs it does."""
        self.pids[name] = _spawn(self._commands[name], self.directory / f"{name}.log")
        self._save()

    def stop(self) -> None:
        """All of it, at once: asked politely, HBase takes up to 20 s. Nothing that was acknowledged is lost."""
        for name in list(self.pids):
            self.kill(name)
        (self.directory / _STATE).unlink(missing_ok=True)

    def admin(self, *words: str) -> list[str]:
        """`split TABLE HEX`, `move TABLE`, `flush TABLE`, `compact TABLE`, `where TABLE`, `servers` one after another.

        The last two answer with ports of region servers.
        """
        command = [*_java(self.directory, 128), "Launcher", "-", "admin", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=READY_S_MAX, check=False)
        if done.returncode:
            raise OperationalError(f"HBase refused {' '.join(words)}: {done.stderr[-2_000:]}")
        # Between lines of the log.
        return [line for line in done.stdout.splitlines() if line.isdigit()]

    def _save(self) -> None:
        _save(self, self._commands)


def start(
    directory: Path,
    *,
    region_servers: int = 1,
    separate: bool = False,
    session_ms: int = SESSION_MS,
    heap_mb: int = HEAP_MB,
    guard: Path | None = None,
    only_zookeeper: bool = False,
    report: Report = quiet,
) -> DevelopmentHbase:
    """Start HBase with its data in `directory`, and wait until it answers. What was in there is there again.

    `guard`: a file that its users keep a shared lock on; without one it runs until `stop`. `only_zookeeper`: for a
    cluster that keeps its rows elsewhere.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.resolve()
    if _running_in(directory):
        raise OperationalError(
            f"HBase runs in {directory} already", hint="somebody else has just started it: try again"
        )
    install(report)
    zookeeper, first, second, third, *regions = _free_ports(4 + region_servers)
    # In separate processes it is that of region servers: nobody waits for the others to be missed.
    _configure(directory, zookeeper, SESSION_MS if separate else session_ms, separate)
    held = str(guard) if guard is not None else "-"
    thrift2, thrift1 = [first], [third]
    if only_zookeeper:
        commands = {"zookeeper": _separate(directory, held, heap_mb, (), session_ms, ())["zookeeper"]}
        thrift2, thrift1 = [], []
    elif separate:
        commands = _separate(directory, held, heap_mb, regions, session_ms, (first, second))
        thrift2, thrift1 = [first, second], []
    else:
        words = ["Launcher", held, "together", str(region_servers), str(third), str(first)]
        commands = {"hbase": [*_java(directory, heap_mb), *words]}
    state = {
        "zookeeper": f"127.0.0.1:{zookeeper}",
        "thrift": [f"127.0.0.1:{port}" for port in thrift2],
        "thrift1": [f"127.0.0.1:{port}" for port in thrift1],
        "commands": commands,
        "pids": {},
    }
    hbase = DevelopmentHbase(directory, state)
    try:
        for name in commands:
            report(f"starting {name}")
            hbase.revive(name)
            if name == "zookeeper":
                _await_port(zookeeper, hbase)
        if not only_zookeeper:
            _await_ready(hbase, report)
    except BaseException:
        hbase.stop()
        raise
    return hbase


@contextmanager
def running(
    directory: Path, *, separate: bool = False, session_ms: int = SESSION_MS, only_zookeeper: bool = False
) -> Iterator[DevelopmentHbase]:
    """Servers of one's own, which end with the block, and also when this process is killed."""
    directory.mkdir(parents=True, exist_ok=True)
    regions = REGION_SERVERS_SEPARATE if separate else 1
    with _holding(directory / _GUARD) as guard:
        hbase = start(
            directory,
            separate=separate,
            region_servers=regions,
            session_ms=session_ms,
            guard=guard,
            only_zookeeper=only_zookeeper,
        )
        try:
            yield hbase
        finally:
            hbase.stop()


@contextmanager
def shared(directory: Path) -> Iterator[DevelopmentHbase]:
    """Servers that several processes use at once: the first one starts them, they end by themselves after the last.

    The guard is a lock of the kernel, so it counts right whichever way a process ends.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _holding(directory / _GUARD) as guard:
        with open(directory / "starting", "w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            hbase = _running_in(directory) or start(directory, region_servers=2, guard=guard)
        yield hbase


def had_servers(directory: Path) -> bool:
    """Whether some were started there once."""
    return (directory / "conf" / _SITE_FILE).exists()


def install(report: Report = quiet) -> Path:
    """The folder with `lib/` and `classes/`, made if it is missing. One process makes it, the others wait."""
    folder = _cache() / f"hbase-{_digest()}"
    if folder.exists():
        return folder
    java, maven, compiler = (_program(name) for name in ("java", "mvn", "javac"))
    assert java
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            made = folder.with_suffix(".part")
            shutil.rmtree(made, ignore_errors=True)
            (made / "classes").mkdir(parents=True)
            report("fetching HBase with Maven (about 90 MB, once)")
            lib = made / "lib"
            copy = ["-B", "-q", "-f", str(_SOURCES / "pom.xml"), COPY_GOAL, "-DincludeScope=runtime"]
            _run([maven, *copy, f"-DoutputDirectory={lib}"], made, "Maven could not fetch HBase")
            # Of a file of its own folder: the sources may be links into a tree that nobody may write to.
            shutil.copy(_SOURCES / "Launcher.java", made / "Launcher.java")
            compile_it = [compiler, "-nowarn", "-d", str(made / "classes"), "-cp", f"{lib}/*"]
            _run([*compile_it, str(made / "Launcher.java")], made, "the launcher could not be compiled")
            made.rename(folder)
    return folder


# Users of shared servers


@contextmanager
def _holding(guard: Path) -> Iterator[Path]:
    """A shared POSIX lock, which the servers look for. Closing any other handle of the file would give it back."""
    with open(guard, "a+") as file:
        fcntl.lockf(file, fcntl.LOCK_SH, 1)
        yield guard.resolve()


def _running_in(directory: Path) -> DevelopmentHbase | None:
    with suppress(OperationalError):
        hbase = DevelopmentHbase.attach(directory)
        if hbase.alive:
            return hbase
    return None


# Starting


def _configure(directory: Path, zookeeper_port: int, session_ms: int, separate: bool) -> None:
    site = _SITE | {
        "hbase.rootdir": f"file://{directory}/{HBASE_DATA}",
        "hbase.tmp.dir": f"{directory}/tmp",
        "hbase.zookeeper.property.dataDir": f"{directory}/zookeeper",
        "hbase.zookeeper.property.clientPort": str(zookeeper_port),
        "hbase.zookeeper.property.clientPortAddress": "127.0.0.1",
        "hbase.zookeeper.property.tickTime": str(TICK_MS),
        "hbase.zookeeper.property.maxSessionTimeout": str(SESSION_MS_MAX),
        "zookeeper.session.timeout": str(session_ms),
        "hbase.cluster.distributed": "true" if separate else "false",
    }
    entries = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in site.items()
    )
    conf = directory / "conf"
    conf.mkdir(exist_ok=True)
    (conf / _SITE_FILE).write_text(f"<configuration>\n{entries}</configuration>\n")
    (conf / "log4j2.properties").write_text(_LOGGING)


def _separate(
    directory: Path, guard: str, heap_mb: int, regions: Sequence[int], session_ms: int, thrift2: Sequence[int]
) -> dict[str, list[str]]:
    """One command per daemon, in the order in which they are started. Thrift 1 is for other clients than Viewtide."""

    def alone(mb: int, *words: str) -> list[str]:
        return [*_java(directory, mb), "Launcher", guard, "alone", *words]

    return {
        "zookeeper": alone(128, _ZOOKEEPER),
        "master": alone(256, _MASTER, "start"),
        **{
            f"region-{n}": alone(
                heap_mb // 2,
                _REGION_SERVER,
                f"-Dzookeeper.session.timeout={session_ms}",
                f"-D{_REGION_PORT}={port}",
                "start",
            )
            for n, port in enumerate(regions, 1)
        },
        **{
            f"thrift-{n}": alone(192, _THRIFT2, "-p", str(port), "-b", "127.0.0.1", "start")
            for n, port in enumerate(thrift2, 1)
        },
    }


def _java(directory: Path, heap_mb: int) -> list[str]:
    installed = install()
    return [
        _program("java"),
        f"-Xmx{heap_mb}m",
        *_JAVA_OPTIONS,
        f"-Dlog4j2.configurationFile=file:{directory}/conf/log4j2.properties",
        "-cp",
        f"{directory}/conf:{installed}/classes:{installed}/lib/*",
    ]


def _spawn(command: list[str], log: Path) -> int:
    with open(log, "ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            # Ctrl-C is for whoever started it.
            start_new_session=True,
        )
    _children[child.pid] = child
    return child.pid


#: Those that this process started, so that it can take their exit status from the system.
_children: dict[int, subprocess.Popen[bytes]] = {}


def _is_alive(pid: int) -> bool:
    """Whether the process with this number is one that was started here: numbers are used again, after a reboot too."""
    if pid in _children:
        return _children[pid].poll() is None
    try:
        return b"\0Launcher\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _kill(pid: int) -> None:
    child = _children.pop(pid, None)
    if child is not None:
        child.kill()
        child.wait()
        return
    if _is_alive(pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _until(lambda: not _is_alive(pid), f"process {pid} does not end")


def _await_port(port: int, hbase: DevelopmentHbase) -> None:
    def answers() -> bool:
        _check_alive(hbase)
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    _until(answers, f"nothing answers at port {port}; see {hbase.directory}")


def _await_ready(hbase: DevelopmentHbase, report: Report) -> None:
    """The ports open seconds before the servers can do anything: ready is what has stored and found a row."""
    report("waiting for HBase")
    client = Hbase(hbase.thrift, patience_ms=0, call_ms=10_000)
    mark = str(time.time_ns()).encode()
    row = RowOf(b"ready", [Value(b"f", b"q", 1, mark)])

    def works() -> bool:
        _check_alive(hbase)
        with suppress(OperationalError):
            if not client.table_exists(_READY_TABLE):
                client.create_table(_READY_TABLE, [(b"f", 1)])
            client.put(_READY_TABLE, [row])
            found = client.get(_READY_TABLE, b"ready")
            return found is not None and found.values[0].value == mark
        return False

    try:
        _until(works, f"HBase does not become ready; see {hbase.directory}")
    finally:
        client.close()
    for endpoint in (*hbase.thrift, *hbase.thrift1):
        _await_port(int(endpoint.rpartition(":")[2]), hbase)


def _check_alive(hbase: DevelopmentHbase) -> None:
    for name, pid in hbase.pids.items():
        if not _is_alive(pid):
            log = hbase.directory / f"{name}.log"
            end = log.read_text(errors="replace")[-2_000:]
            status = _children[pid].returncode if pid in _children else "unknown"
            raise _Died(f"{name} of HBase ended while it was started, status {status}; the end of {log}:\n{end}")


class _Died(Exception):
    """Not an OperationalError, which a caller that waits would pass over."""


def _until(condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + READY_S_MAX
    try:
        while not condition():
            if time.monotonic() > deadline:
                raise OperationalError(failure)
            time.sleep(0.05)
    except _Died as died:
        raise OperationalError(str(died)) from None


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on. Somebody may take one before the server does: then its start fails and says so."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _save(hbase: DevelopmentHbase, commands: Mapping[str, list[str]]) -> None:
    state = {
        "zookeeper": hbase.zookeeper,
        "thrift": hbase.thrift,
        "thrift1": hbase.thrift1,
        "commands": commands,
        "pids": hbase.pids,
    }
    part = hbase.directory / f"{_STATE}.part"
    part.write_text(json.dumps(state, indent=1))
    part.rename(hbase.directory / _STATE)


# The cache


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "viewtide"


def _digest() -> str:
    sources = [(_SOURCES / name).read_bytes() for name in ("pom.xml", "Launcher.java")]
    return hashlib.sha256(b"\0".join(sources)).hexdigest()[:16]


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise OperationalError(
            f"{name} is missing, and HBase needs it",
            hint="install a JDK (17 or newer) and Maven; Debian: apt-get install openjdk-17-jdk-headless maven",
        )
    return found


def _run(command: list[str], cwd: Path, failure: str) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=RESOLVE_S_MAX, check=False)
    if done.returncode:
        raise OperationalError(f"{failure}: {(done.stdout + done.stderr)[-2_000:]}", hint="is there a network?")


def _strings(value: object) -> tuple[str, ...]:
    assert isinstance(value, (list, tuple))
    return tuple(map(str, value))
