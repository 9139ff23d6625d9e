"""The error tree of PEP 249, with what a caller needs to act: may it be retried, and what to do.

The lowest package owns it, because every package above raises from it; `viewtide.errors` is the public name.
"""

from __future__ import annotations

from typing import ClassVar


class Error(Exception):
    """Base of all errors. `retryable`: the same call may succeed later. `hint`: what to do about it."""

    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Past the constructor: that of a subclass makes the message from something else."""
        return _remade, (type(self), self.args), self.__dict__


def _remade(kind: type[Error], args: tuple[object, ...]) -> Error:
    return kind.__new__(kind, *args)


class InterfaceError(Error):
    """The API was used wrongly: a closed database, a finished transaction, a bad argument."""


class DatabaseError(Error):
    """The database refused or failed."""


class OperationalError(DatabaseError):
    """Something outside the caller's statement: damage, disk, another process."""


class IntegrityError(DatabaseError):
    """A constraint would be broken: duplicate key, NULL where none may be."""


class ProgrammingError(DatabaseError):
    """An unknown name, a wrong statement."""


class DataError(DatabaseError):
    """A value that its column or an expression cannot hold."""


class NotSupportedError(DatabaseError):
    """A known feature that is not available here."""


class InternalError(DatabaseError):
    """A broken invariant: a defect of Viewtide. Carries the story of the transaction."""


class TransactionConflict(OperationalError):
    """Another transaction changed what this one read. Run it again."""

    retryable = True


class CommitUnknown(OperationalError):
    """The commit may or may not have happened; ask again by its tx_id."""


class Unavailable(OperationalError):
    """The owner of the data cannot be reached now."""

    retryable = True


class StaleRead(OperationalError):
    """The asked freshness could not be met in time."""

    retryable = True


class Busy(OperationalError):
    """A bounded queue is full. Wait and try again."""

    retryable = True


class DirectoryInUse(OperationalError):
    """Another process, or this one, has the directory open."""


class Refused(OperationalError):
    """The node does not let this client in: asking again changes nothing."""


class LocalProtocolError(InternalError):
    """This process would have said something that the other side may not accept. Raised before anything is sent."""


class RemoteProtocolError(OperationalError):
    """The other side said something that makes no sense. What it said is dropped and counted; nothing has changed."""


class UnsupportedView(NotSupportedError):
    """A definition that cannot be kept incrementally. `reason` and `place` (line, column) say why and where."""

    def __init__(self, reason: str, *, place: tuple[int, int] | None = None, hint: str = "") -> None:
        where = f" at line {place[0]}, column {place[1]}" if place else ""
        super().__init__(f"not supported: {reason}{where}", hint=hint)
        self.reason = reason
        self.place = place


# --- what to do about errors that are made in several places ---

SYNTAX_HINT = "look at what stands before it, too; docs/sql.md has every statement"
UNSUPPORTED_HINT = "docs/sql.md says what there is"
DIVISION_HINT = "divide by NULLIF(divisor, 0) for NULL, or leave such rows out"
INTEGER_HINT = "integers have 64 bits; use numeric for larger ones"
OVERFLOW_HINT = "the result is above the largest float"
UNDERFLOW_HINT = "the result is nearer to zero than the smallest float"
ROOT_HINT = "leave negative numbers out, or use ABS()"
LOGARITHM_HINT = "leave such rows out: only numbers above zero have a logarithm"
POWER_HINT = "leave such rows out, or use another exponent"
FIELD_HINT = "declare the type with more digits before the point, or give a smaller value"
INFINITE_HINT = "leave NaN and infinities out, or keep the type"
CHARACTER_HINT = "characters have the codes 1 to 55295 and 57344 to 1114111"
SUBSTRING_HINT = "use GREATEST(length, 0)"
JSON_HINT = "store the parts that a view needs as columns"
UNIT_HINT = "units are year, quarter, month, week, day, hour, minute, second and their like"

#: By the name that a message gives to a type: how its values are written.
_INPUT_HINTS = {
    "integer": "write digits only, as -12",
    "bigint": "write digits only, as -12",
    "numeric": "write a number, as -1.5",
    "double precision": "write a number, as -1.5e3",
    "boolean": "write true or false",
    "json": 'write names and texts in double quotes, as {"a": [1, null]}',
    "interval": "write numbers with units, as '1 month 2 days 03:04:05'",
}


def counted(number: int, what: str, plural: str = "s") -> str:
    """For messages: "1 column", "2 columns"; `plural` is what is added."""
    return f"{number} {what}{'' if number == 1 else plural}"


def input_hint(type_name: str) -> str:
    """How a text of this type is written."""
    return _INPUT_HINTS.get(type_name, f"write a value of type {type_name}")
