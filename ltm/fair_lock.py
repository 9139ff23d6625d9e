"""A lock that two threads take in turns.

Python's own lock may be taken again and again by the thread that just released it, while another one waits: a
checkpoint that writes slice after slice would keep the writers out. Here whoever waits stands in a turnstile, and
nobody passes it twice before the one inside has had the lock.

Ctrl-C can come at any moment, also right after the lock was taken: then it is let go again. That is why the inner lock
is one that knows its owner.
"""

from __future__ import annotations

import threading


class FairLock:
    __slots__ = ("_inside", "_turnstile")

    def __init__(self) -> None:
        self._turnstile = threading.Lock()
        self._inside = threading.RLock()

    @property
    def owned(self) -> bool:
        """Whether the calling thread has it."""
        return self._inside._is_owned()  # type: ignore[attr-defined, no-any-return]  # as threading.Condition asks it

    def __enter__(self) -> None:
        try:
            with self._turnstile:
                self._inside.acquire()
        except BaseException:
            self.release_if_owned()
            raise

    #: Without a `with` block.
    acquire = __enter__

    def __exit__(self, *_: object) -> None:
        self._inside.release()

    def try_acquire(self) -> bool:
        """Take the lock only if nobody has it and nobody waits for it."""
        if not self._turnstile.acquire(blocking=False):
            return False
        try:
            return self._inside.acquire(blocking=False)
        finally:
            self._turnstile.release()

    def release(self) -> None:
        self._inside.release()

    def release_if_owned(self) -> None:
        if self.owned:
            self._inside.release()
