"""What a user says with `.option(name, value)`: all values are text."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from ..changetables.errors import InterfaceError
from ..changetables.evaluators.spark_session import require_spark
from ..coordinator.timestamps import MS_SHIFT
from ..database import Database, connect
from ..durations import milliseconds
from ..names import close_to
from ..stored import reached
from ..targets import MEMORY, check_options, scheme_of

#: Parts that a table is divided into, unless told otherwise: several for each core, because they are not of one size.
PARTITIONS = 16
PARTITIONS_MAX = 10_000
#: How long what is read is kept readable after the job was planned, or a part of it began.
LEASE = "15m"

#: What Spark makes of a token that it is given as a value. All of its commit_ts is before it, as for `changes(since=)`.
_TOKEN = re.compile(r"Token\(commit_ts=([0-9]{1,19}), tx_id=\([0-9]{1,19}, [0-9]{1,19}\)\)")

#: As `since`: from the moment on at which it is read.
NOW = -1

_NAMES = (
    "path", "url", "table", "view", "as_of", "since", "columns", "partitions", "lease", "pushdown",
    "keys", "server_key", "insecure",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """`name` is that of a table or, with `is_view`, of a view. `target`: a directory or a url."""

    target: str
    name: str
    is_view: bool = False
    as_of: int | None = None
    since: int | None = None
    columns: tuple[str, ...] = ()
    partitions: int = PARTITIONS
    lease_s: float = milliseconds(LEASE) / 1000
    #: None: where it is safe.
    pushdown: bool | None = None
    keys: str | None = None
    server_key: str = ""
    insecure: bool = False

    def __post_init__(self) -> None:
        scheme = scheme_of(self.target)
        check_options(self.target, scheme, {}, keys=self.keys, server_key=self.server_key, insecure=self.insecure)

    @property
    def directory(self) -> Path | None:
        """None: a served node or a cluster."""
        return None if "://" in self.target else Path(self.target)

    @property
    def is_cluster(self) -> bool:
        return self.target.startswith("zk://")

    def open(self) -> AbstractContextManager[Database]:
        """The database, through whoever has it open; one that nobody has open is opened."""
        directory = self.directory
        if directory is not None:
            return reached(directory)
        return connect(self.target, keys=self.keys, server_key=self.server_key, insecure=self.insecure)


def options_from(given: Mapping[str, str]) -> Options:
    said = {name.lower(): value for name, value in given.items()}
    for name in said:
        # Spark hands over options of its own, too: only what looks like one of ours is a mistake.
        if name not in _NAMES and (hint := close_to(name, _NAMES)):
            raise InterfaceError(f"there is no option {name!r}", hint=hint)
    target = _one_of(said, "path", "url")
    if "path" in said:
        # Other processes may have other working directories.
        target = os.path.abspath(target)
        if "://" in said["path"]:
            raise InterfaceError(f"path={said['path']!r} is a url", hint="give it as url")
    elif "://" not in target:
        raise InterfaceError(f"url={target!r} is no url", hint="give a directory as path")
    return Options(
        target,
        _one_of(said, "table", "view"),
        "view" in said,
        _timestamp(said, "as_of"),
        _timestamp(said, "since"),
        tuple(name.strip() for name in said["columns"].split(",")) if said.get("columns") else (),
        _partitions(said.get("partitions", str(PARTITIONS))),
        milliseconds(said.get("lease", LEASE)) / 1000,
        _flag(said, "pushdown"),
        said.get("keys"),
        said.get("server_key", ""),
        bool(_flag(said, "insecure")),
    )


def load_options(target: str, table: str, keys: str | None, server_key: str, *, insecure: bool = False) -> Options:
    """Where the rows of files go that Spark reads, if it is there and can get them there."""
    require_spark()
    if target == MEMORY:
        raise InterfaceError("tasks of Spark do not reach a database in memory", hint="leave --spark out")
    if not scheme_of(target):
        target = os.path.abspath(target)
    return Options(target, table, keys=keys, server_key=server_key, insecure=insecure)


def _one_of(said: Mapping[str, str], first: str, second: str) -> str:
    found = [said[name] for name in (first, second) if said.get(name)]
    if len(found) != 1:
        raise InterfaceError(f"give {first} or {second}, one of them", hint=f'like .option("{first}", ...)')
    return found[0]


def _timestamp(said: Mapping[str, str], name: str) -> int | None:
    """A token, its commit_ts, or a time: then everything of its millisecond is before it."""
    text = said.get(name)
    if text is None:
        return None
    if text == "now" and name == "since":
        return NOW
    if text.isascii() and text.isdigit():
        return int(text)
    if token := _TOKEN.fullmatch(text):
        return int(token[1])
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InterfaceError(
            f"{name}={text!r} is no timestamp",
            hint="give a token, its commit_ts, or a time like 2026-01-31T12:00:00+00:00",
        ) from None
    if time.tzinfo is None:
        raise InterfaceError(f"{name}={text!r} has no time zone", hint="like 2026-01-31T12:00:00+00:00")
    return (int(time.timestamp() * 1000) + 1 << MS_SHIFT) - 1


def _flag(said: Mapping[str, str], name: str) -> bool | None:
    text = said.get(name, "").lower()
    if text not in ("", "true", "false"):
        raise InterfaceError(f"{name}={text!r} must be true or false")
    return text == "true" if text else None


def _partitions(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= PARTITIONS_MAX:
        raise InterfaceError(f"partitions={text!r} must be a number from 1 to {PARTITIONS_MAX}")
    return int(text)
