"""The number of what processes send each other."""

from __future__ import annotations

from ...ltm.wire import register_all
from . import addressed

#: Never changed, only added to.
TABLE: dict[int, type] = {192: addressed.Addressed}
register_all(TABLE)
