"""The catalog as the threads of one process know it, and how they change it: through the coordinator and the leader.

The rows of steps have a table of their own, which no user sees (`step_rows`): it is left out here, and put back before
a catalog is stored.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from ...changetables.errors import OperationalError, Unavailable
from ...ltm.catalog import Catalog, View
from ...ltm.cluster.catalogs import Stored, pack_catalog, unpack_catalog
from ...ltm.cluster.messages import OTHER_BASE, UNFINISHED, CatalogChanged, CatalogIs, ChangeCatalog, FetchCatalog
from ...ltm.tables import Tables
from ...ltm.versions import Horizon
from ..ports import CatalogMoved
from ..vms.groups import group_ids, ids_in_force
from ..vms.step_rows import STEPS, STEPS_ID, TABLE
from .catalog_changes import Next, changing, raise_failed
from .requests import Requests

#: A change of the catalog waits for all votes by earlier ones, perhaps until another LTM has taken over.
CHANGE_MS_MAX = 60_000
#: So long for what a change begins: steps of deferred views, and the contents of views and indexes.
FINISH_MS_MAX = 60_000
FETCH_MS_MAX = 20_000
#: A coordinator answers earlier, also if there is nothing new.
FOLLOW_MS_MAX = 3_000


def new_number() -> int:
    """One that nobody else has: the leader remembers changes by theirs."""
    return secrets.randbits(61) | 1


class CatalogFollower:
    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._lock = threading.Lock()
        #: The version in ZooKeeper, 0 if there is none yet, and what is known of it.
        self._known: tuple[int, Tables] | None = None
        #: Whether what that one has is being made.
        self._unfinished = False
        #: The thread that changes it, and which one it changes.
        self._changing = threading.Lock()
        self._changing_thread = 0
        self._base = (0, Tables(Catalog(), Horizon()))

    @property
    def tables(self) -> Tables:
        """Whoever changes the catalog sees nothing but the one that he changes."""
        if self._changing_thread and self._changing_thread == threading.get_ident():
            return self._base[1]
        known = self._known
        return (known if known is not None else self._now())[1]

    @property
    def version(self) -> int:
        """0: no catalog was ever stored."""
        return self._now()[0]

    def _now(self) -> tuple[int, Tables]:
        return self._known or self._fetch(-1)

    def newest(self) -> Tables:
        if self._changing_thread != threading.get_ident():
            while not self.reach(self._requests.now().catalog_version):
                pass
        return self.tables

    def reach(self, version: int) -> bool:
        """Whether that is the version that is known: if not, the newest one is fetched."""
        if self._now()[0] != version:
            self._fetch(-1)
        return self._now()[0] == version

    def is_known(self, version: int) -> bool:
        """The same without asking for it."""
        known = self._known
        return known is not None and known[0] == version

    def moves_as(self, view: View, tables: Tables, version: int) -> bool:
        """Whether a view moves with the same others by that version as by these tables; if not, the newest ones are
        fetched. CatalogMoved: whoever changes the catalog has only those that he changes."""
        if not self.reach(version):
            return False
        now = self._now()[1]
        if now is tables:
            return True
        found = now.views_by_id.get(view.id)
        if found is not None and group_ids(now).get(found.view.name) == group_ids(tables).get(view.name):
            return True
        if self._changing_thread == threading.get_ident():
            raise CatalogMoved
        return False

    def follow(self) -> None:
        """Wait for the next one, but not for long."""
        give_up = time.monotonic() + FOLLOW_MS_MAX / 1000
        self._adopt(self._requests.ask(FetchCatalog(0, self._now()[0]), CatalogIs, give_up))

    def _fetch(self, above_version: int) -> tuple[int, Tables]:
        give_up = time.monotonic() + FETCH_MS_MAX / 1000
        while True:
            found = self._requests.ask(FetchCatalog(0, above_version), CatalogIs, give_up)
            if found.version > above_version:
                return self._adopt(found)
            if time.monotonic() > give_up:
                raise Unavailable("the catalog of the cluster could not be read", hint="try again")

    def _adopt(self, found: CatalogIs) -> tuple[int, Tables]:
        with self._lock:
            known = self._known
            if known is None or found.version > known[0]:
                stored = unpack_catalog(found.data)
                mine = {name: table for name, table in stored.tables.items() if name != STEPS}
                before = None if known is None else known[1]
                tables = Tables(replace(stored, tables=mine), Horizon(), before)
                if found.stored:
                    node = Stored.unpack(found.stored)
                    tables.group_ids = ids_in_force(node)
                    self._unfinished = node.unfinished
                self._known = known = found.version, tables
                self._requests.ids = (STEPS_ID, *known[1].versions)
            return known

    # -- changing it: in a `with` block

    def __enter__(self) -> CatalogFollower:
        self._changing.acquire()
        try:
            self._base = self._finished()
        except BaseException:
            self._changing.release()
            raise
        self._changing_thread = threading.get_ident()
        return self

    def _finished(self) -> tuple[int, Tables]:
        """The newest catalog, when nothing of it is being made: nobody changes it before."""
        self.newest()
        give_up = time.monotonic() + FINISH_MS_MAX / 1000
        while self._unfinished:
            if time.monotonic() > give_up:
                raise Unavailable(
                    "another change of tables and views is not finished", hint="see whether view managers run"
                )
            self.follow()
        return self._now()

    def __exit__(self, *_: object) -> None:
        self._changing_thread = 0
        self._changing.release()

    def change(self, change: Callable[[Catalog], Catalog]) -> int:
        assert self._changing_thread == threading.get_ident(), "what is changed was looked at before"
        version, tables = self._base
        changed = change(tables.catalog)
        stored = replace(changed, tables={**changed.tables, STEPS: TABLE})
        give_up = time.monotonic() + CHANGE_MS_MAX / 1000
        answer = self._requests.ask(ChangeCatalog(new_number(), version, pack_catalog(stored)), CatalogChanged, give_up)
        if answer.error in (OTHER_BASE, UNFINISHED):
            raise CatalogMoved
        if answer.error:
            raise OperationalError(f"the catalog was not changed: {answer.error}", hint="try again")
        self._finish(answer.version)
        return answer.ts

    def _finish(self, version: int) -> None:
        """Wait until what it began is done. Raises why it was taken back: then the catalog is the one after it."""
        above_version = version - 1
        give_up = time.monotonic() + FINISH_MS_MAX / 1000
        while True:
            told = self._requests.ask(FetchCatalog(0, above_version), CatalogIs, time.monotonic() + FETCH_MS_MAX / 1000)
            stored = Stored.unpack(told.stored)
            if told.version > version or not stored.unfinished:
                self._base = self._adopt(told)
                raise_failed(stored, {version})
                return
            if time.monotonic() > give_up:
                raise Unavailable(
                    "the catalog was changed, but steps of deferred views that it concerns do not end",
                    hint="it is finished when they do; see whether view managers run",
                )
            above_version = max(above_version, told.version)

    def carry_out(self, next_catalog: Next) -> None:
        """A change that takes several catalogs, each of which is finished before the next one: contents are made."""
        assert self._changing_thread == threading.get_ident(), "what is changed was looked at before"
        running = changing(next_catalog, new_number)
        asked = next(running)
        while True:
            kind: type[CatalogIs | CatalogChanged] = CatalogIs if isinstance(asked, FetchCatalog) else CatalogChanged
            answer = self._requests.ask(asked, kind, time.monotonic() + CHANGE_MS_MAX / 1000)
            try:
                asked = running.send(answer)
            except StopIteration as finished:
                self._base = self._adopt(finished.value)
                return
