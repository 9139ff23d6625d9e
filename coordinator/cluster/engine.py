"""Transactions in a cluster: a request of the API becomes a `Submit` to the coordinator of this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

from ...changetables.errors import TransactionConflict
from ...ltm.catalog import Catalog
from ...ltm.reading import Guard
from ...ltm.tables import Tables
from ...ltm.two_phase.messages import KeyRange, TxId
from ..ports import LogFigures
from ..transaction import ANY, Intent, Request, check_table
from ..two_phase.messages import Outcome, Submit
from .calls import Later
from .catalog_changes import Next
from .reader import ClusterReader, FollowsCatalog
from .requests import Requests
from .sizes import check_request

#: The version of no catalog.
NO_CATALOG = -1


class ChangesCatalog(FollowsCatalog, Guard, Protocol):
    """A lock, held by whoever changes it."""

    @property
    def version(self) -> int: ...

    def change(self, change: Callable[[Catalog], Catalog]) -> int:
        """Its S: every transaction at or below it was made by earlier catalogs."""

    def carry_out(self, next_catalog: Next) -> None:
        """A change with contents that have to be made."""


class ClusterEngine:
    #: Logs and checkpoints are those of the LTMs.
    flushes_count = checkpoints_count = 0

    def __init__(self, requests: Requests, catalogs: ChangesCatalog, ltm_names: Callable[[], tuple[str, ...]]) -> None:
        self.requests = requests
        self._catalogs = catalogs
        self._ltm_names = ltm_names
        self.ltm = ClusterReader(requests, catalogs)
        self.commits_count = 0

    @property
    def ltm_names(self) -> tuple[str, ...]:
        return self._ltm_names()

    def commit(self, request: Request) -> int:
        commit_ts = self.requests.commit(self._submit(request))
        self.commits_count += 1
        return commit_ts

    async def commit_async(self, request: Request) -> int:
        commit_ts = await self.requests.commit_async(self._submit(request))
        self.commits_count += 1
        return commit_ts

    def commit_later(self, request: Request, then: Callable[[Outcome | None], None]) -> Later:
        """For the thread of the machines, which cannot wait: `then` is called when it is known, with what
        `commit_ts_of` takes. It may be cancelled."""
        return self.requests.commit_later(self._submit(request), then)

    def resolve_later(self, tx_id: TxId, key: bytes, then: Callable[[Outcome | None], None]) -> Later:
        """What became of a transaction that another process has submitted, perhaps, and that wrote this key: as
        `commit_later`; TransactionConflict: it was not committed, and never will be.

        It is submitted again, without its writes, for a catalog that there never was. So the coordinator finds out what
        became of it, as always (rule V5), and if it was not committed, closes it for good instead of running it."""
        checked: Intent = (ANY, None, None, False)
        submit = Submit(tx_id, True, (("", ((key, checked),)),), catalog_version=NO_CATALOG, exact=True)
        return self.requests.commit_later(submit, then)

    def commit_ts_of(self, outcome: Outcome | None) -> int:
        commit_ts = self.requests.commit_ts_of(outcome)
        self.commits_count += 1
        return commit_ts

    def change_catalog(self, change: Callable[[Catalog], Catalog]) -> None:
        self._catalogs.change(change)

    def carry_out(self, next_catalog: Next) -> None:
        self._catalogs.carry_out(next_catalog)

    def log_figures(self) -> LogFigures:
        return LogFigures(0, 0, 0, 0)

    def _submit(self, request: Request) -> Submit:
        tables = self.ltm.tables
        for name, rows in request.tables.items():
            if tables.by_name.get(name) is not rows:
                check_table(name, rows, request, tables)
        seen: tuple[bytes, ...] = ()
        seen_ranges: tuple[KeyRange, ...] = ()
        if request.keys or request.ranges:
            _refuse_switched(request, tables)
            seen = tuple([key for _, key in sorted(request.keys)])
            seen_ranges = tuple([(start, stop, 0, False) for _, start, stop in request.ranges])
        check_request(request, self._ltm_names)
        writes = tuple([(name, tuple(intents.items())) for name, intents in request.writes.items()])
        version = tables.catalog.version if self._catalogs.version else 0
        # By place: that takes half the time.
        return Submit(
            request.tx_id, request.again, writes, request.snapshot or 0, seen, seen_ranges, (), 0, version, False, ()
        )


def _refuse_switched(request: Request, tables: Tables) -> None:
    """Reads of deferred views are not validated: such a view was sync when it was read, and now it is behind."""
    read = itertools.chain((key[0] for key in request.keys), (each[0] for each in request.ranges))
    for table_id in read:
        view = tables.views_by_id.get(table_id)
        if view is not None and view.view.deferred:
            raise TransactionConflict(
                f"view {view.view.name!r} is refreshed in another way since it was read",
                hint="run it again, for example with db.run()",
            )
