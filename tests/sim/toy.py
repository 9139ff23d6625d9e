"""The scenario that proves the simulator: a counter on a primary and a backup, right and in several wrong variants.

Who is primary and who is backup stands in one node of ZooKeeper and changes by compare-and-set; its version is the
epoch. An increment counts once it is durable at the primary and, where there is one, at the backup. A backup takes the
place of a primary that is gone, which then gets no acknowledgement from it any more: that is the fencing. A primary
acts only after a compare-and-set of its own life: one that its former life left under way then fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias
from unittest.mock import patch

from . import zookeeper as zk
from .checkers import Checker
from .faults import Mix, Planned, Surroundings
from .process import NOTHING, Host, Outputs, WhenDurable
from .scenario import Built, Mutant, Scenario
from .trace import Event
from .world import World

REPLICAS = ("a", "b")
CLIENTS = ("client-1", "client-2", "client-3")
CONFIG, LIVE = "/config", "/live"
ZOOKEEPER = "zookeeper"

SESSION_MS = 1_500
TICK_MS = 100
RETRY_MS = 300
THINK_MS_MAX = 250
SAFETY_MS = 12_000
#: Clients go on for a while after the healing: what is broken must show.
WORKING_MS = SAFETY_MS + 3_000

Tx: TypeAlias = tuple[str, int]


class Increment(NamedTuple):
    tx: Tx


class Counted(NamedTuple):
    tx: Tx
    value: int


class Join(NamedTuple):
    """A replica without a role asks the primary for one."""


class Snapshot(NamedTuple):
    """Everything from the beginning; replaces what the backup has from earlier epochs."""

    epoch: int
    increments: tuple[Tx, ...]


class Append(NamedTuple):
    """What follows the first `length`."""

    epoch: int
    length: int
    increments: tuple[Tx, ...]


class Appended(NamedTuple):
    """Everything up to `length` is durable at the backup."""

    epoch: int
    length: int


class Config(NamedTuple):
    version: int
    primary: str
    backup: str


class Replica:
    def __init__(self, host: Host) -> None:
        self.name = host.name
        self._peer = next(name for name in REPLICAS if name != host.name)
        self._probe = host.probe
        self.increments: list[Tx] = []
        self._places: dict[Tx, int] = {}
        #: The epoch of the last snapshot taken from a primary.
        self._log_epoch = -1
        self._lsn = 0
        #: (lsn, how many increments the log holds with it), of records that are not durable yet.
        self._lengths: list[tuple[int, int]] = []
        self._durable_length = 0
        #: The highest epoch seen, from anywhere.
        self._epoch = -1
        self.config: Config | None = None
        self._live: tuple[str, ...] = ()
        self._claimed = False
        #: What this life last asked ZooKeeper to make of the config; "" if nothing is under way.
        self._proposed = ""
        self._peer_length: int | None = None
        self._peer_joins = False
        self._answers: dict[int, dict[str, None]] = {}
        self._connected = False
        self._requests: dict[int, str] = {}
        self._request = 0
        self._now_ms = 0
        self._persist: list[object] = []
        self._send: list[tuple[str, object] | WhenDurable] = []

    # The four inputs.

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        for record in disk:
            self._replay(record)
        self._lsn = len(disk)
        self._durable_length = len(self.increments)
        self._send.append((ZOOKEEPER, zk.Connect(SESSION_MS)))
        return self._outputs(((now_ms + TICK_MS, "tick"),))

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        match message:
            case Increment(tx):
                self._increment(sender, tx)
            case Snapshot(epoch, increments) if not self._is_fenced(epoch):
                self._take_snapshot(sender, epoch, increments)
            case Append(epoch, length, increments) if not self._is_fenced(epoch):
                self._take_append(sender, epoch, length, increments)
            case Appended(epoch, length) if epoch == self._epoch and self._is_primary:
                self._peer_length = max(self._peer_length or 0, length)
                self._answer()
            case Join() if self._is_primary:
                self._peer_joins = True
            case zk.Session(state, _):
                self._session(state)
            case zk.Answer():
                self._answered(message)
            case zk.Watched():
                self._look()
        return self._outputs()

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        while self._lengths and self._lengths[0][0] <= lsn:
            self._durable_length = self._lengths.pop(0)[1]
        if self._is_primary:
            self._replicate()
            self._answer()
        return self._outputs()

    def timer(self, token: object, now_ms: int) -> Outputs:
        if self._connected:
            self._look()
            self._act()
        if self._is_primary:
            self._replicate()
            self._answer()
        elif self.config is not None and self.name not in self.config[1:] and self.config.primary:
            self._send.append((self.config.primary, Join()))
        return self._outputs(((now_ms + TICK_MS, "tick"),))

    def _outputs(self, timers: tuple[tuple[int, object], ...] = ()) -> Outputs:
        if not self._persist and not self._send and not timers:
            return NOTHING
        outputs = Outputs(tuple(self._persist), tuple(self._send), timers)
        self._persist.clear()
        self._send.clear()
        return outputs

    # The log.

    def _replay(self, record: object) -> None:
        match record:
            case ("increment", (str() as client, int() as number)):
                self._append((client, number))
            case ("snapshot", int() as epoch, tuple() as increments):
                self._log_epoch = epoch
                self._replace(increments)

    def _append(self, tx: Tx) -> None:
        self.increments.append(tx)
        self._places[tx] = len(self.increments)

    def _replace(self, increments: Sequence[Tx]) -> None:
        self.increments = []
        self._places = {}
        for tx in increments:
            self._append(tx)

    def _write(self, record: object) -> None:
        self._persist.append(record)
        self._lsn += 1
        self._lengths.append((self._lsn, len(self.increments)))

    # The primary.

    @property
    def _is_primary(self) -> bool:
        config = self.config
        return self._claimed and config is not None and config.primary == self.name and config.version == self._epoch

    def _increment(self, client: str, tx: Tx) -> None:
        if not self._is_primary:
            return
        if not self._is_known(tx):
            self._append(tx)
            self._write(("increment", tx))
        self._answers.setdefault(self._places[tx], {})[client] = None
        self._answer()

    def _is_known(self, tx: Tx) -> bool:
        return tx in self._places

    def _committed_length(self) -> int:
        assert self.config is not None
        if self.config.backup or self._proposed.endswith(f",{self._peer}"):
            return min(self._durable_length, self._peer_length or 0)
        return self._durable_length

    def _answer(self) -> None:
        committed = self._committed_length()
        for place in [place for place in self._answers if place <= committed]:
            for client in self._answers.pop(place):
                self._probe("answer")
                self._send.append((client, Counted(self.increments[place - 1], place)))

    def _replicate(self) -> None:
        assert self.config is not None
        if not self.config.backup and not self._peer_joins:
            return
        durable = self._durable_length
        if self._peer_length is None:
            self._send.append((self._peer, Snapshot(self._epoch, tuple(self.increments[:durable]))))
        elif self._peer_length < durable:
            following = tuple(self.increments[self._peer_length : durable])
            self._send.append((self._peer, Append(self._epoch, self._peer_length, following)))

    # The backup.

    def _is_fenced(self, epoch: int) -> bool:
        """Also before it has read the config: its former life may have taken over."""
        return self.config is None or epoch < self._epoch

    def _take_snapshot(self, primary: str, epoch: int, increments: tuple[Tx, ...]) -> None:
        self._epoch = max(self._epoch, epoch)
        if epoch > self._log_epoch:
            self._probe("snapshot")
            self._log_epoch = epoch
            self._replace(increments)
            self._write(("snapshot", epoch, increments))
        else:
            self._extend(increments[len(self.increments) :])
        self._acknowledge(primary, Appended(epoch, len(increments)))

    def _take_append(self, primary: str, epoch: int, length: int, increments: tuple[Tx, ...]) -> None:
        self._epoch = max(self._epoch, epoch)
        if length > len(self.increments):
            return
        self._extend(increments[len(self.increments) - length :])
        self._acknowledge(primary, Appended(epoch, length + len(increments)))

    def _extend(self, increments: tuple[Tx, ...]) -> None:
        for tx in increments:
            self._append(tx)
            self._write(("increment", tx))

    def _acknowledge(self, primary: str, message: Appended) -> None:
        self._send.append(WhenDurable(self._lsn, primary, message))

    # Who is who.

    def _session(self, state: str) -> None:
        self._connected = state == zk.CONNECTED
        if state == zk.LOST:
            self._send.append((ZOOKEEPER, zk.Connect(SESSION_MS)))
        if self._connected:
            self._look()

    def _ask(self, what: str, make: type, *arguments: object) -> None:
        """One request of a sort at a time."""
        if what not in self._requests.values():
            self._request += 1
            self._requests[self._request] = what
            self._send.append((ZOOKEEPER, make(self._request, *arguments)))

    def _look(self) -> None:
        self._ask("create", zk.Create, f"{LIVE}/{self.name}", b"", True)
        self._ask("config", zk.Get, CONFIG, True)
        self._ask("live", zk.Children, LIVE, True)

    def _answered(self, answer: zk.Answer) -> None:
        what = self._requests.pop(answer.request, "")
        if what == "live" and not answer.error:
            assert isinstance(answer.value, tuple)
            self._live = answer.value
        elif what == "config" and not answer.error:
            assert isinstance(answer.value, bytes) and answer.stat is not None
            self._adopt(Config(answer.stat.version, *answer.value.decode().split(",")))
        elif what == "set" and not answer.error and self._proposed:
            assert answer.stat is not None
            self._claimed = True
            self._adopt(Config(answer.stat.version, *self._proposed.split(",")))
        elif what == "set" and answer.error == zk.BAD_VERSION:
            self._ask("config", zk.Get, CONFIG, True)

    def _adopt(self, config: Config) -> None:
        if self.config is not None and config.version <= self.config.version:
            return
        before = self.config
        self.config = config
        self._epoch = max(self._epoch, config.version)
        self._proposed = ""
        if before is None or before.primary != self.name or config.primary != self.name or before.backup:
            self._peer_length = None
        if config.primary != self.name:
            self._claimed = False
            self._answers.clear()
        if config.backup:
            self._peer_joins = False

    def _act(self) -> None:
        config = self.config
        if config is None:
            return
        if config.primary == self.name:
            if not self._claimed:
                self._propose(self.name, config.backup)
            elif config.backup and self._peer not in self._live:
                self._probe("drop backup")
                self._propose(self.name, "")
            elif self._proposed:
                self._propose(*self._proposed.split(","))
            elif not config.backup and self._peer_joins and (self._peer_length or -1) >= self._durable_length:
                self._probe("take backup")
                self._propose(self.name, self._peer)
        elif config.backup == self.name and config.primary not in self._live:
            self._probe("take over")
            self._propose(self.name, "")

    def _propose(self, primary: str, backup: str) -> None:
        assert self.config is not None
        if "set" not in self._requests.values():
            self._proposed = f"{primary},{backup}"
            self._ask("set", zk.Set, CONFIG, self._proposed.encode(), self.config.version)


class Client:
    """One increment after another, each repeated until it is answered."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._number = 0
        self._open = False
        self._target = 0
        self._end_ms = 0

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._end_ms = now_ms + WORKING_MS
        return Outputs(timers=((now_ms + self._host.random.randint(1, THINK_MS_MAX), "next"),))

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        assert isinstance(message, Counted)
        self._host.note("answer", message.tx, message.value)
        if message.tx != (self._host.name, self._number) or not self._open:
            return NOTHING
        self._open = False
        return Outputs(timers=((now_ms + self._host.random.randint(1, THINK_MS_MAX), "next"),))

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("a client writes nothing")

    def timer(self, token: object, now_ms: int) -> Outputs:
        if token == "next":
            if now_ms >= self._end_ms:
                self._host.note("done")
                return NOTHING
            self._number += 1
            self._open = True
        elif token != self._number or not self._open:
            return NOTHING
        else:
            self._target = 1 - self._target
        tx = (self._host.name, self._number)
        return Outputs(send=((REPLICAS[self._target], Increment(tx)),), timers=((now_ms + RETRY_MS, self._number),))


class ExactlyOnce(Checker):
    """An answered increment keeps its place, in the answers and in the log of who is primary at the end."""

    kinds = ("answer", "done")

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._places: dict[object, object] = {}
        self._holders: dict[object, object] = {}
        self._working = dict.fromkeys(CLIENTS)

    def observe(self, event: Event) -> None:
        if event.what == "done":
            self._working.pop(event.process, None)
            return
        tx, place = event.detail
        self.traffic["answers"] += 1
        if self._places.setdefault(tx, place) != place:
            raise self.violation(f"{tx} was answered with {self._places[tx]} and with {place}", tx)
        if self._holders.setdefault(place, tx) != tx:
            raise self.violation(
                f"{place} was answered to {self._holders[place]} and to {tx}", tx, self._holders[place]
            )

    def converged(self) -> str:
        if self._working:
            return f"{', '.join(self._working)} not done"
        logs = [replica.increments for replica in self._replicas()]
        if logs[0] != logs[1]:
            return f"logs of {len(logs[0])} and {len(logs[1])} increments differ"
        return ""

    def finish(self) -> None:
        log = self._replicas()[0].increments
        for tx, place in self._places.items():
            assert isinstance(place, int)
            if place > len(log) or log[place - 1] != tx:
                raise self.violation(f"{tx} was answered with {place} and is not there in the end", tx)
        if len(set(log)) != len(log):
            twice = next(tx for tx in log if log.count(tx) > 1)
            raise self.violation(f"{twice} was counted {log.count(twice)} times", twice)

    def _replicas(self) -> list[Replica]:
        found = [self._world.nodes[name].process for name in REPLICAS]
        return [replica for replica in found if isinstance(replica, Replica)]


CRASH_POINTS = ("answer", "snapshot", "take backup", "drop backup", "take over")


def build(world: World) -> Built:
    zookeeper = zk.ZooKeeper(world, ZOOKEEPER)
    zookeeper.ensure(LIVE)
    zookeeper.ensure(CONFIG, b"a,b")
    for name in REPLICAS:
        world.add(name, Replica)
    for name in CLIENTS:
        world.add(name, Client, disk=False)
    mix = Mix(per_second=2.0, crash_points=CRASH_POINTS, spared=CLIENTS)
    return Built(Surroundings(world, zookeeper, mix=mix), (ExactlyOnce(world),))


def _own_length(replica: Replica) -> int:
    return len(replica.increments)


def _own_durable_length(replica: Replica) -> int:
    return replica._durable_length


def _acknowledge_at_once(replica: Replica, primary: str, message: Appended) -> None:
    replica._send.append((primary, message))


def _propose_blindly(replica: Replica, primary: str, backup: str) -> None:
    if "set" not in replica._requests.values():
        replica._proposed = f"{primary},{backup}"
        replica._ask("set", zk.Set, CONFIG, replica._proposed.encode(), zk.ANY)


#: The directed scenario for what a drawn plan rarely does.
BACK_AT_EXPIRY = "toy-back-at-expiry"


def plan_back_at_expiry(around: Surroundings) -> tuple[Planned, ...]:
    """A replica crashes and is back soon after the session of its former life has expired: it means to go on as primary
    while the other means to take over, and with slow answers neither hears of the other in time."""
    random = around.world.streams["plan"]
    planned = [Planned(500_000, "zk_slow", (), SAFETY_MS * 1_000)]
    for second in range(1, SAFETY_MS // 1_000 - 1, 4):
        at_us = second * 1_000_000 + random.randint(0, 500_000)
        down_us = random.randint(SESSION_MS * 1_000, SESSION_MS * 2_000)
        planned.append(Planned(at_us, "crash", (random.choice(REPLICAS),), down_us))
    return tuple(planned)


MUTANTS = (
    Mutant("answer before durable", lambda: patch.object(Replica, "_committed_length", _own_length)),
    Mutant("backup acknowledges before durable", lambda: patch.object(Replica, "_acknowledge", _acknowledge_at_once)),
    Mutant(
        "answer without the backup",
        lambda: patch.object(Replica, "_committed_length", lambda self: self._durable_length),
    ),
    Mutant("no dedup of retries", lambda: patch.object(Replica, "_is_known", lambda self, tx: False)),
    Mutant("no fencing", lambda: patch.object(Replica, "_is_fenced", lambda self, epoch: False)),
    Mutant("no compare-and-set", lambda: patch.object(Replica, "_propose", _propose_blindly), scenario=BACK_AT_EXPIRY),
)

SCENARIO = Scenario(
    name="toy",
    summary="a counter on a primary and a backup: proves the simulator itself",
    build=build,
    safety_ms=SAFETY_MS,
    liveness_ms_max=30_000,
    mutants=MUTANTS,
    probes=CRASH_POINTS,
    crash_points=CRASH_POINTS,
    traffic_min={"answers": 60},
)

SCENARIO_BACK_AT_EXPIRY = Scenario(
    name=BACK_AT_EXPIRY,
    summary="a replica is back when the session of its former life has just expired",
    build=build,
    plan=plan_back_at_expiry,
    safety_ms=SAFETY_MS,
    liveness_ms_max=30_000,
)
