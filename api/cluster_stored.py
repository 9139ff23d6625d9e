"""A cluster on HBase read straight from there, by a process that is none of the cluster's, such as Spark's.

One of the cluster's processes fixes a timestamp: a new one, or a deferred view's watermark. It answers when all LTMs
that own some of the rows have made a checkpoint of everything up to it (`Requests.await_stored`). From then on nothing
at or below it changes, whoever owns the rows next, and the store of a cluster keeps all versions: so it can be read for
as long as the store is there.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from .changetables.errors import NotSupportedError
from .coordinator.cluster.engine import ClusterEngine
from .ltm.catalog import Catalog
from .ltm.cluster.catalogs import pack_catalog, unpack_catalog
from .ltm.stored_reading import StoredReader
from .ltm.tables import TableRows, Tables, ViewRows
from .reads import through_switches
from .remote import RemoteDatabase
from .stored import RowsInStore, found_source, is_one

if TYPE_CHECKING:
    from .ltm.hbase_client import Hbase

#: The operation of a process that serves clients.
OPERATION = "stored.reach"


class StorePlace(NamedTuple):
    """Where the rows of a cluster are: Thrift servers of HBase, as its LTMs know them, and the namespace."""

    thrift: tuple[str, ...]
    namespace: str


class ClusterPin(NamedTuple):
    """Where a table or view is read: a timestamp up to which the store is complete. `catalog` is what it needs of it;
    `identity` that of the store."""

    at: int
    place: StorePlace
    catalog: bytes
    identity: bytes = b""


class SharedStore:
    """In a process that serves clients. `place` is None where rows are in memory only."""

    def __init__(self, engine: ClusterEngine, place: StorePlace | None) -> None:
        self._engine, self._place = engine, place

    def reach(self, name: str) -> tuple[object, ...] | None:
        """The fields of a `ClusterPin`; None: it cannot be read there, or only as a whole and with many look-ups."""
        if self._place is None:
            return None
        found = through_switches(lambda: self._pinned(name))
        if found is None:
            return None
        at, tables, source = found
        partials = source.view.partials if isinstance(source, ViewRows) else ()
        self._engine.requests.await_stored(at, (source.table.id, *partials))
        return at, tuple(self._place), pack_catalog(_needed(tables, source))

    def _pinned(self, name: str) -> tuple[int, Tables, TableRows | ViewRows] | None:
        """The newest timestamp at which it can be read, and the catalog of it."""
        ltm = self._engine.ltm
        while True:
            at = ltm.begin()
            tables = ltm.tables
            source = found_source(tables, name)
            if isinstance(source, ViewRows):
                if is_one(source) or source.plan.extremes:
                    return None
                if source.view.deferred:
                    at = ltm.horizon_of(source).durable_ts
            if ltm.tables is tables:
                return at, tables, source


def _needed(tables: Tables, source: TableRows | ViewRows) -> Catalog:
    catalog = tables.catalog
    if isinstance(source, ViewRows):
        return catalog
    return replace(catalog, tables={source.table.name: source.table}, views={})


def cluster_pin(db: RemoteDatabase, name: str) -> ClusterPin | None:
    """Fix the newest timestamp at which a table or view can be read; None: read it through the client."""
    found = cast("tuple[int, tuple[tuple[str, ...], str], bytes] | None", db._remote.call(OPERATION, name))
    if found is None:
        return None
    at, place, catalog = found
    pin = ClusterPin(at, StorePlace(*place), catalog)
    from .ltm.store.hbase_cells import store_identity

    client = _client(pin.place)
    try:
        return pin._replace(identity=store_identity(client, pin.place.namespace))
    finally:
        client.close()


class ClusterRows(RowsInStore):
    """One table or view of a cluster at a pin."""

    def __init__(self, name: str, pin: ClusterPin) -> None:
        from .ltm.store.hbase_cells import HbaseSnapshot

        client = _client(pin.place)
        try:
            store = HbaseSnapshot(client, pin.place.namespace, pin.identity)
            super().__init__(store, StoredReader(store, pin.at, unpack_catalog(pin.catalog)), name, pin.at)
        except BaseException:
            client.close()
            raise


def _client(place: StorePlace) -> Hbase:
    try:
        # Imported here: who has no HBase need not have its library.
        from .ltm.hbase_client import Hbase
    except ImportError as error:
        raise NotSupportedError("HBase needs thriftpy2", hint="pip install 'viewtide[cluster]'") from error
    # Many processes read at a time: not all from the same server.
    first = os.getpid() % len(place.thrift)
    return Hbase((*place.thrift[first:], *place.thrift[:first]))
