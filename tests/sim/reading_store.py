"""Some read the shared store by themselves, beside the LTMs, at timestamps up to which they were told that it is
complete: what they find there is what was there at the timestamp, and stays so, while ranges move, LTMs come and go,
and the store fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias, cast
from unittest.mock import patch

from viewtide.changetables.keys import table_range
from viewtide.changetables.types import Row
from viewtide.coordinator.two_phase.messages import ReadAt
from viewtide.ltm import codec
from viewtide.ltm.two_phase.journal import Journal
from viewtide.ltm.two_phase.messages import Read
from viewtide.ltm.two_phase.participant import Participant

from . import cluster, stored, views_cluster
from .checkers import Checker
from .following import Follower, Looking, followed_ids
from .process import Host
from .scenario import Built, Mutant, Scenario
from .store import SimStore
from .stored import StoredViewsReplay
from .trace import Event
from .world import World

READERS = ("store-reader-1", "store-reader-2")
SEEDS_MAX = 60

#: Rows by key, in order.
Found: TypeAlias = tuple[tuple[bytes, Row], ...]


class StoreReader(Follower):
    def __init__(self, host: Host, store: SimStore) -> None:
        super().__init__(host)
        self._store = store

    def _look(self, name: str) -> Looking:
        ids = followed_ids(name)
        at = yield from self._moment(name, ids)
        ranges = [table_range(each) for each in ids]
        yield ReadAt(0, at, (), tuple((*each, 0, False) for each in ranges), True)
        found = [cell for each in ranges for cell in self._store.inner.scan(*each, at, 1 << 60)]
        rows = tuple((cell.key, codec.unpack_row(cell.value)) for cell in found if cell.value is not None)
        self._host.note("read stored", name, at, rows)


class ReadStored(Checker):
    """What was found in the store is what there was."""

    kinds = ("read stored",)

    def __init__(self, replay: StoredViewsReplay) -> None:
        super().__init__()
        self._replay = replay
        self._reads: list[tuple[str, int, Found]] = []

    def observe(self, event: Event) -> None:
        self._reads.append(cast("tuple[str, int, Found]", event.detail))

    def finish(self) -> None:
        for name, at, found in self._reads:
            prefixes = {table_range(each)[0] for each in followed_ids(name)}
            there = {key: row for key, row in self._replay.cells_at(at).items() if key[:4] in prefixes}
            if dict(found) != there:
                differing = [key for key in {**dict(found), **there} if dict(found).get(key) != there.get(key)][:3]
                wrong = [(key.hex(), dict(found).get(key), there.get(key)) for key in differing]
                raise self.violation(f"{name} at {at}: in the store was not what there was: {wrong}", name)
            self.traffic["rows read in the store"] += len(found)
        self.traffic["reads of the store"] += len(self._reads)


def build(world: World) -> Built:
    made = stored.build_views(world)
    (store,) = made.around.stores
    replay = next(each for each in made.checkers if isinstance(each, StoredViewsReplay))
    for name in READERS:
        world.add(name, lambda host: StoreReader(host, store), disk=False)
    made.around.mix = replace(made.around.mix, spared=(*made.around.mix.spared, *READERS))
    return Built(made.around, (*made.checkers, ReadStored(replay)))


# --- known-bad variants ---


def _by_the_log_alone(self: Participant, read: Read) -> bool:
    return True


def _by_the_time_alone(self: Participant, read: Read) -> bool:
    assert isinstance(self.journal, Journal)
    return self.journal.stored.ts >= read.at


MUTANTS = (
    Mutant(
        "what is in the log only is taken for stored",
        lambda: patch.object(Participant, "_has_stored", _by_the_log_alone),
        SEEDS_MAX,
    ),
    Mutant(
        "deferred views are taken for stored with the rest",
        lambda: patch.object(Participant, "_has_stored", _by_the_time_alone),
        SEEDS_MAX,
    ),
)

SCENARIO = Scenario(
    name="stored-reading",
    summary="some read the shared store beside the LTMs, at timestamps up to which it is complete",
    build=build,
    make_world=cluster.make_world,
    safety_ms=cluster.SAFETY_MS,
    liveness_ms_max=views_cluster.LIVENESS_MS_MAX,
    mutants=MUTANTS,
    traffic_min={"commits": 60, "reads of the store": 10, "rows read in the store": 40},
)
