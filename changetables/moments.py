"""Functions of dates and timestamps with PostgreSQL 15's results, for compiled expressions. No argument is ever None.

A timestamptz is a naive datetime in UTC, and the time zone of the session is UTC, so it is treated as a timestamp.
Years go from 1 to 9999; what PostgreSQL could still hold beyond is a DataError here.
"""

from __future__ import annotations

import calendar
import datetime
from collections.abc import Callable
from decimal import Decimal

from .errors import UNIT_HINT, DataError
from .numbers import decimal_add, decimal_div

MICROSECONDS_PER_SECOND = 1_000_000
MICROSECONDS_PER_DAY = 86_400 * MICROSECONDS_PER_SECOND
#: The Julian day before the first day of year 1.
_JULIAN_OF_ORDINAL_0 = 1_721_425
_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)

Moment = datetime.date | datetime.datetime


def _names(name: str, *others: str) -> dict[str, str]:
    return dict.fromkeys((name, f"{name}s", *others), name)


#: PostgreSQL's names for the fields of a moment, all to the one that is used here.
FIELDS = {
    **_names("microsecond", "us", "usec", "usecs"),
    **_names("millisecond", "ms", "msec", "msecs"),
    **_names("second", "s", "sec", "secs"),
    **_names("minute", "m", "min", "mins"),
    **_names("hour", "h", "hr", "hrs"),
    **_names("day", "d"),
    **_names("week", "w"),
    **_names("month", "mon", "mons"),
    **dict.fromkeys(("quarter", "qtr"), "quarter"),
    **_names("year", "y", "yr", "yrs"),
    **_names("decade", "dec", "decs"),
    **dict.fromkeys(("century", "centuries", "c", "cent"), "century"),
    **dict.fromkeys(("millennium", "millennia", "mil", "mils"), "millennium"),
    **{name: name for name in ("dow", "doy", "isodow", "isoyear", "epoch", "julian")},
}
_ZONE_FIELDS = frozenset({"timezone", "timezone_hour", "timezone_minute"})
_TIME_FIELDS = frozenset({"microsecond", "millisecond", "second", "minute", "hour"})


def _field(written: str, kind: str) -> str:
    name = FIELDS.get(written) or FIELDS.get(written.lower())
    if name is None:
        raise DataError(f'unit "{written.lower()[:40]}" not recognized for type {kind}', hint=UNIT_HINT)
    return name


def _unsupported(written: str, kind: str) -> DataError:
    return DataError(f'unit "{written.lower()[:40]}" not supported for type {kind}', hint=UNIT_HINT)


def _out_of_range(kind: str) -> DataError:
    return DataError(f"{kind} out of range", hint="years go from 1 to 9999")


# --- arithmetic ---


def add_days(date: datetime.date, days: int) -> datetime.date:
    try:
        return date + datetime.timedelta(days)
    except OverflowError:
        raise _out_of_range("date") from None


def days_between(later: datetime.date, earlier: datetime.date) -> int:
    return (later - earlier).days


def add_interval(moment: datetime.datetime, months: int, days: int, microseconds: int) -> datetime.datetime:
    """Months first, where a day that the month does not have becomes its last one; then days, then the time."""
    try:
        if months:
            year, month = divmod(moment.year * 12 + moment.month - 1 + months, 12)
            day = min(moment.day, calendar.monthrange(year, month + 1)[1])
            moment = moment.replace(year, month + 1, day)
        return moment + datetime.timedelta(days=days, microseconds=microseconds)
    except (OverflowError, ValueError):
        raise _out_of_range("timestamp") from None


def make_date(year: int, month: int, day: int) -> datetime.date:
    try:
        return datetime.date(year, month, day)
    except (OverflowError, ValueError):
        raise DataError(
            f"date field value out of range: {year}-{month:02d}-{day:02d}", hint="years go from 1 to 9999"
        ) from None


# --- date_trunc ---


def _start_of_day(moment: datetime.datetime) -> datetime.datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _start_of_week(moment: datetime.datetime) -> datetime.datetime:
    return _start_of_day(moment) - datetime.timedelta(moment.weekday())


def _start_of_month(moment: datetime.datetime, month: int) -> datetime.datetime:
    return datetime.datetime(moment.year, month, 1)


def _start_of_year(year: int) -> datetime.datetime:
    return datetime.datetime(year, 1, 1)


_TRUNCATIONS: dict[str, Callable[[datetime.datetime], datetime.datetime]] = {
    "microsecond": lambda moment: moment,
    "millisecond": lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000),
    "second": lambda moment: moment.replace(microsecond=0),
    "minute": lambda moment: moment.replace(second=0, microsecond=0),
    "hour": lambda moment: moment.replace(minute=0, second=0, microsecond=0),
    "day": _start_of_day,
    "week": _start_of_week,
    "month": lambda moment: _start_of_month(moment, moment.month),
    "quarter": lambda moment: _start_of_month(moment, (moment.month - 1) // 3 * 3 + 1),
    "year": lambda moment: _start_of_year(moment.year),
    # Decades begin with the year 0 of ten, centuries and millennia with the year 1.
    "decade": lambda moment: _start_of_year(moment.year // 10 * 10),
    "century": lambda moment: _start_of_year((moment.year - 1) // 100 * 100 + 1),
    "millennium": lambda moment: _start_of_year((moment.year - 1) // 1000 * 1000 + 1),
}


def date_trunc(moment: datetime.datetime, field: str) -> datetime.datetime:
    truncate = _TRUNCATIONS.get(field)
    if truncate is None:
        name = _field(field, "timestamp")
        truncate = _TRUNCATIONS.get(name)
        if truncate is None:
            raise _unsupported(field, "timestamp")
    try:
        return truncate(moment)
    except (OverflowError, ValueError):
        raise _out_of_range("timestamp") from None


# --- extract and date_part ---


_PARTS: dict[str, Callable[[Moment], int]] = {
    "day": lambda moment: moment.day,
    "week": lambda moment: moment.isocalendar()[1],
    "month": lambda moment: moment.month,
    "quarter": lambda moment: (moment.month + 2) // 3,
    "year": lambda moment: moment.year,
    "decade": lambda moment: moment.year // 10,
    "century": lambda moment: (moment.year + 99) // 100,
    "millennium": lambda moment: (moment.year + 999) // 1000,
    "dow": lambda moment: moment.isoweekday() % 7,
    "doy": lambda moment: moment.timetuple().tm_yday,
    "isodow": lambda moment: moment.isoweekday(),
    # The first days of year 1 belong to week 1 of that year, as year 1 begins with a Monday.
    "isoyear": lambda moment: moment.isocalendar()[0],
}


def extract_date(date: datetime.date, field: str) -> Decimal:
    name = _field(field, "date") if field.lower() not in _ZONE_FIELDS else "timezone"
    part = _PARTS.get(name)
    if part is not None:
        return Decimal(part(date))
    if name == "epoch":
        return Decimal((date.toordinal() - _EPOCH.toordinal()) * 86_400)
    if name == "julian":
        return Decimal(date.toordinal() + _JULIAN_OF_ORDINAL_0)
    raise _unsupported(field, "date")


def extract_timestamp(moment: datetime.datetime, field: str) -> Decimal:
    part = _PARTS.get(field)  # The common names, without a look at the others.
    if part is not None:
        return Decimal(part(moment))
    if field.lower() in _ZONE_FIELDS:
        raise _unsupported(field, "timestamp without time zone")
    name = _field(field, "timestamp")
    part = _PARTS.get(name)
    if part is not None:
        return Decimal(part(moment))
    return _extract_time(moment, name)


def extract_timestamptz(moment: datetime.datetime, field: str) -> Decimal:
    return Decimal(0) if field.lower() in _ZONE_FIELDS else extract_timestamp(moment, field)


def _extract_time(moment: datetime.datetime, name: str) -> Decimal:
    """The fields whose digits after the point PostgreSQL fixes."""
    seconds = moment.second * MICROSECONDS_PER_SECOND + moment.microsecond
    if name == "minute":
        return Decimal(moment.minute)
    if name == "hour":
        return Decimal(moment.hour)
    if name == "second":
        return Decimal(seconds).scaleb(-6)
    if name == "millisecond":
        return Decimal(seconds).scaleb(-3)
    if name == "microsecond":
        return Decimal(seconds)
    if name == "epoch":
        return Decimal((moment - _EPOCH) // _MICROSECOND).scaleb(-6)
    of_day = (moment.hour * 60 + moment.minute) * 60 * MICROSECONDS_PER_SECOND + seconds
    return decimal_add(moment.toordinal() + _JULIAN_OF_ORDINAL_0, decimal_div(of_day, MICROSECONDS_PER_DAY))


def date_part(moment: datetime.datetime, field: str) -> float:
    """As a double: what came before extract(). It computes with doubles too, which shows in the last digit."""
    part = _PARTS.get(field)
    if part is not None:
        return float(part(moment))
    if field.lower() in _ZONE_FIELDS:
        raise _unsupported(field, "timestamp without time zone")
    name = _field(field, "timestamp")
    if name == "second":
        return moment.second + moment.microsecond / 1e6
    if name == "millisecond":
        return moment.second * 1e3 + moment.microsecond / 1e3
    if name == "epoch":
        return ((moment - _EPOCH) // _MICROSECOND) / 1e6
    if name == "julian":
        seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second + moment.microsecond / 1e6
        return moment.toordinal() + _JULIAN_OF_ORDINAL_0 + seconds / 86_400.0
    return float(extract_timestamp(moment, name))


def date_part_tz(moment: datetime.datetime, field: str) -> float:
    return 0.0 if field.lower() in _ZONE_FIELDS else date_part(moment, field)


# --- text ---


def date_text(date: datetime.date) -> str:
    return date.isoformat()


def timestamp_text(moment: datetime.datetime) -> str:
    """Without zeros at the end of a fraction."""
    text = moment.isoformat(" ")
    return text.rstrip("0") if moment.microsecond else text


def timestamptz_text(moment: datetime.datetime) -> str:
    return timestamp_text(moment) + "+00"
