"""Layers of versions that readers look into without the lock, while checkpoints move and free them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from viewtide.ltm.versions import Horizon, TableVersions

KEYS = [b"a", b"b"]
OLD, NEW = 5, 10


class Freed(dict[bytes, Any]):
    """A layer that becomes another one, and then is forgotten and freed, when somebody looks for the second key."""

    def __init__(self, rows: dict[bytes, Any], versions: TableVersions[bytes]) -> None:
        super().__init__(rows)
        self._versions = versions

    def get(self, key: bytes, default: object = None) -> Any:
        if key == KEYS[1] and self:
            versions = self._versions
            versions.dirty = {}
            for number in range(3):
                # Two checkpoints later it is forgotten: what it had is in memory again by then, loaded by somebody.
                versions.frozen = dict(self) if number == 0 else {b"z": (NEW, b"", None)}
                versions.checkpointed(b"z")
            versions.old = dict(self)
            self.clear()
        return super().get(key, default)

    def __getitem__(self, key: bytes) -> Any:
        self.get(key)
        return super().__getitem__(key)


READS: dict[str, Callable[[TableVersions[bytes]], object]] = {
    "at": lambda versions: [versions.at(key, NEW)[1] for key in KEYS],  # type: ignore[index]
    "each_at": lambda versions: versions.each_at(KEYS, NEW, False),
    "rows_at": lambda versions: [row for _, row in versions.rows_at(KEYS, NEW) or ()],
    "whole_at": lambda versions: versions.whole_at(KEYS, NEW),
}


@pytest.mark.parametrize("read", READS)
def test_a_layer_that_is_freed_while_somebody_reads_does_not_bring_back_what_is_below(read: str) -> None:
    versions: TableVersions[bytes] = TableVersions(1, Horizon(), bytes, bytes)
    versions.young = dict.fromkeys(KEYS, (OLD, b"old", None))
    versions.dirty = Freed(dict.fromkeys(KEYS, (NEW, b"new", None)), versions)
    assert READS[read](versions) == [b"new", b"new"]
    assert versions.freed_count == 3
