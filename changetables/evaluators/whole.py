"""Which evaluator computes a view as a whole: its first contents, or a batch refresh. The one that is expected to be
ready first, by what was measured in this process.

    rows    rows x us
    Spark   start of the session, unless there is one, + a job + rows x us

Until something was measured, guesses stand for it. Spark is only asked about where it is installed and there is much to
do: a session is never started for small work. `rows` are also columns, where the plan has measured that they cost less
and rows are stored so that they can be read by columns (`ltm/fixed.py`).
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import InterfaceError
from .choice import COLUMNS, ROWS, require_columns
from .spark_session import measured_start_s, require_spark

SPARK = "spark"
NAMES = (ROWS, COLUMNS, SPARK)

#: Rows below which Spark is not asked about: less than what a job takes that does nothing.
SPARK_ROWS_MIN = 200_000
#: Rows up to which somebody counts to find out what Spark did. More than that is taken for that many.
COUNTED_ROWS_MAX = 20_000_000
#: Guesses, see `python -m bench choice` and `bulk`: on two cores 0.6 to 1.2 us by rows or columns where rows were
#: loaded in bulk, more where they were not; 1.1 us and 0.7 s a job by Spark. Its tasks gain with the cores; what the
#: driver does with their results does not.
ROWS_US = 1.2
SPARK_US = 0.2 + 2.0 / (os.cpu_count() or 1)
JOB_S = 1.0
START_S = 12.0
#: Weight of what was measured last.
LAST_WEIGHT = 0.5


class Chosen(NamedTuple):
    """`rows_count`: how many rows there are to go through, as far as somebody counted. `is_asked`: a user wants it so;
    else `rows` leaves it to the plan what becomes of rows that are stored in columns."""

    evaluator: str
    reason: str
    rows_count: int = 0
    is_asked: bool = False


#: Where there is nothing to choose from.
ROWS_ALONE = Chosen(ROWS, "Spark is not installed")


@dataclass
class WholeCosts:
    """What was measured; one for the process, because it is about the machine."""

    us: dict[str, float] = field(default_factory=lambda: {ROWS: ROWS_US, SPARK: SPARK_US})
    job_s: float = JOB_S
    #: The first job of a process starts Spark's workers, for seconds: it says nothing about the others.
    _is_warm: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, evaluator: str, rows_count: int, seconds: float) -> None:
        """An evaluator took so long for so many rows, the start of a session left out."""
        if evaluator not in self.us or not rows_count:
            return
        with self._lock:
            if evaluator == SPARK and not self._is_warm:
                self._is_warm = True
            elif evaluator == SPARK and rows_count < SPARK_ROWS_MIN:
                self.job_s += LAST_WEIGHT * (seconds - self.job_s)
            elif rows_count >= SPARK_ROWS_MIN:
                work_s = max(0.0, seconds - self.job_s) if evaluator == SPARK else seconds
                self.us[evaluator] += LAST_WEIGHT * (work_s * 1e6 / rows_count - self.us[evaluator])

    def expected_s(self, evaluator: str, rows_count: int, has_session: bool) -> float:
        work_s = rows_count * self.us[evaluator] / 1e6
        if evaluator == ROWS:
            return work_s
        return work_s + self.job_s + (0.0 if has_session else measured_start_s() or START_S)

    def break_even(self, has_session: bool) -> int | None:
        """The number of rows from which on Spark is expected to be ready first; None: never. To know whether there are
        so many nobody has to count more."""
        saved_us = self.us[ROWS] - self.us[SPARK]
        if saved_us <= 0:
            return None
        return max(SPARK_ROWS_MIN, int(self.expected_s(SPARK, 0, has_session) * 1e6 / saved_us) + 1)

    def never(self) -> Chosen:
        """Where Spark costs more, however many rows there are."""
        return Chosen(ROWS, f"a row takes about {self.us[ROWS]:.1f} us by rows, {self.us[SPARK]:.1f} us by Spark")

    def choose(self, rows_count: int, has_session: bool) -> Chosen:
        """For so many rows, if Spark is installed."""
        if rows_count < SPARK_ROWS_MIN:
            return Chosen(ROWS, f"{rows_count:,} rows: too few for Spark", rows_count)
        rows_s, spark_s = (self.expected_s(each, rows_count, has_session) for each in (ROWS, SPARK))
        started = "" if has_session else ", with the start of a session"
        reason = f"{rows_count:,} rows: about {rows_s:.1f} s by rows, {spark_s:.1f} s by Spark{started}"
        return Chosen(SPARK if spark_s < rows_s else ROWS, reason, rows_count)


COSTS = WholeCosts()


def forced(evaluator: str) -> Chosen:
    """What a user asks for, if it is there."""
    if evaluator not in NAMES:
        raise InterfaceError(f"{evaluator!r} is no evaluator", hint=f"use {', '.join(map(repr, NAMES))}, or None")
    if evaluator == COLUMNS:
        require_columns()
    if evaluator == SPARK:
        require_spark()
    return Chosen(evaluator, "asked for", is_asked=True)
