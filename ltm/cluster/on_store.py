"""What a driver does with the machines' messages to the store: one call of a `Store` each. Rows are packed there."""

from __future__ import annotations

from ...changetables.errors import Unavailable
from ...changetables.types import Row
from .. import codec
from ..ports import Cell, Store
from .store_messages import (
    Answer,
    LoadCells,
    LoadedCells,
    Request,
    StoredRow,
    StoreFailed,
    WriteCells,
    Written,
)


def answer(store: Store, request: Request) -> Answer:
    """Carry out a request. Damage raises, as the store's calls do."""
    try:
        match request:
            case WriteCells():
                return _write(store, request)
            case LoadCells():
                return _load(store, request)
    except Unavailable as error:
        return StoreFailed(request.number, str(error))


def _write(store: Store, request: WriteCells) -> Written:
    cells = [Cell(key, ts, None if row is None else codec.pack(row)) for key, ts, row in request.cells]
    store.write([cells], request.superseded, {}, _nothing)
    return Written(request.number)


def _load(store: Store, request: LoadCells) -> LoadedCells:
    rows = tuple(_stored(cell) for cell in store.get_many(request.keys, request.at)) if request.keys else ()
    ranges = []
    left = request.limit
    for start, stop in request.ranges:
        cells = store.scan(start, stop, request.at, left) if left else []
        complete = stop
        if len(cells) == left:
            # There may be more.
            complete = cells[-1].key + b"\0" if cells else start
        left -= len(cells)
        ranges.append((tuple((cell.key, cell.commit_ts, _row(cell)) for cell in cells), complete))
    last_keys = tuple(store.max_key(start, stop) for start, stop in request.tables)
    return LoadedCells(request.number, rows, tuple(ranges), last_keys)


def _stored(cell: Cell | None) -> StoredRow | None:
    return None if cell is None else (cell.commit_ts, _row(cell))


def _row(cell: Cell) -> Row | None:
    return None if cell.value is None else codec.unpack_row(cell.value)


def _nothing() -> None:
    """Nobody waits for the processor here: the driver writes beside the machines."""
