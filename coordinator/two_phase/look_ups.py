"""What propagation looks up, said in keys and key ranges: that is all that a participant knows.

Every function is a generator that yields `Wanted` and is sent `Found`; it returns the answers as
`changetables.operators.join.LookUp` defines them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, cast

from ...changetables.keys import SHORTENED_TAIL_BYTES, prefix_stop, table_range, was_shortened
from ...changetables.plan import FIRST, LAST, STATES, TOP, WHOLE_TABLE, Answers, LookUp, top_count
from ...changetables.types import Row, Value
from ...ltm.participant import own_rows, rows_by_prefix
from ...ltm.tables import TableRows, Tables, ViewRows
from ...ltm.two_phase.messages import FoundRows, KeyRange


class Wanted(NamedTuple):
    """`write`: the keys will be contributed to, so they are held as if they were written. `rows`: they are those of
    rows of tables."""

    keys: Sequence[bytes]
    ranges: Sequence[KeyRange] = ()
    write: bool = False
    rows: bool = False


class Found(NamedTuple):
    rows: Sequence[Row | None]
    ranges: Sequence[FoundRows] = ()


T = TypeVar("T")
Asking: TypeAlias = Generator[list[Wanted], list[Found], T]


def together(askings: Sequence[Asking[T]]) -> Asking[list[T]]:
    """Run several side by side: what all of them want at a time is asked for at once."""
    results: dict[int, T] = {}
    running: list[tuple[int, Asking[T], list[Wanted]]] = []
    for number, asking in enumerate(askings):
        _advance(number, asking, None, running, results)
    while running:
        before, running = running, []
        found = yield [wanted for _, _, some in before for wanted in some]
        taken = 0
        for number, asking, some in before:
            _advance(number, asking, found[taken : taken + len(some)], running, results)
            taken += len(some)
    return [results[number] for number in range(len(askings))]


def _advance(
    number: int,
    asking: Asking[T],
    found: list[Found] | None,
    running: list[tuple[int, Asking[T], list[Wanted]]],
    results: dict[int, T],
) -> None:
    try:
        wanted = next(asking) if found is None else asking.send(found)
    except StopIteration as finished:
        results[number] = finished.value
        return
    running.append((number, asking, wanted))


def look_up(
    tables: Tables, look_ups: Sequence[LookUp], own: Mapping[str, Mapping[bytes, Row | None]]
) -> Asking[Answers]:
    return together([_look_up(tables, each, own_rows(own, each)) for each in look_ups])


def _look_up(tables: Tables, wanted: LookUp, mine: Mapping[bytes, Row | None]) -> Asking[Sequence[object]]:
    rows = tables.source(wanted.table)
    index, keys = wanted.index, wanted.keys
    if index is None:
        return (yield from _by_key(rows, keys, mine))
    if index == STATES:
        (found,) = yield [Wanted(keys, write=True)]
        return found.rows
    if index in (FIRST, LAST):
        assert isinstance(rows, ViewRows), "only hidden views have groups of values"
        return (yield from together([_extreme(rows, prefix, index == LAST, mine) for prefix in keys]))
    if index == WHOLE_TABLE:
        found_rows, _ = yield from _shown(rows, 0)
        whole = [row for key, row in found_rows if key not in mine]
        whole += [row for row in mine.values() if row is not None]
        return [whole] * len(keys)
    if index == TOP:
        assert isinstance(rows, ViewRows), "only a view is kept in order"
        return (yield from together([_first_rows(rows, top_count(key), mine) for key in keys]))
    return (yield from _by_prefix(tables, rows, index, keys, mine))


def _by_key(
    rows: TableRows | ViewRows, keys: Sequence[bytes], mine: Mapping[bytes, Row | None]
) -> Asking[list[Row | None]]:
    theirs = [key for key in keys if key not in mine] if mine else keys
    shown: dict[bytes, Row | None] = dict(mine)
    if theirs:
        (found,) = yield [Wanted(theirs, rows=isinstance(rows, TableRows))]
        if isinstance(rows, TableRows):
            whole_of = rows.whole
            whole = [None if row is None else whole_of(row) for row in found.rows]
            shown.update(zip(theirs, whole, strict=True))
        else:
            each = yield from together([_show(rows, state) for state in found.rows])
            shown.update(zip(theirs, each, strict=True))
    return [shown[key] for key in keys]


def _show(view: ViewRows, state: Row | None) -> Asking[Row | None]:
    """The row of the view's table that a stored row shows."""
    plan = view.plan
    if not plan.extremes or (state is None and not plan.always):
        return plan.source_row(state)
    group = state or ()
    extremes = yield from together(
        [
            _extreme(view.values[number], plan.extreme_prefix(number, group), each.last, {})
            for number, each in enumerate(plan.extremes)
        ]
    )
    return plan.source_row(state, tuple(extremes))


def _by_prefix(
    tables: Tables, rows: TableRows | ViewRows, index: int, prefixes: Sequence[bytes], mine: Mapping[bytes, Row | None]
) -> Asking[list[list[Row]]]:
    (found,) = yield [Wanted((), [(prefix, prefix_stop(prefix), 0, False) for prefix in prefixes])]
    keys = [[cast(bytes, entry[0]) for _, entry in some] for some in found.ranges]
    keys = [[key for key in some if key not in mine] for some in keys]
    shown = iter((yield from _by_key(rows, [key for some in keys for key in some], {})))
    added = rows_by_prefix(tables.indexes[index][1], mine) if mine else {}
    return [
        [*(row for _ in some if (row := next(shown)) is not None), *added.get(prefix, ())]
        for prefix, some in zip(prefixes, keys, strict=True)
    ]


def _extreme(values: ViewRows, prefix: bytes, last: bool, mine: Mapping[bytes, Row | None]) -> Asking[Value]:
    """The first or last value of a group in a hidden view of (group, value), with a transaction's own rows."""
    own = [(key, row) for key, row in mine.items() if key.startswith(prefix)]
    candidates = [(key, row) for key, row in own if row is not None]
    limit = 1 + len(own)
    while True:
        (found,) = yield [Wanted((), [(prefix, prefix_stop(prefix), limit, last)])]
        near = list(_nearest(values, found.ranges[0], mine))
        if len(found.ranges[0]) < limit or not limit or (near and not was_shortened(near[0][0])):
            break
        # Rows that show nothing, or keys that were cut: which of them is the extreme is told by the values.
        limit = 0
    candidates += near
    if not candidates:
        return None
    whole = values.plan.keys.encode
    choose = max if last else min
    return choose((whole(row), row[-1]) for _, row in candidates)[1]


def _nearest(values: ViewRows, found: FoundRows, mine: Mapping[bytes, Row | None]) -> Iterable[tuple[bytes, Row]]:
    cut: bytes | None = None
    for key, state in found:
        if cut is not None and key[: len(cut)] != cut:
            return
        row = None if key in mine else values.plan.source_row(state)
        if row is None:
            continue
        yield key, row
        if not was_shortened(key):
            return
        cut = cut or key[:-SHORTENED_TAIL_BYTES]


def _shown(rows: TableRows | ViewRows, limit: int) -> Asking[tuple[list[tuple[bytes, Row]], bool]]:
    """The rows of a table, or those that a view shows, in key order, and whether these are all."""
    (found,) = yield [Wanted((), [(*table_range(rows.table.id), limit, False)])]
    stored = found.ranges[0]
    whole = not limit or len(stored) < limit
    if isinstance(rows, TableRows):
        return [(key, rows.whole(row)) for key, row in stored], whole
    if not stored and rows.plan.always:
        row = yield from _show(rows, None)
        return ([] if row is None else [(rows.plan.keys.encode_short(()), row)]), whole
    shown = yield from together([_show(rows, state) for _, state in stored])
    return [(key, row) for (key, _), row in zip(stored, shown, strict=True) if row is not None], whole


def _first_rows(view: ViewRows, rows_count: int | None, mine: Mapping[bytes, Row | None]) -> Asking[list[Row]]:
    """The first rows of an ordered view, with a transaction's own in their places, until so many are counted."""

    def order(row: Row) -> bytes:
        # Not the stored key, which is cut if it is too long.
        return view.plan.keys.encode(tuple(row[place] for place in view.table.key))

    # Each row counts once or more, so that many are enough, unless some show nothing or keys were cut.
    limit = 0 if rows_count is None else rows_count + len(mine)
    kept, whole = yield from _shown(view, limit)
    if not whole and (len(kept) < limit or any(was_shortened(key) for key, _ in kept)):
        kept, _ = yield from _shown(view, 0)
    rows = [row for key, row in kept if key not in mine]
    rows += [row for row in mine.values() if row is not None]
    rows.sort(key=order)
    weighted = view.plan.kept.weighted
    found: list[Row] = []
    counted = 0
    for row in rows:
        if rows_count is not None and counted >= rows_count:
            break
        found.append(row)
        counted += cast(int, row[-1]) if weighted else 1
    return found
