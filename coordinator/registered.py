"""All messages of a cluster's processes: whoever imports this can encode and decode them (`ltm/wire.py`)."""

from __future__ import annotations

from ..ltm.cluster import registered as cluster
from ..ltm.two_phase import registered as commit
from .cluster import registered as processes
from .two_phase import registered as transactions
from .vms import registered as refresh

#: By their numbers.
MESSAGES: dict[int, type] = {
    **commit.TABLE,
    **cluster.TABLE,
    **transactions.TABLE,
    **refresh.TABLE,
    **processes.TABLE,
}
