"""Computes the contents of new indexes and views while writers go on.

A view is a sum, so its contents as of S are just one more contribution: writers contribute from S on, the builder adds
what was there at S, in pages. What it adds is not logged: a view or index that was not finished before a crash is
dropped at recovery, and a checkpoint comes before it is called ready.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..changetables.keys import table_range
from ..changetables.plan import Contribution, LookUp
from ..changetables.schema import Index
from ..ltm.catalog import Catalog, View
from ..ltm.driver import NEWEST
from ..ltm.tables import ViewRows
from .embedded import Engine

#: Rows worked on while writers wait: about 2 ms of their time.
PAGE_ROWS = 500

_builders = itertools.count(1)


def build_index(engine: Engine, table: str, columns: tuple[int, ...]) -> None:
    """Create an index and fill it: page by page with the newest rows; writers keep the rest right."""
    index = Index(0, columns, ready=False)

    def add(catalog: Catalog) -> Catalog:
        nonlocal index
        index = replace(index, id=catalog.next_id)
        before = catalog.tables[table]
        return catalog.with_table(replace(before, indexes=(*before.indexes, index)))

    def ready(catalog: Catalog) -> Catalog:
        before = catalog.tables[table]
        indexes = tuple(replace(known, ready=True) if known.id == index.id else known for known in before.indexes)
        return catalog.with_table(replace(before, indexes=indexes))

    engine.change_catalog(add)
    try:
        _fill_index(engine, table, index.id)
        engine.checkpoint()
        engine.change_catalog(ready)
    except BaseException:
        _take_back(engine, lambda catalog: catalog.without_index(table, index))
        raise


def _take_back(engine: Engine, change: Callable[[Catalog], Catalog]) -> None:
    """Forget what was half built. A database that has stopped does it at its next start."""
    if not engine.failed:
        engine.change_catalog(change)


def _fill_index(engine: Engine, table: str, index_id: int) -> None:
    start, stop = table_range(engine.ltm.tables.by_name[table].table.id)
    while True:
        with engine.ltm.lock:
            page = _add_entries(engine, table, index_id, start, stop)
        if len(page) < PAGE_ROWS:
            return
        start = page[-1] + b"\0"
        engine.checkpoint_if_due()


def _add_entries(engine: Engine, table: str, index_id: int, start: bytes, stop: bytes) -> list[bytes]:
    ltm = engine.ltm
    rows = ltm.tables.by_name[table]
    entries = ltm.tables.indexes[index_id][1]
    entries.versions.fold()
    ts = engine.draw_ts()
    page = list(itertools.islice(ltm.scan(rows.versions, start, stop, NEWEST), PAGE_ROWS))
    made = [(*entries.codec.prefix_and_entry(row, key), key) for key, row in page]
    there = ltm.newest_entries(entries.versions, [entry for _, entry, _ in made])
    for (prefix, entry, key), known in zip(made, there, strict=True):
        # What a writer made meanwhile is not made again: its removal would leave the older one behind.
        if known is None:
            entries.versions.put_entry(prefix, entry, ts, key)
    ltm.wrote_unlogged(len(page))
    return [key for key, _ in page]


def build_view(engine: Engine, view: View) -> None:
    """Register a view, then add its contents as of that moment."""
    reader = -next(_builders)
    engine.change_catalog(lambda catalog: catalog.with_view(view), pin=reader)
    try:
        at = engine.ltm.horizon.pins[reader]
        for contributions in _first_contents(engine, view, at):
            with engine.ltm.lock:
                _contribute(engine, engine.ltm.tables.views[view.name], contributions)
            engine.checkpoint_if_due()
        _check_outputs(engine, view)
        engine.checkpoint()
        engine.change_catalog_at(lambda catalog, ts: catalog.with_view(replace(view, ready_ts=ts)))
    except BaseException:
        _take_back(engine, lambda catalog: catalog.without_view(view.name))
        raise
    finally:
        engine.ltm.horizon.unpin(reader)


def _check_outputs(engine: Engine, view: View) -> None:
    """What cannot be shown must not become a view."""
    with engine.ltm.lock:
        rows = engine.ltm.tables.views[view.name]
        rows.checked = True  # from here on writers look at what they change; the rest is looked at now
    if rows.plan.fallible:
        for _, row in engine.ltm.scan(rows.versions, *table_range(view.id), NEWEST):
            if rows.plan.present(row):
                rows.plan.output(row)


def _first_contents(engine: Engine, view: View, at: int) -> Iterator[list[Contribution]]:
    """The definition evaluated as of `at`, in pages of its first source."""
    ltm = engine.ltm
    plan = ltm.tables.views[view.name].plan
    rows = ltm.tables.by_name[view.definition.sources[0].table]
    stored = ltm.scan(rows.versions, *table_range(rows.table.id), at)
    while page := [row for _, row in itertools.islice(stored, PAGE_ROWS)]:
        running = plan.contribute_from(0, page)
        answers: list[list[object]] | None = None
        while True:
            try:
                wanted = next(running) if answers is None else running.send(answers)
            except StopIteration as finished:
                yield finished.value
                break
            answers = [_answer(engine, look_up, at) for look_up in wanted]


def _answer(engine: Engine, look_up: LookUp, at: int) -> list[object]:
    ltm = engine.ltm
    rows = ltm.tables.by_name[look_up.table]
    if look_up.index is None:
        found = [ltm.read(rows.versions, key, at) for key in look_up.keys]
        return list(found)
    entries = ltm.tables.indexes[look_up.index][1].versions
    return [ltm.read_prefix(rows.versions, entries, prefix, at) for prefix in look_up.keys]


def _contribute(engine: Engine, view: ViewRows, contributions: list[Contribution]) -> None:
    ltm = engine.ltm
    versions = view.versions
    before = ltm.loaded(versions.newest_rows, [item.key for item in contributions])
    changes = [(item.key, row, view.plan.refresh(row, item)) for item, row in zip(contributions, before, strict=True)]
    # A timestamp of its own: a version may not be written twice, the store may have marked the first for removal.
    versions.put_many(changes, engine.draw_ts())
    ltm.wrote_unlogged(len(contributions))
