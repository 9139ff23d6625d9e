"""What the API needs from whatever runs its transactions: one node with everything in its own process, or a cluster.

`TransactionEngine` commits and reads, `Refreshing` knows how deferred views are, `Administration` changes tables and
views and mends them. The classes of the embedded node are used as they are; those of a cluster are in `cluster/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..changetables.errors import StaleRead, TransactionConflict
from ..changetables.schema import Unique
from ..ltm.catalog import Catalog, View
from ..ltm.reading import Reader
from ..ltm.tables import TableRows, ViewRows
from .hot_groups import HotGroups
from .transaction import Request
from .vms.managers import ViewManagerStatus

if TYPE_CHECKING:
    from .refresher import GroupStatus
    from .shown import Change
    from .verify import Outcome, Progress


class CatalogMoved(TransactionConflict):
    """Somebody else has changed the catalog since this change was looked at: it is to be looked at again."""

    def __init__(self) -> None:
        super().__init__("another process changes tables and views, too", hint="try again")


class LogFigures(NamedTuple):
    """Of the commit log: transactions that were replayed at the start, the oldest position that is kept, the newest
    one, and about how many bytes lie between them."""

    replayed: int
    oldest: int
    newest: int
    bytes: int


class Reading(Protocol):
    @property
    def ltm(self) -> Reader: ...


class TransactionEngine(Reading, Protocol):
    """`commits_count` and the others count since it was opened."""

    @property
    def ltm_names(self) -> tuple[str, ...]: ...
    @property
    def commits_count(self) -> int: ...
    @property
    def flushes_count(self) -> int: ...
    @property
    def checkpoints_count(self) -> int: ...

    def commit(self, request: Request) -> int:
        """Its commit_ts, once it is durable. After an Error nothing has changed, unless it is CommitUnknown."""

    async def commit_async(self, request: Request) -> int: ...

    def change_catalog(self, change: Callable[[Catalog], Catalog]) -> None:
        """Every transaction happens before the change or after it. CatalogMoved: somebody else was faster."""

    def log_figures(self) -> LogFigures: ...


class Managing(Protocol):
    """The view managers, and commands to them."""

    def add(self) -> int: ...
    def remove(self, id: int) -> None: ...
    def assign(self, id: int, ltm: str | None = None) -> None: ...
    def reassign(self, id: int, ltm: str | None = None) -> None: ...
    def withdraw(self, id: int) -> None: ...
    def status(self) -> list[ViewManagerStatus]: ...


class GroupMoved(StaleRead):
    """The view is not deferred any more, or not there. Whoever reads it looks again."""

    def __init__(self, name: str) -> None:
        super().__init__(f"view {name!r} was dropped or switched meanwhile", hint="read it again")


class Switched(TransactionConflict):
    """A view was switched between sync and deferred, or dropped, before it was read for the first time, or is being
    switched."""


class Refreshing(Protocol):
    """Deferred views, by the name of one of them. `GroupMoved`: there is no such view any more."""

    @property
    def managers(self) -> Managing: ...
    @property
    def hot_groups(self) -> HotGroups: ...

    def watermark(self, name: str) -> int: ...

    def wait_for(self, name: str, wanted_ts: int, timeout_ms: float, evaluator: str | None = None) -> int:
        """Have it refreshed until its watermark is at `wanted_ts` or above; the watermark. StaleRead if that takes too
        long. `evaluator`: by which its next step is computed, None: what costs less."""

    def aligned(self, names: Sequence[str], timeout_ms: float) -> AbstractContextManager[int]:
        """The groups of these views at one new watermark; nobody goes on while the caller makes use of it."""

    def status(self, name: str) -> GroupStatus: ...


class ChangeFeed(Protocol):
    """The change tables of one table or view. `ts`: everything up to it was given."""

    @property
    def ts(self) -> int: ...

    def has_news(self) -> bool: ...
    def round(self) -> Iterator[Change]: ...


class Feeding(ChangeFeed, Protocol):
    def view(self) -> ViewRows: ...


class TableFeeding(ChangeFeed, Protocol):
    def table(self) -> TableRows: ...


class Administration(Protocol):
    """Whoever calls it holds the node's lock for changes of tables and views, but for `repair` and feeds."""

    def create_view(self, view: View, evaluator: str | None = None) -> None:
        """With all that it needs; its id does not count. It returns when the view can be read. `evaluator`: by which
        its contents are computed, None: whichever is expected to be ready first."""

    def build_index(self, table: str, columns: tuple[int, ...], name: str = "") -> None: ...

    def make_unique(self, table: str, unique: Unique) -> None:
        """With an index of that name, which may be there for views. IntegrityError if rows are against it: then there
        is nothing new."""

    def switch(self, name: str, refresh: str) -> None:
        """Change how a view is refreshed."""

    def drop(self, views: Iterable[str], change: Callable[[Catalog], Catalog]) -> None:
        """`change` drops these views, and perhaps tables."""

    def repair(self, name: str, progress: Progress | None) -> Outcome: ...

    def feed(self, view: ViewRows, since: int | None) -> Feeding: ...

    def table_feed(self, table: TableRows, since: int | None) -> TableFeeding: ...
