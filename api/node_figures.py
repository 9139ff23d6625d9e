"""What /metrics and /readyz of a served node show."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from .coordinator.embedded import Engine
from .coordinator.ports import GroupMoved, Switched
from .metrics_server import Figure, process_figures

if TYPE_CHECKING:
    from .database import Database
    from .ltm.transport import Hub
    from .server import Server

#: All states of a view: each is a figure, and that of the state that it is in is 1.
STATES = ("live", "held", "failing", "needs batch refresh")


class NodeFigures:
    """They are asked for from the beginning, before the database is open, and until the process ends."""

    def __init__(self) -> None:
        #: A database is not closed while somebody asks for its figures.
        self._lock = threading.Lock()
        self._served: tuple[Database, Server, Hub] | None = None
        self._why_not = "the database is being opened"

    @contextmanager
    def of(self, database: Database, server: Server, hub: Hub) -> Iterator[None]:
        """The node is served from now on, until the end of the block."""
        with self._lock:
            self._served, self._why_not = (database, server, hub), ""
        try:
            yield
        finally:
            with self._lock:
                self._served, self._why_not = None, "the database is being closed"

    def why_not_ready(self) -> str:
        with self._lock:
            if self._served is not None and _engine(self._served[0]).failed:
                return "the database failed, and has to be opened again: its log says why"
            return self._why_not

    def figures(self) -> list[Figure]:
        with self._lock:
            if self._served is None:
                return [(name, {}, value) for name, value in process_figures().items()]
            database, server, hub = self._served
            labels = {"database": database._node.name}
            figures = _of_database(database) | server.figures() | process_figures()
            figures["connections"] = hub.connections
            figures |= {f"transport_{name}_total": count for name, count in asdict(hub.counts).items()}
            found: list[Figure] = [(name, labels, value) for name, value in figures.items()]
            for name in database.views():
                found += _of_view(database, name, labels)
            return found


def _engine(database: Database) -> Engine:
    engine = database._engine
    assert isinstance(engine, Engine)  # a node of its own, not one of a cluster
    return engine


def _of_database(database: Database) -> dict[str, float]:
    engine = _engine(database)
    return {
        "tables": len(database.tables()),
        "views": len(database.views()),
        "commits_total": engine.commits_count,
        "flushes_total": engine.flushes_count,
        "checkpoints_total": engine.checkpoints_count,
        "log_bytes": engine.log_figures().bytes,
        **engine.ltm.figures(),
    }


def _of_view(database: Database, name: str, labels: dict[str, str]) -> list[Figure]:
    """Without its rows: to count them it would have to be read."""
    node = database._node
    rows = database._engine.ltm.newest_tables().views.get(name)
    if rows is None:
        return []  # it was dropped just now
    figures: dict[str, float] = {"view_lag_ms": 0}
    state = STATES[0]
    if rows.view.deferred:
        try:
            group = node.refresher.status(name)
        except (GroupMoved, Switched):
            return []
        state = group.state
        figures = {
            "view_lag_ms": node.lag_ms(group.watermark),
            "view_backlog_rows": group.backlog_rows,
            "view_backlog_bytes": group.backlog_bytes,
            "view_steps_total": group.schedule.steps_count,
            "view_failures": group.schedule.failures_count,
        }
    labels = {**labels, "view": name}
    found: list[Figure] = [(figure, labels, value) for figure, value in figures.items()]
    return found + [("view_state", {**labels, "state": each}, each == state) for each in STATES]
