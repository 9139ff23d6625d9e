"""PostgreSQL with a change table that is merged into the totals every 500 ms: the peer of deferred views.

What one would build by hand: a statement-level trigger puts the changed rows into a table, in the writer's transaction,
and a connection of its own moves them into the totals on a schedule, in one transaction. The change table is logged
like any other: what was committed is in the totals sooner or later, also after a crash. Server, settings and the form
of the inserts are those of `postgres_trigger`.

What was tried for PostgreSQL's best, at k = 10 with 16 clients on two cores that other work kept busy:
- the application writes the changed rows itself, in the same statement as the insert, instead of a trigger: 1 % faster
  in the median of five pairs, which is lost in noise. The trigger is used: no writer can forget it;
- VACUUM of the change table after each merge: undecided in four pairs. Left to the server, as users do. A VACUUM that
  also gives back the empty end of the table made merges wait for seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..load import Read
from .postgres import Client, PostgresServer, Reader, connect, postgres_server, recompute_differs

MERGE_EVERY_S = 0.5
STOP_S_MAX = 60.0

#: The narrowest change table that serves the view, without key or index: only ever read and deleted as a whole.
_KEEPING = """
CREATE TABLE cost_by_category (category text PRIMARY KEY, cost bigint NOT NULL, n bigint NOT NULL);
CREATE TABLE event_changes (product bigint NOT NULL, cost bigint NOT NULL);
CREATE FUNCTION remember_changes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO event_changes SELECT product, cost FROM new_events;
    RETURN NULL;
END $$;
CREATE TRIGGER events_changes AFTER INSERT ON events
    REFERENCING NEW TABLE AS new_events FOR EACH STATEMENT EXECUTE FUNCTION remember_changes();
"""
#: One statement is one transaction and one snapshot: a writer's rows are merged all or none, and each once.
_MERGE = """
WITH merged AS (DELETE FROM event_changes RETURNING product, cost)
INSERT INTO cost_by_category AS t (category, cost, n)
    SELECT p.category, SUM(c.cost), COUNT(*)
    FROM merged c JOIN products p ON p.id = c.product
    GROUP BY p.category
ON CONFLICT (category) DO UPDATE SET cost = t.cost + excluded.cost, n = t.n + excluded.n
"""


class _Merger:
    """Merges on a schedule, in a thread and with a connection of its own, until it is stopped."""

    def __init__(self, conninfo: str) -> None:
        self._connection = connect(conninfo)
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        #: The totals reflect at least what was committed before this moment, in milliseconds since 1970. At first that
        #: is all, because the database is a copy of one that was merged.
        self.watermark_ms = time.time_ns() // 1_000_000
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic() + MERGE_EVERY_S
        try:
            while not self._stopped.wait(max(0.0, due - time.monotonic())):
                self.merge()
                due = max(due + MERGE_EVERY_S, time.monotonic())
        except Exception as error:
            self._failure = error

    def merge(self) -> None:
        began_ms = time.time_ns() // 1_000_000
        self._connection.execute(_MERGE.encode())
        self.watermark_ms = began_ms

    def stop(self) -> None:
        """Waits for the merge under way. Raises what made the thread end early."""
        self._stopped.set()
        self._thread.join(STOP_S_MAX)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(STOP_S_MAX)
        self._connection.close()


class _Watcher:
    def __init__(self, conninfo: str, merger: _Merger) -> None:
        self._reader = Reader(conninfo)
        self._merger = merger

    def read(self) -> Read:
        watermark_ms = self._merger.watermark_ms  # Taken before the read: the totals may be newer, but not older.
        return Read(self._reader.read(), watermark_ms)

    def close(self) -> None:
        self._reader.close()


class _Session:
    def __init__(self, conninfo: str, merger: _Merger) -> None:
        self._conninfo = conninfo
        self._merger = merger

    def client(self) -> Client:
        return Client(self._conninfo)

    def watcher(self) -> _Watcher:
        return _Watcher(self._conninfo, self._merger)

    def catch_up(self) -> None:
        self._merger.stop()
        self._merger.merge()

    def recompute_differs(self) -> str | None:
        return recompute_differs(self._conninfo)


class ChangeTableServer:
    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    @contextmanager
    def session(self) -> Iterator[_Session]:
        with self._server.fresh_database() as conninfo:
            merger = _Merger(conninfo)
            try:
                yield _Session(conninfo, merger)
            finally:
                merger.close()


@contextmanager
def change_table_server(parent: Path) -> Iterator[ChangeTableServer]:
    with postgres_server(parent, _KEEPING, _MERGE) as server:
        yield ChangeTableServer(server)
