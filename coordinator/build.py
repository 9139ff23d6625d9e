"""Computes the contents of new indexes and views while writers go on.

A view is a sum, so its contents as of S are just one more contribution: writers contribute from S on, the builder adds
what was there at S, in pages. What it adds is not logged: a view or index that was not finished before a crash is
dropped at recovery, and a checkpoint comes before it is called ready.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..changetables.evaluators.choice import COLUMNS, ROWS
from ..changetables.evaluators.spark_session import has_session, has_spark, spark_session
from ..changetables.evaluators.whole import COSTS, COUNTED_ROWS_MAX, ROWS_ALONE, SPARK, SPARK_ROWS_MIN, Chosen, forced
from ..changetables.keeping import Kept, keep
from ..changetables.keys import table_range
from ..changetables.plan import Asking, Contribution, ViewPlan, needed_indexes
from ..changetables.schema import Index, Unique
from ..changetables.types import Row
from ..ltm import garbage
from ..ltm.catalog import Catalog, View
from ..ltm.reading import NEWEST
from ..ltm.tables import Planned, TableRows, Tables, ViewRows
from . import on_spark
from .embedded import Engine
from .transaction import stands_twice

if TYPE_CHECKING:
    from ..changetables.evaluators.columns import ArrowTable

#: Rows worked on while writers wait: about 2 ms of their time.
PAGE_ROWS = 500
#: The columns evaluator needs more of them to be of any use.
COLUMNS_PAGE_ROWS = 8_192
#: Rows in the store from which on all of them are read there: less is read before a checkpoint is made.
STORED_ROWS_MIN = 20_000

_builders = itertools.count(1)


def build_index(
    engine: Engine, table: str, columns: tuple[int, ...], name: str = "", *, for_views: bool = False
) -> None:
    """Create an index of a table or view and fill it page by page with the newest rows; writers keep the rest right."""
    index = Index(0, columns, ready=False, name=name, for_views=for_views)

    def add(catalog: Catalog) -> Catalog:
        nonlocal index
        index = replace(index, id=catalog.next_id)
        return catalog.with_index(table, index)

    def ready(catalog: Catalog) -> Catalog:
        return catalog.with_index(table, replace(index, ready=True))

    engine.change_catalog(add)
    try:
        _fill_index(engine, table, index.id)
        engine.checkpoint()
        engine.change_catalog(ready)
    except BaseException:
        take_back(engine, lambda catalog: catalog.without_index(table, index))
        raise


def make_unique(engine: Engine, name: str, unique: Unique) -> None:
    """From now on the columns are unique, if they are so far. An index that was made for views is adopted in the same
    change, or stays as it is."""
    known = engine.ltm.tables.by_name[name].index_on(unique.columns)
    if known is None:
        if _is_made_over_nothing(engine, name, unique):
            return
        # As one that views need: after a crash nobody takes it for one that is unique, and it goes.
        build_index(engine, name, unique.columns, for_views=True)

    def change(catalog: Catalog) -> Catalog:
        # Between two transactions: no row can slip in after the look.
        rows = engine.ltm.tables.by_name[name]
        _check_unique(engine, rows, unique)
        entries = rows.index_on(unique.columns)
        assert entries is not None, "it was made just now, and others wait"
        return catalog.with_unique(name, entries.index, unique)

    try:
        engine.change_catalog(change)
    except BaseException:
        if known is None:
            take_back(engine, lambda catalog: _without_index_on(catalog, name, unique.columns))
        raise


class _NotEmpty(Exception):
    """There are rows, so there are contents to compute."""


def _is_made_over_nothing(engine: Engine, name: str, unique: Unique) -> bool:
    """Make the index and the constraint in one change, if the table is empty, and stays so meanwhile."""

    def change(catalog: Catalog) -> Catalog:
        if not is_empty(engine, name):
            raise _NotEmpty
        return catalog.with_unique(name, Index(catalog.next_id, unique.columns), unique)

    try:
        engine.change_catalog(change)
    except _NotEmpty:
        return False
    return True


def _check_unique(engine: Engine, rows: TableRows, unique: Unique) -> None:
    seen: set[Row] = set()
    for _, row in engine.ltm.scan(rows.versions, *table_range(rows.table.id), NEWEST):
        values = tuple(row[position] for position in unique.columns)
        if None not in values:
            if values in seen:
                raise stands_twice(unique, values)
            seen.add(values)


def _without_index_on(catalog: Catalog, name: str, columns: tuple[int, ...]) -> Catalog:
    return catalog.without_index(name, next(each for each in catalog.tables[name].indexes if each.columns == columns))


def take_back(engine: Engine, change: Callable[[Catalog], Catalog]) -> None:
    """Forget what was half built. A database that has stopped does it at its next start."""
    if not engine.failed:
        engine.change_catalog(change)


def _fill_index(engine: Engine, table: str, index_id: int) -> None:
    start, stop = table_range(engine.ltm.tables.table(table).id)
    while True:
        with engine.ltm.lock:
            page = _add_entries(engine, table, index_id, start, stop)
        if len(page) < PAGE_ROWS:
            return
        start = page[-1] + b"\0"
        engine.checkpoint_if_due()


def _add_entries(engine: Engine, table: str, index_id: int, start: bytes, stop: bytes) -> list[bytes]:
    ltm = engine.ltm
    rows = ltm.tables.source(table)
    entries = ltm.tables.indexes[index_id][1]
    entries.versions.fold()
    ts = engine.draw_ts()
    page = list(itertools.islice(ltm.shown(rows, start, stop, NEWEST), PAGE_ROWS))
    made = [(*entries.codec.prefix_and_entry(row, key), key) for key, row in page]
    there = ltm.newest_entries(entries.versions, [entry for _, entry, _ in made])
    for (prefix, entry, key), known in zip(made, there, strict=True):
        # What a writer made meanwhile is not made again: its removal would leave the older one behind.
        if known is None:
            entries.versions.put_entry(prefix, entry, ts, key)
    ltm.wrote_unlogged(len(page))
    return [key for key, _ in page]


def create_view(engine: Engine, view: View, evaluator: str | None = None) -> None:
    """Make a synchronous view, and first the hidden views and the indexes that it needs. `evaluator`: by which their
    contents are computed; None: by the one that is expected to be ready first."""
    planned = Planned(engine.ltm.tables)
    needed = planned.needed(keep(view.relation, planned))
    # The text of a hidden view is the name of the view that it was made for: errors call it so until that is there.
    views = [View(0, hidden, inner, view.refresh, view.name) for hidden, inner in needed.items()]
    views.append(view)
    if _create_over_nothing(engine, views):
        return
    try:
        for each in views:
            create_sync(engine, each, evaluator)
    except BaseException:
        take_back(engine, _without_unused)
        raise


def _create_over_nothing(engine: Engine, views: Sequence[View]) -> bool:
    """Over empty tables there is nothing to compute: everything is made in one change. False: there is something."""

    def add(_: Catalog, ts: int) -> Tables:
        tables = engine.ltm.tables
        for view in views:
            kept = keep(view.relation, Planned(tables))
            if not all(is_empty(engine, name) for name in kept.reads):
                raise _NotEmpty
            tables = _with_indexes(engine, tables, kept)
            needs = needed_indexes(kept, {source: tables.table(source) for source in kept.sources})
            catalog = tables.catalog
            made = replace(view.numbered(catalog.next_id), reads=kept.reads, ready_ts=ts, needs=needs)
            tables = Tables(catalog.with_view(made), engine.ltm.horizon, tables)
            plan = tables.views[view.name].plan
            # Aggregates without GROUP BY show a row over nothing, which whoever is made from them has to be told.
            shows = plan.always and (plan.fallible or view is not views[-1])
            if plan.has_constants or shows:
                raise _NotEmpty
        return tables

    try:
        engine.change_catalog_at(add)
    except _NotEmpty:
        return False
    return True


def _with_indexes(engine: Engine, tables: Tables, kept: Kept) -> Tables:
    """The tables with the indexes that a view needs. What they index is empty."""
    catalog = tables.catalog
    for owner, positions in needed_indexes(kept, {source: tables.table(source) for source in kept.sources}):
        if not any(index.columns == positions and index.ready for index in tables.table(owner).indexes):
            catalog = catalog.with_index(owner, Index(catalog.next_id, positions, for_views=True))
    return tables if catalog is tables.catalog else Tables(catalog, engine.ltm.horizon, tables)


def all_empty(engine: Engine, plan: ViewPlan) -> bool:
    return all(is_empty(engine, name) for name in plan.reads)


def is_empty(engine: Engine, name: str) -> bool:
    """Whether a table or view shows nothing. One that is being made in the same change is as empty as what it reads."""
    tables = engine.ltm.tables
    if name not in tables.by_name and name not in tables.views:
        return True
    rows = tables.source(name)
    return next(engine.ltm.shown(rows, *table_range(rows.table.id), NEWEST), None) is None


def _without_unused(catalog: Catalog) -> Catalog:
    return catalog.without_unused()


def create_sync(engine: Engine, view: View, evaluator: str | None = None) -> None:
    tables = engine.ltm.tables
    kept = keep(view.relation, Planned(tables))
    for table, positions in needed_indexes(kept, {source: tables.table(source) for source in kept.sources}):
        owner = engine.ltm.tables.source(table)
        if not any(entries.index.columns == positions and entries.index.ready for entries in owner.indexes):
            build_index(engine, table, positions, for_views=True)
    tables = engine.ltm.tables
    needs = needed_indexes(kept, {source: tables.table(source) for source in kept.sources})
    build_view(engine, replace(view.numbered(tables.catalog.next_id), reads=kept.reads, needs=needs), evaluator)


def build_view(engine: Engine, view: View, evaluator: str | None = None) -> None:
    """Register a view, then add its contents as of that moment."""
    reader = -next(_builders)
    engine.change_catalog(lambda catalog: catalog.with_view(view), pin=reader)
    try:
        at = engine.ltm.horizon.pins[reader]
        chosen = choose(engine, engine.ltm.tables.views[view.name].plan, evaluator)
        for contributions in first_contents(engine, view.name, at, chosen):
            with engine.ltm.lock:
                # A timestamp of its own: a version may not be written twice, the store may have marked the first for
                # removal.
                contribute(engine, engine.ltm.tables.views[view.name], contributions, engine.draw_ts())
            engine.checkpoint_if_due()
        _check_outputs(engine, view)
        engine.checkpoint()
        engine.change_catalog_at(lambda catalog, ts: catalog.with_view(replace(view, ready_ts=ts)))
    except BaseException:
        take_back(engine, lambda catalog: catalog.without_view(view.name))
        raise
    finally:
        engine.ltm.horizon.unpin(reader)


def _check_outputs(engine: Engine, view: View) -> None:
    """What cannot be shown must not become a view."""
    with engine.ltm.lock:
        rows = engine.ltm.tables.views[view.name]
        rows.checked = True  # from here on writers look at what they change; the rest is looked at now
    check_shown(engine, rows, NEWEST)


def check_shown(engine: Engine, rows: ViewRows, at: int, pause: Callable[[], None] | None = None) -> None:
    """Raise DataError if a row of a view cannot be shown. `pause` is called after each."""
    if rows.plan.fallible:
        for _ in engine.ltm.shown(rows, *table_range(rows.view.id), at):
            if pause is not None:
                pause()


def choose(engine: Engine, plan: ViewPlan, evaluator: str | None) -> Chosen:
    """By what the contents of a view are computed: what a user asks for, else what is expected to be ready first. It
    counts rows where there is a choice, so nobody should wait for it. Large tables are brought to the store: it is read
    from there several times as fast."""
    started = has_session()
    if evaluator is not None:
        chosen = forced(evaluator)
    elif has_spark():
        most = COSTS.break_even(started)
        chosen = COSTS.never() if most is None else COSTS.choose(_count(engine, plan, most), started)
    else:
        chosen = ROWS_ALONE
    if evaluator is not None:
        plan.note_whole(chosen.evaluator, chosen.reason)
    if chosen.evaluator == SPARK:
        spark_session()  # starting it is no part of the cost of a row
        engine.checkpoint()  # its workers read the store
        rows_count = _count(engine, plan, COUNTED_ROWS_MAX)
        reason = COSTS.choose(rows_count, started).reason if evaluator is None else chosen.reason
        chosen = chosen._replace(reason=reason, rows_count=rows_count)
    elif _count(engine, plan, STORED_ROWS_MIN) >= STORED_ROWS_MIN:
        engine.checkpoint()
    return chosen


def first_contents(engine: Engine, name: str, at: int, chosen: Chosen) -> Iterator[list[Contribution]]:
    """A view's relation evaluated as of `at`, branch by branch, in pages of one source, or by Spark."""
    began = time.perf_counter()
    plan = engine.ltm.tables.views[name].plan
    rows_count = yield from _contents(engine, plan, at, chosen)
    if chosen.evaluator == SPARK or not chosen.is_asked:
        # What somebody asked for may not be the cheaper one of rows and columns.
        COSTS.record(chosen.evaluator, rows_count, time.perf_counter() - began)
    if rows_count >= SPARK_ROWS_MIN:  # with less there was nothing to choose
        plan.note_whole(chosen.evaluator, chosen.reason)


def _count(engine: Engine, plan: ViewPlan, most: int) -> int:
    """The rows to go through, about: those in the store, and no more than that many."""
    count = 0
    for _, _, table in plan.starts():
        if count < most:
            count += engine.ltm.stored_count(*table_range(engine.ltm.tables.source(table).table.id), most - count)
    return count


def _contents(engine: Engine, plan: ViewPlan, at: int, chosen: Chosen) -> Generator[list[Contribution], None, int]:
    """Returns how many rows it went through."""
    ltm, evaluator = engine.ltm, chosen.evaluator
    yield _answered(engine, plan.contribute_constants(), at)
    if plan.kept.slice_of:
        kept, ordered = plan.kept, ltm.tables.views[plan.kept.slice_of]
        rows_count = None if kept.limit is None else kept.offset + kept.limit
        yield plan.contribute_top(ltm.first_rows(ordered, rows_count, at, {}))
    if evaluator == SPARK:
        in_parts = on_spark.stored_at(ltm, at, chosen.rows_count)
        yield from on_spark.contents(plan, on_spark.shown_at(ltm, ltm.tables, at), in_parts)
        return chosen.rows_count
    rows_count = 0
    of_columns = evaluator if chosen.is_asked else None
    for part, source, table in plan.starts():
        pages = _pages(engine, ltm.tables.source(table), at, evaluator, in_columns=of_columns != ROWS)
        while True:
            with garbage.paused():
                page = next(pages, None)
                if page is None:
                    break
                if isinstance(page, list):
                    contributions = _answered(engine, plan.contribute_from(part, source, page, evaluator), at)
                else:
                    contributions = _answered(engine, plan.contribute_columns(part, source, page, of_columns), at)
                rows_count += len(page)
                del page  # or the collector would look through it first thing
            yield contributions
    return rows_count


def _pages(
    engine: Engine, rows: TableRows | ViewRows, at: int, evaluator: str, in_columns: bool
) -> Iterator[list[Row] | ArrowTable]:
    """What a table or a view shows at a timestamp."""
    ltm = engine.ltm
    if isinstance(rows, TableRows) and (pages := ltm.stored_pages(rows, at, in_columns)) is not None:
        return pages
    shown = ltm.shown(rows, *table_range(rows.table.id), at)
    page_rows = COLUMNS_PAGE_ROWS if evaluator == COLUMNS else PAGE_ROWS
    return iter(lambda: [row for _, row in itertools.islice(shown, page_rows)], [])


def _answered(engine: Engine, asking: Asking[list[Contribution]], at: int) -> list[Contribution]:
    """What a propagation gives that is answered as of `at`."""
    answers: list[Sequence[object]] | None = None
    while True:
        try:
            wanted = next(asking) if answers is None else asking.send(answers)
        except StopIteration as finished:
            return cast("list[Contribution]", finished.value)
        answers = [engine.ltm.answer(look_up, engine.ltm.tables, at, at) for look_up in wanted]


def contribute(engine: Engine, view: ViewRows, contributions: list[Contribution], ts: int) -> None:
    """Add to the rows of a view without a log record. The caller holds the lock."""
    ltm = engine.ltm
    versions = view.versions
    before = ltm.loaded(versions.newest_rows, [item.key for item in contributions])
    changes = [(item.key, row, view.plan.refresh(row, item)) for item, row in zip(contributions, before, strict=True)]
    versions.put_many(changes, ts)
    ltm.wrote_unlogged(len(contributions))
