"""Checking views: the reports of `View.verify` and `View.repair`, and the command `viewtide verify`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from .changetables.recompute import DIFFERENCES_MAX
from .coordinator.verify import Difference, Outcome, Progress
from .names import named_views

if TYPE_CHECKING:
    from .database import Database

__all__ = ["DIFFERENCES_MAX", "Difference", "Progress", "VerifyReport", "run_verify"]

_COLUMNS = ("view", "ok", "rows checked", "differences", "repaired", "ms")


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The stored view against its definition evaluated from scratch at one timestamp.

    `differences` are the first DIFFERENCES_MAX of (row, stored times, recomputed times, where); a row whose values
    differ is there twice, as it is and as it should be. `rows_differing` counts all view rows that differ, those of the
    hidden views that it is made from included; `repaired` those that `repair` has made right. After a repair `ok` says
    that they are now. `note` says what was left out: the oracle, where it has no value for rows that the view does not
    show.
    """

    view: str
    ok: bool
    rows_checked: int
    differences: tuple[Difference, ...]
    as_of: int
    repaired: int = 0
    rows_differing: int = 0
    note: str = ""

    @classmethod
    def of(cls, view: str, outcome: Outcome) -> VerifyReport:
        return cls(
            view,
            outcome.ok,
            outcome.rows_checked,
            tuple(outcome.differences),
            outcome.as_of,
            outcome.rows_repaired,
            outcome.rows_differing,
            outcome.note,
        )


def run_verify(
    database: Database, names: Sequence[str], *, repair: bool, as_json: bool, out: TextIO, err: TextIO
) -> bool:
    """Verify or repair views, all of them if none is named; False if one is not right in the end."""
    checked: list[tuple[VerifyReport, int]] = []
    for view in named_views(database, names):
        started = time.perf_counter()
        with _progress_bar(view.name, err, shown=not as_json) as progress:
            report = view.repair(progress) if repair else view.verify(progress)
        checked.append((report, round((time.perf_counter() - started) * 1000)))
    if as_json:
        print(json.dumps([_plain(report, ms) for report, ms in checked], ensure_ascii=False, allow_nan=False), file=out)
    else:
        _print_table(checked, out, err)
    return all(report.ok for report, _ in checked)


def _plain(report: VerifyReport, ms: int) -> dict[str, object]:
    from .shell_output import json_value

    return {
        "name": report.view,
        "ok": report.ok,
        "rows_checked": report.rows_checked,
        "rows_differing": report.rows_differing,
        "differences": [
            {
                "where": each.where,
                "row": [json_value(value) for value in each.row],
                "stored": each.stored,
                "recomputed": each.recomputed,
                **({"reason": each.reason} if each.reason else {}),
            }
            for each in report.differences
        ],
        "repaired": report.repaired,
        "as_of": report.as_of,
        "ms": ms,
        **({"note": report.note} if report.note else {}),
    }


def _print_table(checked: Sequence[tuple[VerifyReport, int]], out: TextIO, err: TextIO) -> None:
    # Imported here, as below: every view handle imports this module, and needs the report only.
    from .shell_output import Output

    output = Output(out, err, as_json=False, limit=0)
    output.table(
        _COLUMNS,
        [
            (report.view, report.ok, report.rows_checked, report.rows_differing, report.repaired, ms)
            for report, ms in checked
        ],
    )
    for report, _ in checked:
        output.lines(str(each) for each in report.differences)
        if report.rows_differing and len(report.differences) >= DIFFERENCES_MAX:
            output.lines([f"{report.view}: the first {len(report.differences)} differences are shown"])
        if report.note:
            output.lines([f"{report.view}: {report.note}"])


@contextmanager
def _progress_bar(name: str, err: TextIO, *, shown: bool) -> Iterator[Progress | None]:
    """A bar on a terminal; elsewhere nothing, and then nobody counts rows for it."""
    if not shown or not err.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from .shell_output import printable

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(file=err), transient=True) as bar:
        task = bar.add_task(printable(name), total=None)
        yield lambda done, expected: bar.update(task, completed=done, total=expected)
