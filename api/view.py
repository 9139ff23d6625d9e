"""A view as users hold it: read it, look at its state, check it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from .changes import Changes
from .changetables.evaluators.whole import forced
from .changetables.explain import explain
from .coordinator.local_layout import check_switch, told
from .coordinator.ports import Switched
from .coordinator.verify import Progress, verify
from .freshness import ANY_AGE, REFRESH_MS_MAX, TargetLag, check_token, levels_of, refresh_text
from .reads import NO_KEY, OneViewRead, Snapshot, through_switches, view_rows, whole_view
from .retries import changes_catalog
from .rows import Result, Row, Token
from .status import ViewStatus, view_status
from .verify import VerifyReport

if TYPE_CHECKING:
    from .arrow import ArrowTable, DataFrame
    from .ports import OpenNode


class View:
    """`db.view(name)`. Its reads are at the newest timestamp; use a snapshot for several that belong together."""

    def __init__(self, node: OpenNode, name: str) -> None:
        self._node = node
        self.name = name
        node.check_open()
        ltm = node.engine.ltm
        known = isinstance(name, str) and name in ltm.tables.views
        with suppress(Switched):  # it is there
            view_rows(name, ltm.tables if known else ltm.newest_tables())

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
        with self._reads(at_least, latest, max_lag) as view:
            return view._get(key, columns)

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
        with self._reads(at_least, latest, max_lag) as view:
            return view.scan(start, stop, limit)

    def rows(
        self, *, at_least: Token | None = None, latest: bool = False, max_lag: str | float | None = None
    ) -> Result:
        """The whole view."""
        if at_least is None and latest is False and max_lag is None:
            result = whole_view(self._node, self.name)
            if result is not None:
                return result
        with self._reads(at_least, latest, max_lag) as view:
            return view.rows()

    def to_arrow(self) -> ArrowTable:
        return self.rows().to_arrow()

    def to_pandas(self) -> DataFrame:
        return self.rows().to_pandas()

    def status(self) -> ViewStatus:
        """How it is refreshed, how far it is behind, and what its last step cost. It counts the rows."""
        with self._reads() as view:
            return view_status(self._node, view)

    def _age(self) -> tuple[str, float]:
        """How it is refreshed and how far it is behind: a status that reads nothing."""

        def age() -> tuple[str, float]:
            view = view_rows(self.name, self._node.engine.ltm.tables).view
            return view.refresh, self._node.lag_ms(self._node.refresher.watermark(self.name)) if view.deferred else 0.0

        return through_switches(age)

    def explain(self) -> str:
        """How a change of each base table reaches the view: the look-ups, and through which key or index; and what the
        evaluators were measured to cost."""
        self._node.check_open()
        ltm = self._node.engine.ltm
        plans = {name: rows.plan for name, rows in ltm.tables.views.items()}
        rows = view_rows(self.name, ltm.tables)
        layout = told(rows.view, ltm.tables)
        tree = explain(rows.plan, plans, ltm.fan_out, measured=True)
        return f"{tree}\n{layout}" if layout else tree

    def refresh(self, evaluator: str | None = None) -> int:
        """Bring the view up to date; a synchronous one always is. Returns its watermark.

        `evaluator` forces what computes the next step: "rows", "columns" or "spark". None: what costs less."""
        self._node.check_open()
        engine = self._node.engine
        if evaluator is not None:
            forced(evaluator)

        def refresh() -> int:
            wanted_ts = engine.ltm.horizon.durable_ts
            if view_rows(self.name, engine.ltm.tables).view.deferred:
                return self._node.refresher.wait_for(self.name, wanted_ts, REFRESH_MS_MAX, evaluator)
            with self._reads() as view:
                return view._reads._begin()

        return through_switches(refresh)

    @changes_catalog
    def set_refresh(self, refresh: str | TargetLag) -> None:
        """Change how the view is refreshed, while writers go on."""
        mode = refresh_text(refresh)
        self._node.check_open()
        check_switch(view_rows(self.name, self._node.engine.ltm.tables).view, mode)
        with self._node.changing:
            self._node.admin.switch(self.name, mode)

    def changes(
        self, since: Token | None = None, *, follow: bool = False, timeout: str | float | None = None
    ) -> Changes:
        """The view's own change tables, in order: one per commit that changed it, of a deferred view one per step.

        `since`: a token of a transaction, of a result of this view (`rows().token`) or of an earlier change; None: from
        now on. A deferred view goes on from the last watermark at or below it. `follow`: wait for more, for at most
        `timeout` each time.
        """
        return Changes(self._node, self.name, since, follow, timeout)

    def verify(self, progress: Progress | None = None, evaluator: str | None = None) -> VerifyReport:
        """Compare what is stored with the definition evaluated from scratch, at one timestamp (of a deferred view its
        watermark), while writers go on.

        Memory is bounded whatever the size of the view. `progress(rows_done, rows_expected)` is called now and then.
        `evaluator="spark"` lets Spark evaluate the definition.
        """
        through_switches(self._check)
        engine = self._node.engine
        outcome = through_switches(lambda: verify(engine, self.name, progress, evaluator=evaluator))
        return VerifyReport.of(self.name, outcome)

    def repair(self, progress: Progress | None = None) -> VerifyReport:
        """Make right exactly the rows that `verify` would name, also of the views that are made from this one; a
        deferred view that differs is computed anew, with its group. Writers go on meanwhile."""
        through_switches(self._check)
        return VerifyReport.of(self.name, through_switches(lambda: self._node.admin.repair(self.name, progress)))

    def _check(self) -> None:
        self._node.check_open()
        view_rows(self.name, self._node.engine.ltm.tables)

    def _reads(
        self, at_least: Token | None = None, latest: bool = False, max_lag: str | float | None = None
    ) -> OneViewRead:
        """A read of its own; whoever calls it closes its snapshot."""
        levels = levels_of(at_least, latest, max_lag)

        def begun() -> OneViewRead:
            # A synchronous view is never behind: every acknowledged commit is in it.
            snapshot = Snapshot(self._node, levels)
            try:
                if levels is not ANY_AGE:
                    check_token(self._node, levels.at_least_ts)
                view = OneViewRead(snapshot, self.name)
                snapshot._at(view._rows)  # where a deferred one is read is fixed here
                return view
            except BaseException:
                snapshot.close()
                raise

        return through_switches(begun)
