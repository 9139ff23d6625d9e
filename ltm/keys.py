"""Who may talk to whom: a pair of CURVE keys for each process, and a list of the public keys that are allowed.

A key file (mode 0600, in a directory of mode 0700; one that others can read is refused):

    # The key of ltm-1. Whoever can read this file can act as ltm-1.
    name ltm-1
    role ltm
    public 7c0e... (64 hexadecimal digits)
    secret 91ab...

An allow-list (no secret, but only its owner may write it) has a line for each key: public key, name, role. One name may
have several keys: a rotated one stays allowed until it is revoked. Hexadecimal, because ZeroMQ's own notation is full
of characters that shells and TOML take for theirs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..changetables.errors import InterfaceError, OperationalError

CLIENT, LTM, VIEW_MANAGER, ADMIN = "client", "ltm", "view-manager", "admin"
#: What a key can be for.
ROLES = (CLIENT, LTM, VIEW_MANAGER, ADMIN)
#: Who talks without keys, on this machine; and whom this process chose to connect to by its public key.
LOCAL, SERVER = "local", "server"

#: A key file and an allow-list of thousands of keys are smaller. Nothing larger is read.
FILE_BYTES_MAX = 2**20
#: The allow-list is looked at again after this long: a revoked key is refused at the latest then.
LOOK_AGAIN_MS = 500

_KEY = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FIELDS = ("name", "role", "public", "secret")


class Identity(NamedTuple):
    """Who a message is from. By its key and the allow-list; without keys, as it says itself, with the role LOCAL."""

    name: str
    role: str


class Keys(NamedTuple):
    """One process's own pair of keys. Never print it: `secret` is in it."""

    name: str
    role: str
    public: str
    secret: str

    def __repr__(self) -> str:
        return f"Keys({self.name!r}, {self.role!r}, {self.public!r})"

    def save(self, path: Path, *, replace: bool = False) -> None:
        """Makes the directory if it is missing. A file that is there already is overwritten only if that is meant."""
        check_identity(self.name, self.role)
        _make_directory(path.parent)
        _check_directory(path.parent)
        fields = "".join(f"{field} {getattr(self, field)}\n" for field in _FIELDS)
        text = f"# The key of {self.name}. Whoever can read this file can act as {self.name}.\n{fields}"
        if path.exists() and not replace:
            raise InterfaceError(f"there is a key in {path} already", hint="rotate it, or choose another name")
        _write_whole(path, text)

    @classmethod
    def load(cls, path: Path) -> Keys:
        text = _read_guarded(path, others_may=0, what="key file")
        found = dict(line.split(" ", 1) for line in _lines(text) if " " in line)
        if sorted(found) != sorted(_FIELDS):
            raise OperationalError(
                f"{path} is no key file", hint="make one with: viewtide keys new NAME --role ROLE --dir DIR"
            )
        keys = cls(*[found[field] for field in _FIELDS])
        check_identity(keys.name, keys.role)
        if not _KEY.fullmatch(keys.public) or not _KEY.fullmatch(keys.secret):
            raise OperationalError(f"a key in {path} is damaged: a key has 64 hexadecimal digits")
        return keys


class Allowed(NamedTuple):
    """One line of an allow-list."""

    public: str
    name: str
    role: str


class AllowList:
    """The public keys that may connect. `look` reads the file again when it has changed: no restart is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: What is wrong with the file as it is now: the list is still that of before.
        self.trouble = ""
        self._entries: dict[str, Allowed] = {}
        self._found: dict[str, Identity] = {}
        self._version: tuple[int, int, int] | None = None
        self._look_at = 0.0
        self._read()

    @classmethod
    def for_server(cls, path: Path) -> AllowList:
        """For a process that starts. It is refused without the file, whose name may be wrong: nobody could connect.
        Where the file vanishes later nobody is allowed until it is there again."""
        try:
            path.stat()
        except OSError as error:
            raise OperationalError(
                f"the allow-list {path} cannot be read: {error.strerror}",
                hint="check its name; `viewtide keys new ... --dir DIR` puts each key on the list DIR/allowed",
            ) from error
        return cls(path)

    def find(self, public: str) -> Identity | None:
        return self._found.get(public)

    def entries(self) -> tuple[Allowed, ...]:
        return tuple(self._entries.values())

    def look(self) -> bool:
        """Cheap: to be called all the time. A file that makes no sense leaves the list as it was: False, once."""
        now = time.monotonic()
        if now < self._look_at:
            return True
        self._look_at = now + LOOK_AGAIN_MS / 1_000
        version = _version_of(self.path)
        if version == self._version:
            return True
        try:
            self._read()
        except OperationalError as error:
            self._version, self.trouble = version, str(error)
            return False
        return True

    def add(self, entry: Allowed) -> None:
        check_identity(entry.name, entry.role)
        if not _KEY.fullmatch(entry.public):
            raise InterfaceError(f"{entry.public!r} is no public key", hint="a key has 64 hexadecimal digits")
        with self._changing():
            self._write({**self._entries, entry.public: entry})

    def revoke(self, public: str) -> None:
        with self._changing():
            self._write({key: entry for key, entry in self._entries.items() if key != public})

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Two who change the list at the same time do so one after the other, and neither change is lost."""
        _make_directory(self.path.parent)
        descriptor = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._read()
            yield
        finally:
            os.close(descriptor)

    def _read(self) -> None:
        version = _version_of(self.path)
        entries = {}
        if version is not None:
            text = _read_guarded(self.path, others_may=stat.S_IRGRP | stat.S_IROTH, what="allow-list")
            for number, line in enumerate(text.splitlines(), 1):
                if line.strip() and not line.startswith("#"):
                    entry = _entry(line, f"{self.path}, line {number}")
                    entries[entry.public] = entry
        self._take(entries, version)

    def _write(self, entries: dict[str, Allowed]) -> None:
        lines = "".join(f"{entry.public} {entry.name} {entry.role}\n" for entry in entries.values())
        _write_whole(self.path, f"# Who may connect: public key, name, role. Changes count at once.\n{lines}")
        self._take(entries, _version_of(self.path))

    def _take(self, entries: dict[str, Allowed], version: tuple[int, int, int] | None) -> None:
        self._entries, self._version, self.trouble = entries, version, ""
        self._found = {entry.public: Identity(entry.name, entry.role) for entry in entries.values()}


def check_identity(name: str, role: str) -> None:
    if not _NAME.fullmatch(name):
        raise InterfaceError(
            f"{name!r} is no name for a key", hint="up to 64 letters, digits, dots, dashes and underscores"
        )
    if role not in ROLES:
        raise InterfaceError(f"there is no role {role!r}", hint=f"roles are {', '.join(ROLES)}")


def _entry(line: str, where: str) -> Allowed:
    words = line.split()
    if len(words) != 3 or not _KEY.fullmatch(words[0]):
        raise OperationalError(f"{where}: not a public key, a name and a role")
    try:
        check_identity(words[1], words[2])
    except InterfaceError as error:
        raise OperationalError(f"{where}: {error.message}", hint=error.hint) from None
    return Allowed(*words)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _version_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # Not the time of the last write: a change of the mode counts, too.
    return found.st_ctime_ns, found.st_size, found.st_ino


def _read_guarded(path: Path, *, others_may: int, what: str) -> str:
    """The text of a file, if nobody else has rights on it beyond `others_may`."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_mode & 0o077 & ~others_may:
                raise OperationalError(
                    f"others can use the {what} {path}: its mode is {stat.S_IMODE(found.st_mode):04o}",
                    hint=f"chmod {0o600 | others_may:04o} {path}; if somebody may have read a secret key, rotate it",
                )
            if found.st_uid not in (os.geteuid(), 0):
                raise OperationalError(f"the {what} {path} belongs to somebody else", hint="use one of your own")
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise OperationalError(f"the {what} {path} cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX or not data.isascii():
        raise OperationalError(f"{path} is no {what}")
    return data.decode("ascii")


def _write_whole(path: Path, text: str) -> None:
    """All or nothing: whoever reads meanwhile sees the old file or the new one."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _make_directory(directory: Path) -> None:
    # Not those of Path, which raise for a name that there cannot be: it is told below.
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise OperationalError(f"{directory} is a file", hint="keys are in a directory: choose another path")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OperationalError(
            f"cannot create {directory}: {error.strerror}", hint="choose another directory"
        ) from error


def _check_directory(directory: Path) -> None:
    mode = directory.stat().st_mode
    if mode & 0o077:
        raise OperationalError(
            f"others can use the directory {directory}: its mode is {stat.S_IMODE(mode):04o}",
            hint=f"chmod 0700 {directory}, or keep keys in a directory of their own",
        )
