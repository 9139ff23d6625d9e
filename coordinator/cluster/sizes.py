"""How large a transaction may be in a cluster: what an LTM gets of it is one message, and one record of its log.

Nearly all are small. That is seen from the lengths of their texts, and only what may be large is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import chain
from sys import getsizeof

from ...changetables.errors import DataError
from ...ltm.codec import pack_for_peer
from ...ltm.key_range import RangeMap
from ...ltm.tables import Tables
from ..transaction import Request
from ..two_phase.attempt import AttemptAt, entries_of

#: What one LTM gets of a transaction: rows as they were and as they become, entries of indexes, what is added to views.
#: A message, and a record in HBase, have 32 MiB. The rest is for what was looked up for it: a key and more for each
#: table that a row is joined with.
PART_BYTES_MAX = 20 * 2**20
#: The same of a step of a deferred view, which looks nothing up.
STEP_PART_BYTES_MAX = 30 * 2**20
#: Texts of so many characters, and what else there is, are not measured: at four bytes each they are well below.
MEASURED_BYTES_MIN = 2 * 2**20
#: What a row, or what is added to one, has beside texts.
ITEM_BYTES = 300
#: With so many rows and keys, at 511 bytes each, the questions about them are small, too.
ROWS_UNCHECKED = 5_000


def check_request(request: Request, ltm_names: Callable[[], Sequence[str]]) -> None:
    """Refuse what cannot be asked about, or is too large wherever it goes. The rest is found out by `check_parts`."""
    writes = request.writes.values()
    if sum(map(len, writes)) + len(request.keys) <= ROWS_UNCHECKED:
        return
    keys_bytes = sum(map(len, chain(*writes))) + sum(len(key) for _, key in request.keys)
    if keys_bytes > PART_BYTES_MAX:
        raise _too_large(keys_bytes, "its keys have")
    rows_bytes = sum(_text_bytes(row) for intents in writes for _, row, _, _ in intents.values() if row is not None)
    ltms_count = max(len(ltm_names()), 1)
    if keys_bytes + rows_bytes > PART_BYTES_MAX * ltms_count:
        raise _too_large(keys_bytes + rows_bytes, f"for {ltms_count} LTMs it has")


def check_parts(attempt: AttemptAt, tables: Tables, ranges: RangeMap) -> None:
    """Before votes are asked for."""
    if _about_bytes(attempt) < MEASURED_BYTES_MIN:
        return
    bytes_max = STEP_PART_BYTES_MAX if attempt.submit.at else PART_BYTES_MAX
    for log, items in ranges.by_owner(_parts(attempt, tables)).items():
        size = sum(map(_packed_bytes, items))
        if size > bytes_max:
            raise _too_large(size, f"its part at {log} has", bytes_max)


def _too_large(size: int, what: str, bytes_max: int = 0) -> DataError:
    return DataError(
        f"the transaction is too large for a cluster: {what} {size} bytes, and one LTM takes at most "
        f"{bytes_max or PART_BYTES_MAX}, with what rows were before, indexes and views",
        hint="write it in several transactions",
    )


def _about_bytes(attempt: AttemptAt) -> int:
    """Every transaction comes through here: to pack it all takes less time than to look at each value."""
    transaction, submit = attempt.transaction, attempt.submit
    packed = pack_for_peer((transaction.writes, transaction.contributions, submit.refreshes))
    items = sum([len(some) for _, some in transaction.writes + transaction.contributions])
    return len(packed) + ITEM_BYTES * (items + len(submit.refreshes) + len(submit.cells))


def _text_bytes(values: Iterable[object]) -> int:
    size = 0
    for value in values:
        kind = value.__class__
        if kind is str or kind is bytes:
            size += len(value)  # type: ignore[arg-type]
        elif kind is Decimal:
            size += getsizeof(value)
        elif kind is tuple:
            size += _text_bytes(value)  # type: ignore[arg-type]
    return size


def _parts(attempt: AttemptAt, tables: Tables) -> Iterable[tuple[bytes, object, object]]:
    """What is logged of it, with the keys by which it goes to its owners."""
    transaction, submit = attempt.transaction, attempt.submit
    for table_id, writes in transaction.writes:
        yield from writes
        table = tables.by_id.get(table_id)
        for entries in table.indexes if table is not None else ():
            yield from ((key, row, row) for key, row in entries_of(entries, writes))
    for name, shown in transaction.shown.items():
        view = tables.views.get(name)
        for entries in view.indexes if view is not None else ():
            yield from ((key, row, row) for key, row in entries_of(entries, shown))
    for _, contributions in transaction.contributions:
        yield from contributions
    for _, key, group, delta in submit.refreshes:
        yield key, group, delta
    for key, row in submit.cells:
        yield key, row, row


def _packed_bytes(item: Sequence[object]) -> int:
    return len(pack_for_peer(tuple(item)))
