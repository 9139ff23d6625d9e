"""A file that is written in whole blocks, each write durable on return, past the system's page cache where it can be.

`O_DSYNC | O_DIRECT`: one call hands the blocks to the device and waits until they are on it. A write into the page
cache and an `fdatasync` after it take a quarter to a third more processor time, and have to get the interpreter's lock
back twice. Where a file system has no direct writes, or not of blocks of this size, the same calls go through the
cache.

The block in which a write ended is written again by the next one, with the same bytes in front, just as the page cache
would do it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from mmap import mmap
from pathlib import Path

#: What devices and file systems take directly, with very few exceptions; a page of memory is as large, or a multiple.
BLOCK_BYTES = 4096
#: A buffer that had to be longer is not kept.
KEPT_BUFFER_BYTES = 1 << 20

_DIRECT = getattr(os, "O_DIRECT", 0)


class BlockFile:
    """An open file with its next place to write. One thread writes; after a failure nobody does."""

    __slots__ = ("_buffer", "_fd", "_start", "_used_bytes", "_view")

    def __init__(self, path: Path, before: bytes = b"") -> None:
        """`before`: what is in the file in front of the first place to write."""
        self._used_bytes = len(before) % BLOCK_BYTES
        self._start = len(before) - self._used_bytes
        self._take_buffer(KEPT_BUFFER_BYTES, before[self._start :])
        self._fd = os.open(path, os.O_RDWR | os.O_DSYNC)
        try:
            _set_direct(self._fd, _DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                os.close(self._fd)
                raise

    def append(self, parts: Sequence[bytes], zeros_count: int) -> None:
        """Write the parts where the last call ended. So many zeros come behind them, and more up to the end of the
        block; the next call begins where the zeros do."""
        end = begin = self._used_bytes
        for part in parts:
            end += len(part)
        size = (end + zeros_count + BLOCK_BYTES - 1) & -BLOCK_BYTES
        if size > len(self._buffer):
            self._take_buffer(size, self._buffer[:begin])
        buffer = self._buffer
        buffer[begin:size] = b"".join((*parts, bytes(size - end)))
        try:
            written = os.pwrite(self._fd, self._view[:size], self._start)
        except OSError as error:
            self._go_through_cache(error)
            written = 0
        if written < size:
            self._write_rest(self._view[written:size], self._start + written)
        whole_bytes = end & -BLOCK_BYTES
        self._used_bytes = end - whole_bytes
        if whole_bytes:
            self._start += whole_bytes
            if size > KEPT_BUFFER_BYTES:
                self._take_buffer(KEPT_BUFFER_BYTES, buffer[whole_bytes:end])
            else:
                buffer[: end - whole_bytes] = buffer[whole_bytes:end]

    def _go_through_cache(self, error: OSError) -> None:
        """After a write that was refused because blocks have another size here: nothing was written. Else it fails."""
        if error.errno != errno.EINVAL or not fcntl.fcntl(self._fd, fcntl.F_GETFL) & _DIRECT:
            raise error
        _set_direct(self._fd, 0)

    def _write_rest(self, rest: memoryview, offset: int) -> None:
        while rest:
            written = os.pwrite(self._fd, rest, offset)
            rest, offset = rest[written:], offset + written

    def _take_buffer(self, size: int, content: bytes) -> None:
        # Memory of its own begins with a page, as direct writes want it.
        self._buffer = mmap(-1, size)
        self._buffer[: len(content)] = content
        self._view = memoryview(self._buffer)

    def close(self) -> None:
        os.close(self._fd)


def _set_direct(fd: int, direct: int) -> None:
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~_DIRECT | direct)
