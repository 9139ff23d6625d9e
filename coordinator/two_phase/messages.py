"""What clients and coordinators say to each other. What coordinators and participants say is in the LTM's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ...changetables.types import Row
from ...ltm.two_phase.messages import ChangedRow, KeyRange, NewRow, Place, Refresh, RefreshedRow, TxId
from ..transaction import Intent

#: By table: the keys, and what is wanted of each row.
Intents: TypeAlias = tuple[tuple[str, tuple[tuple[bytes, Intent], ...]], ...]

#: (log, writes, refreshes, where the next ones are: above `at` if there are none).
ChangesOfLog: TypeAlias = tuple[str, tuple[ChangedRow, ...], tuple[RefreshedRow, ...], Place]


class Submit(NamedTuple):
    """Commit this. `again`: it was submitted before, and nobody said what became of it. `seen` and `seen_ranges` were
    read at `snapshot` and must still hold. `refreshes` are a slot's part of a deferred view's step, at version `at`.
    `catalog_version`: the rows are as the tables were then; 0: they fit whatever catalog there is; `exact`: it is
    refused if that is not the catalog. `cells` are entries of an index that is being made."""

    tx_id: TxId
    again: bool
    writes: Intents
    snapshot: int = 0
    seen: tuple[bytes, ...] = ()
    seen_ranges: tuple[KeyRange, ...] = ()
    refreshes: tuple[Refresh, ...] = ()
    at: int = 0
    catalog_version: int = 0
    exact: bool = False
    cells: tuple[NewRow, ...] = ()

    @property
    def writes_something(self) -> bool:
        """Every table that is named has something to write."""
        return all(intents for _, intents in self.writes) and bool(self.writes or self.refreshes or self.cells)

    @property
    def first_key(self) -> bytes:
        """Its owner is on every list."""
        if self.writes:
            return self.writes[0][1][0][0]
        return self.cells[0][0] if self.cells else self.refreshes[0][1]


class Submits(NamedTuple):
    """Several of one client at once."""

    submits: tuple[Submit, ...]


class Wave(NamedTuple):
    """What a process hands its coordinator at once, each with its client: they get their timestamps together."""

    submits: tuple[tuple[str, Submit], ...]


def together(submits: Sequence[Submit]) -> Submit:
    """Several that read nothing and write different rows, as one; it has the tx_id of the first."""
    writes: dict[str, list[tuple[bytes, Intent]]] = {}
    for submit in submits:
        for name, intents in submit.writes:
            writes.setdefault(name, []).extend(intents)
    return Submit(submits[0].tx_id, False, tuple([(name, tuple(intents)) for name, intents in writes.items()]))


class Outcome(NamedTuple):
    """`state` is COMMITTED (at `commit_ts`), CONFLICT (may be tried again as a new transaction), FAILED (it cannot be
    done: `error` is class, message and hint), or UNKNOWN (too long ago to tell)."""

    tx_id: TxId
    state: str
    commit_ts: int = 0
    error: tuple[str, str, str] = ("", "", "")


class Outcomes(NamedTuple):
    """Several for one client."""

    outcomes: tuple[Outcome, ...]


#: The error of one that was not begun where it was submitted.
BUSY = "Busy"
CONFLICT, FAILED, UNKNOWN = "conflict", "failed", "unknown"


class ReadAt(NamedTuple):
    """Rows at one timestamp, `at`, or a new one if that is 0. `stored`: no rows, but as soon as the store has them.
    `some`: a page of them is enough, at least one row; else whoever asks asks again until nothing is missing
    (`whole_reads`)."""

    number: int
    at: int
    keys: tuple[bytes, ...]
    ranges: tuple[KeyRange, ...] = ()
    stored: bool = False
    some: bool = False


class ChangesAt(NamedTuple):
    """What was committed to the rows of some tables and views in since < ts <= `at`, which was read at before: of every
    log at most so many rows, or a transaction more. `places` are where the next page of some logs begins; the others
    have no more."""

    number: int
    at: int
    ids: tuple[int, ...]
    since: int
    limit: int
    places: tuple[tuple[str, Place], ...] = ()


class ChangesFound(NamedTuple):
    """Of each log in the order of timestamps. Up to `oldest` some may be forgotten. `error`: why there are none."""

    number: int
    logs: tuple[ChangesOfLog, ...]
    oldest: int
    error: str = ""


class RowsAt(NamedTuple):
    """Each row with its commit_ts. `error`: why there are none. `epoch` is that of a new timestamp, 0 of one that was
    given; `catalog_version` is that of the catalog as of the new timestamp. It is a page: what did not fit is left, the
    keys at these places, and of the ranges at these places what is behind the rows that are here."""

    number: int
    at: int
    rows: tuple[tuple[int, Row | None], ...]
    ranges: tuple[tuple[tuple[bytes, int, Row], ...], ...]
    error: str = ""
    epoch: int = 0
    catalog_version: int = 0
    left_keys: tuple[int, ...] = ()
    left_ranges: tuple[tuple[int, KeyRange], ...] = ()
