"""Viewtide: transactions and materialized views that stay right, on a key-value store.

Names are loaded on first use (PEP 562), because this module runs on every import of a subpackage.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import aio as aio
    from .changes import ViewChange
    from .changetables.builder import (
        JoinEdge,
        JoinTable,
        Query,
        avg,
        count,
        max,
        min,
        query,
        stddev_pop,
        stddev_samp,
        sum,
        var_pop,
        var_samp,
    )
    from .database import Database, column, connect
    from .errors import (
        Busy,
        CommitUnknown,
        DatabaseError,
        DataError,
        DirectoryInUse,
        Error,
        IntegrityError,
        InterfaceError,
        InternalError,
        NotSupportedError,
        OperationalError,
        ProgrammingError,
        Refused,
        StaleRead,
        TransactionConflict,
        Unavailable,
        UnsupportedView,
    )
    from .freshness import TargetLag, target_lag
    from .reads import Snapshot
    from .rows import Result, Row, Token
    from .status import DatabaseStatus, HotGroup, StepStatus, ViewManagerStatus, ViewStatus
    from .table import LoadResult, Table
    from .transaction import Transaction
    from .verify import VerifyReport
    from .view import View

__version__ = "0.1.0"

_HOMES = {
    "changetables.builder": (
        "JoinEdge",
        "JoinTable",
        "Query",
        "avg",
        "count",
        "max",
        "min",
        "query",
        "stddev_pop",
        "stddev_samp",
        "sum",
        "var_pop",
        "var_samp",
    ),
    "changes": ("ViewChange",),
    "database": ("Database", "column", "connect"),
    "errors": (
        "Busy",
        "CommitUnknown",
        "DataError",
        "DatabaseError",
        "DirectoryInUse",
        "Error",
        "IntegrityError",
        "InterfaceError",
        "InternalError",
        "NotSupportedError",
        "OperationalError",
        "ProgrammingError",
        "Refused",
        "StaleRead",
        "TransactionConflict",
        "Unavailable",
        "UnsupportedView",
    ),
    "freshness": ("TargetLag", "target_lag"),
    "reads": ("Snapshot",),
    "rows": ("Result", "Row", "Token"),
    "status": ("DatabaseStatus", "HotGroup", "StepStatus", "ViewManagerStatus", "ViewStatus"),
    "table": ("LoadResult", "Table"),
    "transaction": ("Transaction",),
    "verify": ("VerifyReport",),
    "view": ("View",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Busy",
    "CommitUnknown",
    "DataError",
    "Database",
    "DatabaseError",
    "DatabaseStatus",
    "DirectoryInUse",
    "Error",
    "HotGroup",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "JoinEdge",
    "JoinTable",
    "LoadResult",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Query",
    "Refused",
    "Result",
    "Row",
    "Snapshot",
    "StaleRead",
    "StepStatus",
    "Table",
    "TargetLag",
    "Token",
    "Transaction",
    "TransactionConflict",
    "Unavailable",
    "UnsupportedView",
    "VerifyReport",
    "View",
    "ViewChange",
    "ViewManagerStatus",
    "ViewStatus",
    "aio",
    "avg",
    "column",
    "connect",
    "count",
    "max",
    "min",
    "query",
    "stddev_pop",
    "stddev_samp",
    "sum",
    "target_lag",
    "var_pop",
    "var_samp",
]


def __getattr__(name: str) -> object:
    if name == "aio":
        return import_module(".aio", __name__)
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'viewtide' has no attribute {name!r}")
    value: object = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
