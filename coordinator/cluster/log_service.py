"""The destination LOGS: logs of other processes are sealed and read in a thread, because that takes long."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from queue import SimpleQueue
from threading import Lock, Thread

from ...changetables.errors import Error
from ...ltm.cluster.flushes import decode_flush
from ...ltm.cluster.log_messages import LogRecords, NoLog, ReadLog, Seal
from ...ltm.commit_log.elsewhere import LogsElsewhere
from ...ltm.ports import Damaged, LogRecord

#: The process ends without what is not done by then: whoever takes over does it.
CLOSE_S_MAX = 5.0
#: Requests that wait; more are not answered. Whoever asks asks again, and one log is asked for once at a time.
REQUESTS_MAX = 1_000

_log = logging.getLogger("viewtide.logs")


class LogService:
    """`put` is called from its thread, with who asked and the answer. What fails is not answered, but logged; damage,
    and whatever nobody has thought of, ends the process: `fail`."""

    def __init__(
        self, logs: LogsElsewhere, put: Callable[[Hashable, object], None], fail: Callable[[Exception], None]
    ) -> None:
        self._logs = logs
        self._put = put
        self._fail = fail
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = Lock()
        self._pending: set[tuple[Hashable, type, str]] = set()
        self._thread = Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def request(self, caller: Hashable, message: object) -> None:
        assert isinstance(message, Seal | ReadLog)
        name = (caller, type(message), message.log)
        with self._lock:
            if name in self._pending or len(self._pending) >= REQUESTS_MAX:
                return
            self._pending.add(name)
        self._queue.put(lambda: self._serve(caller, message))

    def later(self, work: Callable[[], object]) -> None:
        """Anything else that is not to be waited for."""
        self._queue.put(work)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(CLOSE_S_MAX)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Damaged as error:
                self._fail(error)
            except (Error, OSError) as error:
                _log.warning("%s", error, extra={"error": type(error).__name__})
            except Exception as error:
                self._fail(error)

    def _serve(self, caller: Hashable, message: Seal | ReadLog) -> None:
        try:
            answer = self._answer(message)
        finally:
            with self._lock:
                self._pending.discard((caller, type(message), message.log))
        self._put(caller, answer)

    def _answer(self, message: Seal | ReadLog) -> LogRecords | NoLog:
        if isinstance(message, Seal):
            return _records(message, self._logs.seal(message.log), True)
        found = self._logs.read(message.log, 1)
        if found is None:
            return NoLog(message.request, message.log)
        return _records(message, *found)


def _records(message: Seal | ReadLog, flushes: list[LogRecord], sealed: bool) -> LogRecords:
    from_lsn = message.from_lsn if isinstance(message, ReadLog) else 1
    first_lsn, records = 0, []
    for flush in flushes:
        first, decoded = decode_flush(flush.payload)
        first_lsn = first_lsn or first
        records += decoded
    skipped = max(from_lsn - first_lsn, 0) if first_lsn else 0
    return LogRecords(message.request, message.log, (first_lsn or 1) + skipped, tuple(records[skipped:]), sealed)
