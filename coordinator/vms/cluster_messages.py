"""What the view maintenance system of a cluster says to each other. Everybody asks again until he is answered.

    scheduler         LTMs                       view managers
      | Close           |                            |
      |---------------> | a mark at W1; when all     |
      | <---------------| Closed    before is decided|
      | Work            |                            |
      |--------------------------------------------> | Collect
      |                 | <--------------------------|
      |                 | Changed, Changed, Marker   |
      |                 |--------------------------> | propagates; commits its slot (Submit)
      | <--------------------------------------------| SlotDone
      | Passed          |                            |
      |---------------> | forgets                    |

Opening a step and publishing it are transactions (`step_rows`). If a view cannot be computed from what the step takes
in, the step is dropped instead: its slots are given out again, as those of a dropped step, to be taken back.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ...changetables.types import Row
from ...ltm.cluster.messages import ForLog
from .step_rows import Step

#: What became of one key of a source: (source id, key, old row, new row). Of a view, whose rows are computed, only the
#: key is known: both rows are None.
Item: TypeAlias = tuple[int, bytes, Row | None, Row | None]
#: Every log that was ever voted in, and the process that answers for it.
Logs: TypeAlias = tuple[tuple[str, str], ...]


class Close(NamedTuple):
    """Nobody commits at or below the step's W1 any more. `epoch` is that of the range map."""

    step: Step
    epoch: int


class Closed(NamedTuple):
    """All that was committed up to W1 is known to this LTM; so many changed rows concern the step."""

    step: Step
    log: str
    epoch: int
    rows: int


class Collect(NamedTuple):
    """The share of a slot, from the message with the number `first` on."""

    step: Step
    level: int
    slot: int
    first: int


class Changed(NamedTuple):
    step: Step
    level: int
    slot: int
    log: str
    number: int
    items: tuple[Item, ...]


class Marker(NamedTuple):
    """The share is in so many messages, whose numbers begin with 0."""

    step: Step
    level: int
    slot: int
    log: str
    messages: int


class Work(NamedTuple):
    """Refresh this slot, or take it back if the step is dropped. `number` tells assignments of it apart."""

    step: Step
    level: int
    slot: int
    number: int
    logs: Logs


class Working(NamedTuple):
    step: Step
    level: int
    slot: int
    manager: int


class SlotDone(NamedTuple):
    """The slot's row is there, whoever wrote it; it is not there, if the step is dropped."""

    step: Step
    level: int
    slot: int
    manager: int


#: Why a slot is refused that is not of the open step.
NOT_OPEN = "the step is not open"


class SlotRefused(NamedTuple):
    """The step is not open, or the slot's transaction was refused. `failed`: a view cannot be computed, whoever tries
    it, and `reason` says why."""

    step: Step
    level: int
    slot: int
    manager: int
    reason: str
    failed: bool = False


class Hello(NamedTuple):
    """A view manager is there, again and again."""

    manager: int


class Passed(NamedTuple):
    """Published watermarks, by group: what was committed up to them is not needed for it any more."""

    watermarks: tuple[tuple[int, int], ...]


class WantGroup(NamedTuple):
    """To a coordinator, which passes it on to whoever leads: how is the group? With `wanted_ts`, somebody waits until
    its watermark is there or above: its next step begins now. `exact`: the watermark is to be just that at some time,
    as that of other groups is. Group 0 is none: only the view managers are wanted."""

    number: int
    group: int
    wanted_ts: int
    exact: bool = False


#: A view manager: (id, process, slots that it works on, what a slot takes it in ms).
ManagerIs: TypeAlias = tuple[int, str, int, float]


class GroupIs(NamedTuple):
    """`watermark` is what the scheduler knows. Of the last step that had changes: the changed rows, and how long it
    took. `was_exact`: the watermark is or was just what was wanted. `failures`: steps that were dropped since the last
    one that was published; of the last of them, why, and its W1."""

    number: int
    group: int
    watermark: int
    interval_ms: float
    steps: int
    last_rows: int
    last_ms: float
    managers: tuple[ManagerIs, ...]
    was_exact: bool = False
    failures: int = 0
    failure: str = ""
    failed_ts: int = 0


def addressed(log: str, process: str, message: object) -> tuple[str, object]:
    """A message for whoever answers for a log. A process that is named like its log has no others."""
    return (process, message) if log == process else (process, ForLog(log, "", message))
