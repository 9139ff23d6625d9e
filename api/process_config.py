"""The configuration of `viewtide ltm` and `viewtide view-manager`: a TOML file. Keys that nobody knows are refused."""

from __future__ import annotations

import ipaddress
import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from .changetables.errors import InterfaceError
from .ltm.addresses import parse_address

#: Shorter sessions end by a pause of the interpreter or of the servers, longer ones leave dead processes undetected.
SESSION_MS_MIN, SESSION_MS_MAX = 1_000, 60_000
LEVELS = ("debug", "info", "warning", "error")
LOCAL, HBASE = "local", "hbase"
LTM = "ltm"
ANY_PROCESSOR = -1
#: For a process that is to talk to other machines without keys: nothing else is possible in a cluster.
KEYS_HINT = "name its keys in [keys] of its configuration; `viewtide keys new` makes keys"
#: Keys that only LTMs make something of.
OF_LTMS = frozenset({"clients", "advertise_clients", "balance", "storage", "hbase", "history"})

Settings = TypeVar("Settings")


def _setting(text: str, default: object = MISSING) -> Any:
    """A key with its meaning; without a default it has to be given."""
    return field(default=default, metadata={"text": text})


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    hosts: str = _setting("The servers, and the path of this cluster below which all its nodes are: host:port,.../path")
    user: str = _setting("Only this user can write the nodes of the cluster (digest). Without, everybody can.", "")
    password_file: str = _setting("A file with the user's password that only its owner can read.", "")
    session_ms: int = _setting("A process that ZooKeeper has not heard of for so long is taken for gone.", 4_000)


@dataclass(frozen=True, slots=True)
class KeySettings:
    file: str = _setting("The key of this process, made by `viewtide keys new`. Needed beyond this machine.", "")
    allowed: str = _setting("The list of keys that are allowed. It is read again when it changes.", "")


@dataclass(frozen=True, slots=True)
class StorageSettings:
    kind: str = _setting("local: logs in a directory, rows in memory, all on one machine. hbase: both in HBase.", LOCAL)
    directory: str = _setting("For local: where the logs are, the same for all processes of the cluster.", "")


@dataclass(frozen=True, slots=True)
class HBaseSettings:
    thrift: tuple[str, ...] = _setting("Thrift servers of HBase, host:port each; when one fails, another is used.", ())
    namespace: str = _setting("The HBase namespace of this cluster's tables.", "viewtide")


@dataclass(frozen=True, slots=True)
class HistorySettings:
    seconds: int = _setting("Of LTMs: for so long `changes()` can be read again.", 3_600)
    megabytes: int = _setting("But not if it takes more memory than that; what is needed stays in any case.", 64)


_NO_KEYS, _USUAL_STORAGE, _NO_HBASE, _USUAL_HISTORY = (
    KeySettings(),
    StorageSettings(),
    HBaseSettings(),
    HistorySettings(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    name: str = _setting("The name of this process; every process of a cluster has its own.")
    zookeeper: ZooKeeperSettings
    listen: str = _setting("Where other processes reach this one. Port 0: one that is free.", "tcp://127.0.0.1:0")
    advertise: str = _setting("The address that the others are told, if it is not `listen`.", "")
    clients: str = _setting("Where clients are served; empty: nowhere.", "")
    advertise_clients: str = _setting("The address that clients are told, if it is not `clients`.", "")
    metrics: str = _setting("host:port of /metrics, /healthz and /readyz; empty: none.", "127.0.0.1:0")
    log_level: str = _setting("debug, info, warning or error.", "info")
    balance: bool = _setting("Of LTMs: who leads spreads key ranges by what LTMs have to do. The same for all.", False)
    processor: int = _setting("The processor that its work stays on, by number; -1: whichever is free.", ANY_PROCESSOR)
    keys: KeySettings = _NO_KEYS
    storage: StorageSettings = _USUAL_STORAGE
    hbase: HBaseSettings = _NO_HBASE
    history: HistorySettings = _USUAL_HISTORY

    def __post_init__(self) -> None:
        if not self.name or not self.name.replace("-", "").replace("_", "").isalnum() or len(self.name) > 60:
            raise InterfaceError(
                f"{self.name!r} cannot be the name of a process", hint="letters, digits, - and _, at most 60"
            )
        if self.log_level not in LEVELS:
            raise InterfaceError(f"log_level is {self.log_level!r}", hint=f"one of {', '.join(LEVELS)}")
        if not SESSION_MS_MIN <= self.zookeeper.session_ms <= SESSION_MS_MAX:
            raise InterfaceError(f"zookeeper.session_ms must be from {SESSION_MS_MIN} to {SESSION_MS_MAX}")
        if bool(self.keys.file) != bool(self.keys.allowed):
            raise InterfaceError("keys.file and keys.allowed need each other")
        if self.storage.kind not in (LOCAL, HBASE):
            raise InterfaceError(f"storage.kind is {self.storage.kind!r}", hint=f"{LOCAL} or {HBASE}")
        if self.storage.kind == HBASE and not self.hbase.thrift:
            raise InterfaceError("storage.kind is hbase, but hbase.thrift names no server")
        if self.history.seconds < 0 or self.history.megabytes < 0:
            raise InterfaceError("history.seconds and history.megabytes cannot be negative")
        _check_processor(self.processor)
        _check_told("listen", self.listen, "advertise", self.advertise)
        if self.clients:
            _check_told("clients", self.clients, "advertise_clients", self.advertise_clients)
        elif self.advertise_clients:
            raise InterfaceError("advertise_clients is given, and clients is empty: no clients are served")


def _check_processor(number: int) -> None:
    if number == ANY_PROCESSOR:
        return
    if not hasattr(os, "sched_getaffinity"):
        raise InterfaceError("processor is given, and this system lets no process choose", hint="leave it out")
    known = sorted(os.sched_getaffinity(0))
    if number not in known:
        raise InterfaceError(f"processor is {number}", hint=f"this process may use {', '.join(map(str, known))}")


def _check_told(key: str, address: str, other_key: str, other: str) -> None:
    """What is told to others is an address that they can connect to: `other`, or `address` where that is empty."""
    try:
        parse_address(address)
        told = parse_address(other or address)
    except InterfaceError as error:
        raise InterfaceError(f"{key} or {other_key}: {error.message}", hint=error.hint) from error
    if _is_everywhere(told.host):
        raise InterfaceError(
            f"nobody can connect to {other_key if other else key}: {told.text} is all interfaces of a machine",
            hint=f'name one that others reach: {other_key} = "tcp://HOST:PORT"',
        )


def _is_everywhere(host: str) -> bool:
    if host == "*":
        return True
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False  # a name, or the path of a socket


def load_config(path: Path) -> ProcessConfig:
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except OSError as error:
        raise InterfaceError(f"the configuration {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InterfaceError(f"the configuration {path} is not TOML: {error}") from error
    try:
        return _read(ProcessConfig, found, "")
    except InterfaceError as error:
        raise InterfaceError(f"{path}: {error.message}", hint=error.hint) from error


def _read(settings: type[Settings], found: Mapping[str, object], prefix: str) -> Settings:
    known = {each.name: each for each in fields(settings)}  # type: ignore[arg-type]
    for key in found:
        if key not in known:
            raise InterfaceError(f"unknown key {prefix}{key}", hint=f"the keys are {', '.join(known)}")
    hints = get_type_hints(settings)
    values = {}
    for name, each in known.items():
        if name in found:
            values[name] = _value(hints[name], found[name], prefix + name)
        elif each.default is MISSING:
            raise InterfaceError(f"{prefix}{name} is missing", hint=_text(each))
    return settings(**values)


def _value(kind: Any, value: object, key: str) -> object:
    if hasattr(kind, "__dataclass_fields__"):
        if not isinstance(value, dict):
            raise InterfaceError(f"{key} must be a table", hint=f"[{key}]")
        return _read(kind, value, f"{key}.")
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise InterfaceError(f"{key} must be true or false, not {value!r}")
    if kind is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise InterfaceError(f"{key} must be a whole number, not {value!r}")
    if kind is str:
        if isinstance(value, str):
            return value
        raise InterfaceError(f"{key} must be a string, not {value!r}")
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise InterfaceError(f"{key} must be a list of strings, not {value!r}")


def _text(each: Field[Any]) -> str:
    return cast(str, each.metadata.get("text", ""))


def example_config(role: str = LTM) -> str:
    """All keys that a process of this role takes, with their meanings and defaults, as a TOML file."""
    return "\n".join(_lines(ProcessConfig, role)) + "\n"


def _lines(settings: type, role: str) -> list[str]:
    hints = get_type_hints(settings)
    lines: list[str] = []
    tables: list[str] = []
    for each in fields(settings):
        if settings is ProcessConfig and each.name in OF_LTMS and role != LTM:
            continue
        if hasattr(hints[each.name], "__dataclass_fields__"):
            tables += ["", f"[{each.name}]", *_lines(hints[each.name], role)]
        else:
            lines += [f"# {_text(each)}", _line(each)]
    return lines + tables


def _line(each: Field[Any]) -> str:
    if each.default is MISSING:
        return f'{each.name} = "..."'
    if isinstance(each.default, tuple):
        return f"#{each.name} = []"
    if isinstance(each.default, bool):
        return f"#{each.name} = {str(each.default).lower()}"
    return f"#{each.name} = {each.default}" if isinstance(each.default, int) else f'#{each.name} = "{each.default}"'


def read_password(path: str) -> str:
    """The first line of a file that nobody but its owner can read."""
    place = Path(path)
    try:
        if place.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InterfaceError(f"others can read the password in {path}", hint=f"chmod 600 {path}")
        return place.read_text(encoding="utf-8").partition("\n")[0]
    except OSError as error:
        raise InterfaceError(f"the password in {path} cannot be read: {error.strerror}") from error
