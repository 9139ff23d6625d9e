"""The destination STORE: rows are written and loaded in threads, because both take long.

Writes have a thread of their own: whoever waits for rows does not wait for a checkpoint. The catalog that whoever asks
goes by comes with each request: a store that has a place for each table hears of a new one before its rows.

What fails is answered so, and asked again. Damage, and whatever nobody has thought of, ends the process: `fail`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from queue import SimpleQueue
from threading import Lock, Thread

from ...changetables.errors import Error
from ...ltm.cluster import on_store
from ...ltm.cluster.store_messages import Answer, LoadCells, Request, StoreFailed, WriteCells
from ...ltm.ports import Damaged, Store

#: The process ends without those that are not back by then: what they write is whole or is not.
CLOSE_S_MAX = 5.0
#: Requests that wait; more are not answered. Whoever asks asks again, and each is carried out once at a time.
REQUESTS_MAX = 20_000

_log = logging.getLogger("viewtide.store")

_Item = tuple[Hashable, Request, bytes] | None


class StoreService:
    """`put` is called from its threads, with who asked and the answer; `describe` with a packed catalog, before the
    first request that goes by it; `fail` with what must end the process. Whoever `is_over` is not served any more. The
    store is closed by whoever opened it."""

    def __init__(
        self,
        store: Store,
        put: Callable[[Hashable, object], None],
        fail: Callable[[Exception], None],
        describe: Callable[[bytes], None] | None = None,
        is_over: Callable[[Hashable], bool] = lambda caller: False,
    ) -> None:
        self._store = store
        self._put = put
        self._fail = fail
        self._is_over = is_over
        self._describe = describe
        self._describing = Lock()
        self._described = b""
        self._lock = Lock()
        self._pending: set[tuple[Hashable, int]] = set()
        self._writes: SimpleQueue[_Item] = SimpleQueue()
        self._loads: SimpleQueue[_Item] = SimpleQueue()
        self._threads = [
            Thread(target=self._run, args=(queue,), name=name, daemon=True)
            for name, queue in (("store writes", self._writes), ("store loads", self._loads))
        ]
        for thread in self._threads:
            thread.start()

    def request(self, caller: Hashable, message: object, catalog: bytes = b"") -> None:
        assert isinstance(message, WriteCells | LoadCells)
        name = (caller, message.number)
        with self._lock:
            if name in self._pending or len(self._pending) >= REQUESTS_MAX:
                return
            self._pending.add(name)
        (self._writes if isinstance(message, WriteCells) else self._loads).put((caller, message, catalog))

    def close(self) -> None:
        for queue in (self._writes, self._loads):
            queue.put(None)
        for thread in self._threads:
            thread.join(CLOSE_S_MAX)

    def _run(self, queue: SimpleQueue[_Item]) -> None:
        while (item := queue.get()) is not None:
            caller, message, catalog = item
            answer = None if self._is_over(caller) else self._answer(message, catalog)
            with self._lock:
                self._pending.discard((caller, message.number))
            if answer is not None:
                self._put(caller, answer)

    def _tell_catalog(self, catalog: bytes) -> None:
        with self._describing:
            if self._describe is not None and catalog and catalog != self._described:
                self._describe(catalog)
                self._described = catalog

    def _answer(self, message: Request, catalog: bytes) -> Answer | None:
        try:
            self._tell_catalog(catalog)
            return on_store.answer(self._store, message)
        except Damaged as error:
            self._fail(error)
        except (Error, OSError) as error:
            _log.error("%s", error, extra={"error": type(error).__name__})
            return StoreFailed(message.number, str(error))
        except Exception as error:
            self._fail(error)
        return None
