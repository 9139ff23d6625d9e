"""A view as users hold it: read it, look at its state, check it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .changetables.algebra import scans
from .changetables.errors import InterfaceError, NotSupportedError
from .changetables.explain import explain
from .changetables.keys import table_range
from .coordinator.embedded import Engine
from .coordinator.verify import Progress, repair, verify
from .durations import milliseconds
from .reads import NO_KEY, OneViewRead, Snapshot, view_rows
from .rows import Result, Row, Token
from .verify import VerifyReport

if TYPE_CHECKING:
    from .arrow import ArrowTable, DataFrame
    from .node import Node


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """The state of a view. `watermark` is the commit_ts that it reflects."""

    name: str
    refresh: str
    watermark: int
    lag_ms: float
    rows: int
    tables: tuple[str, ...]
    sql: str


class View:
    """`db.view(name)`. Its reads are at the newest timestamp; use a snapshot for several that belong together."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self.name = name
        node.check_open()
        view_rows(name, node.engine.ltm.tables)

    def get(
        self,
        key: object = NO_KEY,
        /,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
        **columns: object,
    ) -> Row | None:
        """The row of a group (composite: a tuple in key order, or keyword arguments), or None."""
        with self._reads(at_least, max_lag) as view:
            return view.get(key, **columns)

    def scan(
        self,
        start: object = None,
        stop: object = None,
        limit: int | None = None,
        *,
        at_least: Token | None = None,
        latest: bool = False,
        max_lag: str | float | None = None,
    ) -> Result:
        """The rows of start <= key < stop in key order, each as often as its multiplicity."""
        with self._reads(at_least, max_lag) as view:
            return view.scan(start, stop, limit)

    def rows(
        self, *, at_least: Token | None = None, latest: bool = False, max_lag: str | float | None = None
    ) -> Result:
        """The whole view."""
        with self._reads(at_least, max_lag) as view:
            return view.rows()

    def to_arrow(self) -> ArrowTable:
        return self.rows().to_arrow()

    def to_pandas(self) -> DataFrame:
        return self.rows().to_pandas()

    def status(self) -> ViewStatus:
        with self._reads() as view:
            definition, reads = view._rows.view, view._reads
            rows_count = len(view._outputs(*table_range(definition.id), None))
            watermark = reads._begin()
        return ViewStatus(
            self.name,
            definition.refresh,
            watermark,
            0.0,
            rows_count,
            tuple(dict.fromkeys(scan.table for scan in scans(definition.relation))),
            definition.text,
        )

    def explain(self) -> str:
        """How a change of each base table reaches the view: the look-ups, and through which key or index."""
        self._node.check_open()
        ltm = self._node.engine.ltm
        plans = {name: rows.plan for name, rows in ltm.tables.views.items()}
        return explain(view_rows(self.name, ltm.tables).plan, plans, ltm.fan_out)

    def refresh(self) -> int:
        """Bring the view up to date; a synchronous one always is. Returns its watermark."""
        with self._reads() as view:
            return view._reads._begin()

    def set_refresh(self, refresh: str) -> None:
        """Change the mode; only "sync" is available in this version."""
        check_refresh(refresh)
        self._node.check_open()
        view_rows(self.name, self._node.engine.ltm.tables)

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Compare what is stored with the definition evaluated from scratch, at one timestamp, while writers go on.

        Memory is bounded whatever the size of the view. `progress(rows_done, rows_expected)` is called now and then.
        """
        return VerifyReport.of(self.name, verify(self._checked_engine(), self.name, progress))

    def repair(self, progress: Progress | None = None) -> VerifyReport:
        """Make right exactly the rows that `verify` would name, also of the views that are made from this one. Writers
        go on meanwhile."""
        return VerifyReport.of(self.name, repair(self._checked_engine(), self.name, progress))

    def _checked_engine(self) -> Engine:
        self._node.check_open()
        view_rows(self.name, self._node.engine.ltm.tables)
        return self._node.engine

    def _reads(self, at_least: Token | None = None, max_lag: str | float | None = None) -> OneViewRead:
        """A read of its own; whoever calls it closes its snapshot."""
        if at_least is not None and not isinstance(at_least, Token):
            raise InterfaceError(f"at_least takes the token of a transaction, not {type(at_least).__name__}")
        if max_lag is not None:
            milliseconds(max_lag)
        # A synchronous view is never behind: every acknowledged commit is in it.
        snapshot = Snapshot(self._node)
        try:
            return OneViewRead(snapshot, self.name)
        except BaseException:
            snapshot.close()
            raise


def check_refresh(refresh: object) -> Literal["sync"]:
    if refresh == "sync":
        return "sync"
    if isinstance(refresh, str):
        if refresh not in ("manual", "deferred"):
            milliseconds(refresh)
        raise NotSupportedError(f"deferred refresh ({refresh!r}) is not available yet", hint='use refresh="sync"')
    raise InterfaceError(f"refresh must be text such as 'sync', not {refresh!r}")
