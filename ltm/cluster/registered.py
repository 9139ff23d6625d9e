"""The numbers of the messages about who owns what, and about logs that live elsewhere."""

from __future__ import annotations

from ..wire import register_all
from . import hosted, log_messages, messages

#: Never changed, only added to.
TABLE = {
    64: messages.ForLog,
    65: messages.NotHere,
    66: messages.Report,
    67: messages.Lease,
    68: messages.FetchMap,
    69: messages.NewMap,
    70: messages.FetchRange,
    71: messages.RangeRows,
    72: messages.Split,
    73: messages.Merge,
    74: messages.MoveRange,
    75: messages.Done,
    76: messages.ChangeCatalog,
    77: messages.CatalogChanged,
    78: messages.FetchCatalog,
    79: messages.CatalogIs,
    96: log_messages.Seal,
    97: log_messages.ReadLog,
    98: log_messages.LogRecords,
    99: log_messages.NoLog,
    112: hosted.Logged,
}
register_all(TABLE)
