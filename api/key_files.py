"""`viewtide keys`: makes, lists, rotates and revokes the keys by which processes and clients know each other.

A directory holds `NAME.key` for every key that was made there, and `allowed`, the allow-list that servers are given.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TextIO

from .changetables.errors import InterfaceError, OperationalError
from .ltm.keys import Allowed, AllowList, Keys
from .ltm.transport import new_keys

ALLOWED = "allowed"


class KeyDirectory:
    def __init__(self, directory: Path, *, as_json: bool, out: TextIO) -> None:
        self._directory, self._as_json, self._out = directory, as_json, out

    def new(self, name: str, role: str) -> None:
        """A key, on the list at once."""
        if any(entry.name == name for entry in self._list().entries()):
            raise InterfaceError(f"{name} has a key already", hint=f"use: {self._command('rotate', name)}")
        keys = new_keys(name, role)
        keys.save(self._file(name))
        self._list().add(Allowed(keys.public, name, role))
        self._tell(keys, "made")

    def allow(self, name: str, role: str, public: str) -> None:
        """The public key of somebody who keeps the secret one to himself."""
        listed = next((entry for entry in self._list().entries() if entry.public == public.lower()), None)
        if listed is not None:
            raise InterfaceError(f"that key is allowed already, as {listed.name} ({listed.role})")
        entry = Allowed(public.lower(), name, role)
        self._list().add(entry)
        self._print({**entry._asdict(), "done": "allowed"}, f"{name} ({role}) may connect with {entry.public}")

    def rotate(self, name: str) -> None:
        """A new key. Those of before stay allowed until they are revoked: not everybody has the new one yet."""
        old = Keys.load(self._file(name))
        keys = new_keys(name, old.role)
        has_older = any(entry.name == name for entry in self._list().entries())
        # First the list: a process that starts with the new key must not be refused.
        self._list().add(Allowed(keys.public, name, keys.role))
        keys.save(self._file(name), replace=True)
        self._tell(keys, "rotated")
        if has_older and not self._as_json:
            print(f"older keys of {name} are allowed until: {self._command('revoke', name, '--old')}", file=self._out)

    def revoke(self, name_or_key: str, *, only_old: bool) -> None:
        """All keys of a name, or all but the newest, or one key. Their connections are refused at once."""
        entries = self._list().entries()
        found = [entry for entry in entries if name_or_key in (entry.name, entry.public)]
        if not found:
            raise InterfaceError(f"no key of {name_or_key} is allowed", hint=f"see: {self._command('list')}")
        if only_old:
            found = found[:-1]
        for entry in found:
            self._list().revoke(entry.public)
        text = "\n".join(f"revoked {entry.public} of {entry.name} ({entry.role})" for entry in found)
        self._print([entry._asdict() for entry in found], text or f"{name_or_key} has no older keys")

    def list(self) -> None:
        self._check_there()
        entries = self._list().entries()
        width = max((len(entry.name) for entry in entries), default=0)
        lines = [f"{entry.name:{width}}  {entry.role:12}  {entry.public}" for entry in entries]
        self._print([entry._asdict() for entry in entries], "\n".join(lines) or "nobody is allowed")

    def _command(self, *words: str) -> str:
        """Another command on this directory, so that it can be copied as it is."""
        return shlex.join(["viewtide", "keys", *words, "--dir", str(self._directory)])

    def _check_there(self) -> None:
        # Not those of Path, which raise for a name that there cannot be.
        if os.path.isdir(self._directory):
            return
        if os.path.exists(self._directory):
            raise OperationalError(f"{self._directory} is a file", hint="name the directory with the keys")
        raise OperationalError(
            f"there is no directory {self._directory}",
            hint=f"check its name; a first key makes it: {self._command('new', 'NAME', '--role', 'ROLE')}",
        )

    def _list(self) -> AllowList:
        return AllowList(self._directory / ALLOWED)

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.key"

    def _tell(self, keys: Keys, done: str) -> None:
        path = str(self._file(keys.name))
        told = {"name": keys.name, "role": keys.role, "public": keys.public, "file": path, "done": done}
        self._print(told, f"{done} the key of {keys.name} ({keys.role}): {path}\npublic {keys.public}")

    def _print(self, value: object, text: str) -> None:
        print(json.dumps(value) if self._as_json else text, file=self._out)
