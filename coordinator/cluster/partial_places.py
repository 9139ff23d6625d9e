"""Which LTM has which partial rows of local views: every log some of every view. In the leader; no I/O, no clock.

A transaction contributes to partial rows that an LTM owns which takes part anyway, and finds them if each log has one
of the view's ids. What is counted at a key is the same wherever it is, so nothing but the number of participants
depends on it. Where there are more logs than ids some stay without; nothing moves because of them, nor when another
process answers for a log. The balancer leaves these keys alone: it would take them away from the rows that they are
near to.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...changetables.keys import table_range
from ...ltm.cluster.messages import MoveRange
from ...ltm.key_range import RangeMap
from ...ltm.tables import Tables


def partial_ids(tables: Tables | None) -> frozenset[int]:
    """The ids of partial rows."""
    return frozenset(number for ids in _ids(tables) for number in ids)


def wanted_move(ranges: RangeMap, tables: Tables | None, alive: list[str]) -> MoveRange | None:
    """What would give a log partial rows that has none, from one that has several; the number of the command is 0."""
    if ranges.moves:
        return None
    for ids in _ids(tables):
        owners: dict[str, list[int]] = {}
        for number in ids:
            found = {log for log, _, _ in ranges.owners(*table_range(number))}
            if len(found) == 1:  # what was cut by a command stays so
                owners.setdefault(found.pop(), []).append(number)
        without = sorted(log for log, host in ranges.hosts.items() if log not in owners and host.life in alive)
        several = [numbers for numbers in owners.values() if len(numbers) > 1]
        if without and several:
            start, stop = table_range(max(several, key=len)[-1])
            return MoveRange(0, start, stop, without[0])
    return None


def _ids(tables: Tables | None) -> Iterator[tuple[int, ...]]:
    if tables is not None and tables.has_partials:
        for rows in tables.views.values():
            if rows.partials:
                yield (rows.view.id, *rows.view.partials)
