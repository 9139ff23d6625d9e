"""The numbers of the messages of deferred refresh."""

from __future__ import annotations

from ...ltm.wire import register_all
from . import cluster_messages as messages

#: Never changed, only added to.
TABLE = {
    160: messages.Close,
    161: messages.Closed,
    162: messages.Collect,
    163: messages.Changed,
    164: messages.Marker,
    165: messages.Work,
    166: messages.Working,
    167: messages.SlotDone,
    168: messages.SlotRefused,
    169: messages.Hello,
    170: messages.Passed,
    171: messages.WantGroup,
    172: messages.GroupIs,
}
register_all(TABLE)
