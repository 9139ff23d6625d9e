"""The numbers of the messages between clients and coordinators."""

from __future__ import annotations

from ...ltm.wire import register_all
from . import messages

#: Never changed, only added to.
TABLE = {
    128: messages.Submit,
    129: messages.Outcome,
    130: messages.ReadAt,
    131: messages.RowsAt,
    132: messages.ChangesAt,
    133: messages.ChangesFound,
    134: messages.Submits,
    135: messages.Outcomes,
}
register_all(TABLE)
