"""The error tree (PEP 249). Each error has `.retryable` and `.hint`."""

from .changetables.errors import (
    Busy,
    CommitUnknown,
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    StaleRead,
    TransactionConflict,
    Unavailable,
    UnsupportedView,
)

__all__ = [
    "Busy",
    "CommitUnknown",
    "DataError",
    "DatabaseError",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "StaleRead",
    "TransactionConflict",
    "Unavailable",
    "UnsupportedView",
]
