"""The numbers of the commit protocol's messages, and of the records of a log, which are sent when others read it."""

from __future__ import annotations

from ..wire import register_all
from . import messages, records

#: Never changed, only added to.
TABLE = {
    1: messages.Ask,
    2: messages.Told,
    3: messages.Refused,
    4: messages.Prepare,
    5: messages.Vote,
    6: messages.Decide,
    7: messages.Settled,
    8: messages.Forget,
    9: messages.Inquire,
    10: messages.Answer,
    11: messages.Resolve,
    12: messages.Resolved,
    13: messages.Draw,
    14: messages.Timestamps,
    15: messages.Read,
    16: messages.ReadRows,
    17: messages.NotServed,
    18: messages.ReadChanges,
    19: messages.FoundChanges,
    40: records.Committed,
    41: records.Voted,
    42: records.Refusal,
    43: records.Decided,
    44: records.Forgotten,
    45: records.Adopted,
}
register_all(TABLE)
