"""What a peer may send to the machines of a process, by the role of its key.

LTMs say everything to each other. Without keys everybody is of this machine, and trusted (`LOCAL`).
"""

from __future__ import annotations

from ...ltm.cluster.messages import ChangeCatalog, FetchCatalog, FetchMap, ForLog, Merge, MoveRange, Split
from ...ltm.keys import ADMIN, CLIENT, VIEW_MANAGER
from ..two_phase.messages import ChangesAt, ReadAt, Submit
from ..vms.cluster_messages import Collect, Hello, SlotDone, SlotRefused, WantGroup, Working

_BY_ROLE: dict[str, tuple[type, ...]] = {
    # They are served elsewhere, by a protocol of their own.
    CLIENT: (),
    # They refresh views by ordinary transactions. Tables, ranges and votes are none of their business.
    VIEW_MANAGER: (Hello, Working, SlotDone, SlotRefused, Submit, ReadAt, FetchCatalog),
    ADMIN: (Split, Merge, MoveRange, ChangeCatalog, FetchMap, FetchCatalog, Submit, ReadAt, ChangesAt, WantGroup),
}


def may_send(role: str, message: object) -> bool:
    allowed = _BY_ROLE.get(role)
    if allowed is None or isinstance(message, allowed):
        return True
    return role == VIEW_MANAGER and isinstance(message, ForLog) and isinstance(message.message, Collect)
