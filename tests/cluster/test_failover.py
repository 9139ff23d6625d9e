"""Processes of a cluster on HBase are killed and paused under load, one after the other: LTMs, the leader, view
managers, Thrift servers and region servers. What was acknowledged stays, nothing is half there, views are right, and it
goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from random import Random

import pytest

import viewtide as vt

from ..conftest import SOAK
from .faults import (
    LEADER,
    LTM_KIND,
    PAUSED_LEADER,
    PAUSED_LTM,
    REGION,
    THRIFT,
    VIEW_MANAGER,
    Faults,
    Struck,
    faults_under_load,
)
from .load import DEFERRED, FAR, SYNC, WRITERS, audit, number_of

pytestmark = pytest.mark.slow

SEED = 20_261_117
KILLS = {LTM_KIND: 9, LEADER: 7, VIEW_MANAGER: 6, THRIFT: 5, REGION: 3}
PAUSES = {PAUSED_LTM: 7, PAUSED_LEADER: 3}
ROUNDS = 10 if SOAK else 1


def sequence(chance: Random) -> list[str]:
    """An LTM that was killed is back while others are struck: so its kind comes in turn with the others."""
    ltms, others = (
        [kind for kind, times in (KILLS | PAUSES).items() for _ in range(times) if (kind in (LTM_KIND, LEADER)) == ltm]
        for ltm in (True, False)
    )
    order = []
    for _ in range(ROUNDS):
        chance.shuffle(ltms)
        chance.shuffle(others)
        order += [kind for pair in zip_longest(others, ltms) for kind in pair if kind]
    return order


@pytest.mark.timeout(900 * ROUNDS)
def test_kills_and_pauses_under_load(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    assert sum(KILLS.values()) == 30 and sum(PAUSES.values()) == 10
    struck = []
    with faults_under_load(tmp_path, SEED) as faults:
        for kind in sequence(Random(SEED)):
            began_s = time.monotonic()
            struck.append(faults.strike(kind))
            print(struck[-1], f"{time.monotonic() - began_s:.1f} s", flush=True)
        faults.stop()
        check(faults)
    report(struck, record_property)
    assert faults.writes_after_pause == sum(PAUSES.values()) * ROUNDS and faults.stale_writes == 0
    assert faults.reads_after_pause > 0 and faults.stale_reads == 0
    assert faults.auditor.looks > len(struck)


def check(faults: Faults) -> None:
    """After the last fault: exactly what was acknowledged is there, and views are what their definitions say. Nobody is
    in doubt: a reader of all rows would wait for it, and so would a step of a deferred view."""
    with vt.connect(faults.address) as db:
        audit(db, faults.writers)
        with db.snapshot() as snapshot:
            counters = {row["id"]: number_of(row) for row in snapshot.scan("counters")}
            token = snapshot.token
        for number, writer in enumerate(faults.writers):
            assert writer.acknowledged <= counters[number] <= writer.acknowledged + writer.unknown
            assert counters[number] == counters[FAR + number]
        late = db.view(DEFERRED).rows(at_least=token)
        assert sorted(map(str, late)) == sorted(map(str, db.view(SYNC).rows()))
        assert db.view(SYNC).verify().ok and db.view(DEFERRED).verify().ok
    assert len(faults.writers) == WRITERS


def report(struck: list[Struck], record: Callable[[str, object], None]) -> None:
    """The longest outage of each kind, as a table and for the machine."""
    print(f"{'':<16}{'times':>6}{'outage: longest':>18}{'median':>9}{'deferred view':>16}")
    for kind in (*KILLS, *PAUSES):
        some = [each for each in struck if each.kind == kind]
        outages = sorted(each.outage_s for each in some)
        view_s = max(each.view_s for each in some)
        median = outages[len(outages) // 2]
        print(f"{kind:<16}{len(some):>6}{outages[-1]:>16.1f} s{median:>7.1f} s{view_s:>14.1f} s")
        record(f"outage_s {kind}", round(outages[-1], 2))
