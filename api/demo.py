"""`viewtide demo`: a dashboard that stays right while its process is killed, on a terminal, as lines, or as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .demo_supervisor import Phase, Progress, Report, Supervisor
from .demo_workload import EVENTS_PER_TRANSACTION, PRODUCTS_COUNT, SHOPS_COUNT, VIEW_SQL
from .demo_writer import Total

#: Without a terminal, a line this often.
LINE_EVERY_S = 1.0
WIDTH_MAX = 88

Show = Callable[[Progress], None]


def run_demo(seconds: float, writers: int, directory: Path | None, as_json: bool) -> bool:
    """Run the demo and show it; says whether everything held."""
    if isinstance(sys.stdout, TextIOWrapper):
        # An output without UTF-8 gets question marks, not an error in the middle of the run.
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    with _database_directory(directory) as database, _screen(console, as_json, writers) as show:
        report = Supervisor(database, seconds, writers, show).run()
    if as_json:
        print(json.dumps(_as_json(report)))
    else:
        console.print(_proof(report, directory, _width(console)))
    return report.ok


@contextmanager
def _database_directory(directory: Path | None) -> Iterator[Path]:
    """The user's directory stays; a temporary one goes, however the run ends."""
    if directory is not None:
        yield directory.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="viewtide-demo-") as parent:
        yield Path(parent) / "dashboard.db"


@contextmanager
def _screen(console: Console, as_json: bool, writers: int) -> Iterator[Show]:
    if as_json:
        yield lambda progress: None
        return
    console.print(_introduction(writers))
    if not console.is_terminal:
        yield _Lines(console).show
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda progress: live.update(_dashboard(progress, _width(console)), refresh=True)


def _as_json(report: Report) -> dict[str, object]:
    return asdict(report) | {"rows": [total._asdict() for total in report.rows]}


def _introduction(writers: int) -> Text:
    text = Text()
    text.append("\nViewtide", style="bold cyan")
    text.append(" keeps this view inside every commit:\n\n")
    text.append("  " + VIEW_SQL.replace("\n", "\n  "), style="green")
    text.append(
        f"\n\n{SHOPS_COUNT} shops, {PRODUCTS_COUNT:,} products, {_count(writers, 'writer')} in one process. "
        f"A transaction inserts\n{EVENTS_PER_TRANSACTION} events and deletes {EVENTS_PER_TRANSACTION} old ones; "
        "some correct a cost or move a product.\nSometime in the middle the process gets a kill -9.\n"
    )
    return text


# -- on a terminal


def _width(console: Console) -> int:
    return min(console.width, WIDTH_MAX)


def _dashboard(progress: Progress, width: int) -> RenderableType:
    head = Group(_figures(progress), _bar(progress), *_story(progress))
    panel = Panel(head, title="[bold cyan]Viewtide demo[/]", border_style="cyan", width=width)
    compared = progress.compared
    return panel if compared is None else Group(panel, _totals(compared.totals, width), _compared_line(progress))


def _figures(progress: Progress) -> Table:
    grid = Table.grid(expand=True)
    for _ in range(4):
        grid.add_column(justify="center")
    grid.add_row(
        _figure(f"{progress.tx_per_s:,.0f}", "tx/s"),
        _figure(f"{progress.latencies.percentile_ms(50):.1f} ms", "p50"),
        _figure(f"{progress.latencies.percentile_ms(99):.1f} ms", "p99"),
        _figure(f"{progress.transactions:,}", "acknowledged"),
    )
    return grid


def _figure(value: str, what: str) -> Text:
    return Text.assemble((value, "bold"), " ", (what, "dim"))


def _bar(progress: Progress) -> Table:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column()
    grid.add_column(justify="right", width=12)
    done = min(progress.elapsed_s, progress.seconds)
    grid.add_row(ProgressBar(total=progress.seconds, completed=done), f"{done:.1f} / {progress.seconds:g} s")
    return grid


def _story(progress: Progress) -> list[Text]:
    """What has happened, a line each, and what happens now."""
    lines = []
    kill, recovery = progress.kill, progress.recovery
    if kill is not None:
        lines.append(
            Text(f"! kill -9 {kill.pid} at {kill.at_s:.1f} s: {kill.acknowledged:,} commits acknowledged", "red")
        )
    if recovery is not None:
        lines.append(_verdict(recovery.accounts.hold and recovery.half_there == 0, _recovery_line(progress)))
    now: dict[Phase, str] = {
        "starting": "creating the tables ...",
        "writing": "writing; the kill can come at any moment ...",
        "recovering": "a new process recovers the directory and checks every row ...",
        "writing again": "the new process goes on where the old one was killed ...",
        "checking": "writers stopped; checking every row ...",
    }
    return [*lines, *(Text(f"▸ {now[phase]}", "yellow") for phase in now if phase == progress.phase)]


def _recovery_line(progress: Progress) -> str:
    recovery = progress.recovery
    assert recovery is not None
    accounts = recovery.accounts
    return (
        f"recovered in {recovery.open_ms:,.0f} ms: {accounts.present:,} commits there, "
        f"{accounts.lost:,} lost, {recovery.half_there:,} half there"
    )


def _verdict(good: bool, text: str) -> Text:
    return Text(f"✓ {text}", "green") if good else Text(f"✗ {text}", "bold red")


def _totals(totals: Sequence[Total], width: int) -> Table:
    """Two halves beside each other, so that a small terminal shows all."""
    table = Table(box=None, width=width, padding=(0, 1), header_style="dim")
    for _ in range(2):
        table.add_column("category")
        table.add_column("view", justify="right")
        table.add_column("recompute", justify="right")
        table.add_column("", justify="center")
    middle = (len(totals) + 1) // 2
    right = [_cells(total) for total in totals[middle:]]
    right += [("", "", "", Text())] * (middle - len(right))
    for left, beside in zip(totals[:middle], right, strict=True):
        table.add_row(*_cells(left), *beside)
    return table


def _cells(total: Total) -> tuple[str, str, str, Text]:
    mark = Text("=", "bold green") if total.equal else Text("≠", "bold red")
    return total.category, f"{total.cost:,}", f"{total.recomputed_cost:,}", mark


def _compared_line(progress: Progress) -> Text:
    assert progress.compared is not None
    age_s = max(0.0, progress.elapsed_s - progress.compared_at_s)
    good = all(total.equal for total in progress.compared.totals)
    text = _verdict(good, f"one snapshot {age_s:.1f} s ago: SUM and COUNT over {progress.compared.events:,} events")
    return text.append(f"; compared {_count(progress.comparisons, 'time')}", style="dim")


# -- as lines


class _Lines:
    """What happens, for a file or a pipe: a line a second, and one for each thing that matters."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = LINE_EVERY_S
        self._told_kill = self._told_recovery = False

    def show(self, progress: Progress) -> None:
        if progress.kill is not None and not self._told_kill:
            self._told_kill = True
            kill = progress.kill
            self._line(kill.at_s, f"kill -9 {kill.pid}: {kill.acknowledged:,} commits acknowledged")
        if progress.recovery is not None and not self._told_recovery:
            self._told_recovery = True
            self._next_s = progress.elapsed_s + LINE_EVERY_S
            self._line(progress.elapsed_s, _recovery_line(progress))
        if progress.elapsed_s >= self._next_s and progress.phase.startswith("writing"):
            self._next_s = max(self._next_s + LINE_EVERY_S, progress.elapsed_s)
            self._line(progress.elapsed_s, self._figures(progress))

    def _figures(self, progress: Progress) -> str:
        p50, p99 = (progress.latencies.percentile_ms(percent) for percent in (50, 99))
        compared = "" if progress.compared is None else f"  view {_sign(progress)} recompute"
        return (
            f"{progress.tx_per_s:7,.0f} tx/s  p50 {p50:5.1f} ms  p99 {p99:6.1f} ms  "
            f"acknowledged {progress.transactions:8,}{compared}"
        )

    def _line(self, at_s: float, text: str) -> None:
        self._console.print(f"{at_s:6.1f} s  {text}", soft_wrap=True)


def _sign(progress: Progress) -> str:
    return "=" if progress.comparisons_unequal == 0 else "≠"


# -- the end


def _proof(report: Report, directory: Path | None, width: int) -> RenderableType:
    under_way = max(0, report.present - report.acknowledged + report.lost)
    there = f"{report.present:,} there" + (f" (+{under_way} under way)" if under_way else "")
    sign = "=" if report.view_equals_recompute else "≠"
    lines = [
        _verdict(
            report.killed and report.recovered and report.lost == 0,
            f"kill -9: {report.acknowledged:,} commits acknowledged, {there}, {report.lost:,} lost",
        ),
        _verdict(report.half_there == 0, f"{report.half_there:,} transactions half there: every row was checked"),
        # Those while writing, and the two over everything: after recovery and at the end.
        _verdict(
            report.view_equals_recompute, f"view {sign} recompute at one snapshot, {report.comparisons + 2:,} times"
        ),
        Text(
            f"  {report.transactions:,} transactions, {report.tx_per_s:,.0f} tx/s, "
            f"p50 {report.p50_ms:.1f} ms, p99 {report.p99_ms:.1f} ms"
        ),
    ]
    if directory is not None:
        lines.append(Text(f"  the database stays in {directory}", "dim"))
    title = "[bold green]everything holds[/]" if report.ok else "[bold red]NOT everything holds[/]"
    return Panel(Group(*lines), title=title, border_style="green" if report.ok else "red", width=width)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
