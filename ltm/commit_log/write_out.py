"""Tells the system to begin writing dirty pages of a file now, where it can be told (Linux).

`fdatasync` makes two trips to the device: the pages, then a flush of its cache. What is asked for here is the first of
them, and the caller goes on meanwhile. It is a hint: it waits for nothing and promises nothing, and `fdatasync`, which
has to follow, still finds every error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_SYNC_FILE_RANGE_WRITE = 2


def _find() -> Callable[[int, int, int], None]:
    # PyDLL keeps the interpreter's lock: the call takes 30 us, and a thread that gave the lock away in the middle of a
    # flush might get it back only milliseconds later.
    call = getattr(ctypes.PyDLL(None), "sync_file_range", None)
    if call is None:
        return lambda fd, offset, size: None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    call.restype = ctypes.c_int

    def begin_writing(fd: int, offset: int, size: int) -> None:
        call(fd, offset, size, _SYNC_FILE_RANGE_WRITE)

    return begin_writing


#: (fd, offset, bytes)
begin_writing = _find()
