"""A cluster as its operator sees it: what ZooKeeper says of it, and commands to whoever leads."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, NamedTuple

from .changetables.branches import is_hidden
from .changetables.errors import Error, OperationalError, ProgrammingError, Unavailable
from .changetables.keys import table_range
from .changetables.literals import sql_name, value_of_text
from .changetables.rows import coerce
from .changetables.schema import Column
from .changetables.types import STR, Value
from .coordinator.cluster.directory import PROCESSES, Address
from .coordinator.cluster.process import Process
from .coordinator.cluster.zookeeper import NOBODY, Login, ZooKeeper
from .coordinator.vms.step_rows import STEPS
from .ltm.cluster.catalogs import Stored, tables_of
from .ltm.cluster.messages import CATALOG, LEADER, MAP, Done, MoveRange, Split
from .ltm.key_range import RangeMap
from .ltm.keys import ADMIN
from .ltm.tables import TableRows, Tables, ViewRows
from .ltm.transport import Hub
from .names import nearest

SESSION_MS = 4_000
#: A command is given up after this long: more than it takes to elect another leader.
COMMAND_S_MAX = 30.0
#: The same for keys that move: their owner waits for transactions that are under way there.
MOVE_S_MAX = 120.0
LOOK_AGAIN_S = 0.05


class Range(NamedTuple):
    """Keys that one log owns. `start` is as text, for people."""

    start: str
    log: str
    process: str
    #: Where they go to, "" if nowhere.
    moving_to: str


class ClusterStatus(NamedTuple):
    leader: str
    epoch: int
    catalog_version: int
    processes: dict[str, Address]
    ranges: tuple[Range, ...]


class ClusterClient:
    def __init__(self, hosts: str, login: Login = NOBODY, status: str = "the status of the cluster") -> None:
        """`status`: the command that shows it, for hints."""
        self._status = status
        self.zookeeper = ZooKeeper(hosts, SESSION_MS, login)
        self.zookeeper.start()

    def close(self) -> None:
        self.zookeeper.stop()

    def status(self) -> ClusterStatus:
        processes = {}
        for name in self.zookeeper.children(PROCESSES):
            data = self.zookeeper.read(f"{PROCESSES}/{name}")
            address = Address.unpack(data) if data is not None else None
            if address is not None:
                processes[name] = address
        leader = (self.zookeeper.read(LEADER) or b"").decode()
        tables, ranges = self.tables(), self.map()
        shown = tuple(
            Range(_shown(tables, start), log, ranges.process(log), _target(ranges, start))
            for start, log in zip(ranges.starts, ranges.logs, strict=True)
        )
        version = tables.catalog.version if tables is not None else 0
        return ClusterStatus(leader.partition(".")[0], ranges.epoch, version, processes, shown)

    def map(self) -> RangeMap:
        data = self.zookeeper.read(MAP)
        if data is None:
            raise OperationalError(f"there is no cluster at {self.zookeeper.hosts}{self.zookeeper.chroot}")
        return RangeMap.unpack(data)

    def tables(self) -> Tables | None:
        """Of the newest catalog that is open."""
        data = self.zookeeper.read(CATALOG)
        opened = [] if data is None else [entry for entry in Stored.unpack(data).entries if entry.ts]
        return tables_of(opened[-1].data) if opened else None

    def split(self, table: str, key: tuple[Value, ...]) -> None:
        """A range begins at the key, or at the table if there is none."""
        start, _ = self._bounds(table, key, ())
        self.command(Split(0, start))

    def move(self, table: str, start: tuple[Value, ...], stop: tuple[Value, ...], target: str) -> int:
        """The keys of a table from `start` up to before `stop` go to the LTM process `target`: it owns them when this
        returns, with the epoch of the map that says so."""
        ranges = self.map()
        log = next((log for log, host in ranges.hosts.items() if host.process == target), None)
        if log is None:
            raise ProgrammingError(f"{target} answers for no log", hint=f"{self._status} shows who does")
        self.command(MoveRange(0, *self._bounds(table, start, stop), log))
        give_up = time.monotonic() + MOVE_S_MAX
        while (ranges := self.map()).moves:
            if time.monotonic() > give_up:
                raise Unavailable(f"the keys are still on their way to {target}", hint=f"see: {self._status}")
            time.sleep(LOOK_AGAIN_S)
        return ranges.epoch

    def _bounds(self, table: str, start: tuple[Value, ...], stop: tuple[Value, ...]) -> tuple[bytes, bytes]:
        tables = self.tables()
        source = None if tables is None else (tables.by_name.get(table) or tables.views.get(table))
        if source is None:
            known = [] if tables is None else [*tables.by_name, *tables.views]
            names = [name for name in known if name != STEPS and not is_hidden(name)]
            raise ProgrammingError(f"there is no table or view {table!r} in this cluster", hint=nearest(table, names))
        low, high = table_range(source.table.id)
        return (_key(source, start) if start else low), (_key(source, stop) if stop else high)

    def command(self, command: Split | MoveRange) -> None:
        """To whoever leads. It raises what the leader refuses."""
        with self._asking() as process:
            answer = self._answer(process, command)
        if not isinstance(answer, Done):
            raise OperationalError(f"the leader answered {answer!r}")
        if answer.error:
            raise OperationalError(f"the leader refused: {answer.error}")  # with the hint that it has

    def _answer(self, process: Process, command: Split | MoveRange) -> Any:
        future = process.ask("leader", command)
        try:
            return future.result(COMMAND_S_MAX)
        except (TimeoutError, CancelledError):
            future.cancel()
            raise Unavailable("nobody who leads has answered", hint=f"see: {self._status}") from None

    @contextmanager
    def _asking(self) -> Iterator[Process]:
        """A process without machines, which the others can answer."""
        name = f"admin-{os.getpid()}-{secrets.token_hex(4)}"
        hub = Hub(name, listen="tcp://127.0.0.1:0")
        process = Process(name, Address(hub.address, ADMIN), (), hub, self.zookeeper, None, SESSION_MS)
        thread = threading.Thread(target=process.run, name=name, daemon=True)
        thread.start()
        try:
            yield process
        finally:
            process.stop()
            thread.join()
            hub.close()
            # The session goes on: without this, the others would go on looking for it.
            self.zookeeper.remove(f"{PROCESSES}/{name}")


def _key(source: TableRows | ViewRows, values: tuple[Value, ...]) -> bytes:
    keys = source.codec.keys if isinstance(source, TableRows) else source.plan.keys
    table = source.table
    names = [table.columns[position].name for position in table.key]
    types = [sql_name(type_) for type_, _ in keys.columns]
    named = names if len(names) == len(types) else [""] * len(types)  # of a view, hidden columns may follow
    hint = f"its key is ({', '.join(f'{name} {type_}'.strip() for name, type_ in zip(named, types, strict=True))})"
    shown = ", ".join(map(repr, values))
    try:
        given = [
            _given(value, Column(name, *column), f"{table.name}.{name}")
            for value, name, column in zip(values, named, keys.columns, strict=True)
        ]
        return keys.encode(tuple(given))
    except Error as error:
        raise ProgrammingError(f"({shown}) is no key of {table.name}: {error.message}", hint=hint) from error
    except ValueError as error:
        said = f"{len(values)} of {len(types)} values" if len(values) < len(types) else f"{len(values)} values"
        raise ProgrammingError(f"({shown}) is no key of {table.name}: {said}", hint=hint) from error


def _given(value: Value, column: Column, where: str) -> Value:
    """JSON has no dates and the like: they are texts, as in SQL."""
    text_stays = column.type.kind == STR.kind or not isinstance(value, str)
    return coerce(column, value if text_stays else value_of_text(str(value), column.type), where)


def _shown(tables: Tables | None, start: bytes) -> str:
    """A key as people write it: the table and the values of its key columns."""
    if not start:
        return "the beginning"
    if tables is not None:
        sources: list[TableRows | ViewRows] = [*tables.by_name.values(), *tables.views.values()]
        for source in sources:
            low, high = table_range(source.table.id)
            if low <= start < high:
                return source.table.name + ("" if start == low else f" {_values(source, start, low)}")
        for source in tables.views.values():
            for place, number in enumerate(source.view.partials, 2):
                low, high = table_range(number)
                if low <= start < high:
                    return f"{source.table.name} (partial rows {place})"
        for number, (source, entries) in tables.indexes.items():
            low, high = table_range(number)
            if low <= start < high:
                columns = ", ".join(source.table.columns[position].name for position in entries.index.columns)
                return f"index of {source.table.name} on {columns}" + ("" if start == low else f" {_hex(start, low)}")
        # Keys that went elsewhere end with their table.
        after = next((source.table.name for source in sources if table_range(source.table.id)[1] == start), "")
        if after:
            return f"after {after}"
    return "0x" + start.hex()


def _values(source: TableRows | ViewRows, start: bytes, low: bytes) -> str:
    keys = source.codec.keys if isinstance(source, TableRows) else source.plan.keys
    try:
        return ", ".join(map(repr, keys.decode(start)))
    except Error:  # only a part of a key, or one that was shortened
        return _hex(start, low)


def _hex(start: bytes, low: bytes) -> str:
    return f"0x{start[len(low) :].hex()}"


def _target(ranges: RangeMap, start: bytes) -> str:
    move = next((move for move in ranges.moves if move.touches(start, start + b"\0")), None)
    return "" if move is None else ranges.process(move.target)
