"""The bench of the intervals judges deferred views, so it is tested: the pace is kept by schedule, lag that nobody saw
counts, and a view that claims to be fresher than it is does not go unseen."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import intervals, intervals_report, load, machine, plot
from bench.__main__ import parser, run_command
from bench.dashboard import bench_folder
from bench.driver import Timing
from bench.errors import BenchError, Violation
from bench.intervals_report import TABLE_BEGIN, TABLE_END, IntervalRow, check_table_file, write_table
from bench.lag import LOOK_EVERY_S, LagFigures, Phases, lags_ms, measure_lag, recovery_ms
from bench.load import Crew, Pace, Read, Sighting, WallClock, Window, crew_of
from bench.peers.postgres_change_table import change_table_server
from bench.workload import (
    COST_MEAN,
    EVENTS_COUNT_INITIAL,
    INSERT,
    UNIFORM,
    UPDATE,
    UPDATED_ROWS,
    Cell,
    Event,
    ViewChecker,
    ViewRow,
    transactions,
)

CELL = Cell(k=10, clients=2, skew=UNIFORM)
SHORT = Timing(warm_up_s=0.02, measure_s=0.2)
INTERVAL_MS = 40.0
LOOK_OFTEN_S = 0.002


class DeferredMemory:
    """A deferred view in memory: readers see the totals of the last refresh, which a reader brings about when it is
    time. `fault` makes it wrong in one way."""

    def __init__(self, fault: str | None = None) -> None:
        self._fault = fault
        self._lock = threading.Lock()
        self._cost, self._count = COST_MEAN * EVENTS_COUNT_INITIAL, EVENTS_COUNT_INITIAL
        self._shown = self._read()

    def client(self) -> DeferredMemory:
        return self

    def watcher(self) -> DeferredMemory | None:
        return None if self._fault == "no view" else self

    def prepare(self, events: list[Event]) -> Callable[[], None]:
        return lambda: self._commit(events)

    def _commit(self, events: list[Event]) -> None:
        if self._fault == "client fails":
            raise RuntimeError("no more room")
        with self._lock:
            self._cost += sum(event[5] for event in events)
            self._count += len(events) - (self._fault == "torn")

    def _read(self) -> Read:
        return Read([("all", self._cost, self._count)], time.time_ns() // 1_000_000)

    def read(self) -> Read:
        now_ms = time.time_ns() // 1_000_000
        if self._fault == "claims to be fresh":
            return Read(self._shown.rows, now_ms)
        if now_ms >= self._shown.watermark_ms + INTERVAL_MS:
            self.catch_up()
        return self._shown

    def catch_up(self) -> None:
        with self._lock:
            self._shown = self._read()

    def close(self) -> None:
        """Nothing is open."""

    def recompute_differs(self) -> str | None:
        return "one row is missing" if self._fault == "differs" else None


def opened(session: load.LoadSession) -> load.OpenSession:
    @contextmanager
    def open_session() -> Iterator[load.LoadSession]:
        yield session

    return open_session


def measure(fault: str | None = None) -> IntervalRow:
    return intervals.measure_cell("500ms", opened(DeferredMemory(fault)), CELL, SHORT)


# -- the workload


@pytest.mark.parametrize("k", [1, 10, 50])
def test_updates_replace_whole_blocks_of_the_same_150_rows(k: int) -> None:
    seen: set[int] = set()
    for events in itertools.islice(transactions(Cell(k, 2, UNIFORM, UPDATE), client=1), 1_500):
        ids = [event[0] for event in events]
        assert ids == list(range(ids[0], ids[0] + k))
        assert ids[0] % k == 0
        assert sum(event[5] for event in events) == k * COST_MEAN
        seen.update(ids)
    assert seen == set(range(UPDATED_ROWS))


def test_update_sizes_that_leave_a_rest_are_refused() -> None:
    with pytest.raises(ValueError, match="blocks of 40"):
        next(transactions(Cell(40, 2, UNIFORM, UPDATE), client=0))
    with pytest.raises(SystemExit):
        parser().parse_args(["intervals", "--k", "1,40"])


def test_updates_add_no_rows_to_the_view() -> None:
    rows: list[ViewRow] = [("all", COST_MEAN * EVENTS_COUNT_INITIAL, EVENTS_COUNT_INITIAL)]
    ViewChecker("memory", replace(CELL, workload=UPDATE)).check_end(rows, acknowledged=7)
    with pytest.raises(Violation, match="below"):
        ViewChecker("memory", CELL).check_end(rows, acknowledged=7)


# -- the load


def test_clients_take_turns_by_schedule() -> None:
    pace = Pace(start=100.0, clients=4, tx_per_s=8.0)
    due = sorted((pace.due(client, number), client) for client in range(4) for number in range(2))
    assert due == [(100.0 + turn / 8, turn % 4) for turn in range(8)]


def test_moments_since_1970_are_brought_to_the_clock_of_the_bench() -> None:
    clock = WallClock()
    before = time.perf_counter()
    moment = clock.moment(time.time() * 1_000)
    assert before - 0.002 <= moment <= time.perf_counter() + 0.002


def test_a_deferred_view_is_measured() -> None:
    row = measure()
    assert row.tx_per_s > 0
    assert row.view_reads > 0
    assert row.lag_p99_ms is not None
    assert row.lag_p99_ms >= 0


def test_without_a_view_there_is_no_lag() -> None:
    row = measure("no view")
    assert row.tx_per_s > 0
    assert (row.lag_p50_ms, row.view_reads) == (None, 0)


@pytest.mark.parametrize(("fault", "message"), [("torn", "wrong view read"), ("differs", "one row is missing")])
def test_a_wrong_view_fails_the_bench(fault: str, message: str) -> None:
    with pytest.raises(Violation, match=message):
        measure(fault)


def test_a_view_that_claims_to_be_fresher_than_it_is_fails_the_bench() -> None:
    with (
        pytest.raises(Violation, match="acknowledged before"),
        crew_of("memory", opened(DeferredMemory("claims to be fresh")), CELL, LOOK_OFTEN_S) as crew,
    ):
        crew.keep_on(seconds=20.0)  # It ends as soon as the watcher has found out.


def test_a_client_that_fails_ends_the_cell_with_its_error() -> None:
    with pytest.raises(RuntimeError, match="no more room"):
        measure("client fails")


def test_the_pace_is_kept() -> None:
    """Every client has one transaction due in 10 ms, however long each of them takes."""
    with crew_of("memory", opened(DeferredMemory()), CELL, LOOK_OFTEN_S) as crew:
        window = crew.keep_on(0.5, tx_per_s=200.0)
    for record in crew.records:
        # What was under way when the pace was set began without one.
        due = [begin for begin in record.begins if window.start <= begin < window.stop][1:]
        assert len(due) > 2
        assert [later - before for before, later in itertools.pairwise(due)] == pytest.approx([0.01] * (len(due) - 1))
    assert crew.tx_per_s(window) < 250


class Stalling(DeferredMemory):
    """Its first transaction takes a while, and all others wait for it."""

    STALL_S = 0.1

    def __init__(self) -> None:
        super().__init__()
        self._stall = threading.Lock()
        self._stalled = False

    def _commit(self, events: list[Event]) -> None:
        with self._stall:
            if not self._stalled:
                self._stalled = True
                threading.Event().wait(self.STALL_S)
        super()._commit(events)


def test_what_is_late_because_of_the_one_before_counts_as_late() -> None:
    """1,000 a second: some hundred transactions are due during the stall, and all of them are late."""
    session = Stalling()
    crew = Crew("memory", session, CELL, LOOK_OFTEN_S)
    crew._pace = Pace(time.perf_counter(), CELL.clients, 1_000.0)
    with crew.at_work():
        window = crew.keep_on(0.4, tx_per_s=1_000.0)
    late = [seconds for seconds in crew.latencies_s(window) if seconds > Stalling.STALL_S / 4]
    assert len(late) > 40


# -- the lag


def test_the_lag_that_nobody_looked_at_counts() -> None:
    """Seen at 1.0 with watermark 0.9, and then not before 2.0: in between the lag grew to about 1.1 s."""
    sightings = [Sighting(1.0, 0.9), Sighting(2.0, 1.95)]
    lags = lags_ms(sightings, Window(1.0, 2.2))
    assert lags[0] == pytest.approx(100.0)
    assert max(lags) == pytest.approx(1_100.0, abs=LOOK_EVERY_S * 2_000)
    assert lags[-1] == pytest.approx(250.0, abs=LOOK_EVERY_S * 2_000)
    assert len(lags) == pytest.approx(1.2 / LOOK_EVERY_S, abs=1)


def test_a_view_has_recovered_when_it_keeps_its_limit_for_two_intervals() -> None:
    """Of a view every 500 ms: above 560 ms, below for less than one interval, above again, and then below, but for one
    look."""
    high, low = 900.0, 300.0
    lags = [high] * 50 + [low] * 100 + [high] * 25 + [low] * 100 + [high] + [low] * 300
    assert recovery_ms(lags, 500.0) == pytest.approx(175 * LOOK_EVERY_S * 1_000)
    assert recovery_ms([low] * 300, 500.0) == 0.0
    assert recovery_ms([low] * 200 + [high] * 100, 500.0) is None
    assert recovery_ms([high] * 300, 500.0) is None


def test_lag_is_measured_through_all_phases() -> None:
    figures = measure_lag("memory", opened(DeferredMemory()), CELL, INTERVAL_MS, Phases(0.02, 0.1, 0.05, 0.3, 0.2, 0.5))
    assert figures.maximum_tx_per_s == pytest.approx(2 * figures.half_tx_per_s, abs=0.1)
    assert 0 <= figures.lag_p50_ms <= figures.lag_p99_ms <= figures.lag_max_ms
    assert figures.overload_tx_per_s > 0
    assert figures.looks > 0


# -- figures and documents


def row(refresh: str, workload: str = INSERT, k: int = 10, **figures: float) -> IntervalRow:
    made = IntervalRow(workload, k, 16, refresh, 1_000.0, 1.0, 5.0, 250.0, 540.0, 50)
    return replace(made, **figures)  # type: ignore[arg-type]


LAG = LagFigures(500.0, 8_000.0, 4_000.0, 1.0, 9.0, 260.0, 541.0, 560.0, 8_100.0, 900.0, 700.0, True, 1_200)


def test_ratios_are_those_of_the_rounds_and_of_the_figure() -> None:
    rounds = [
        {"none": 1_000.0, "500ms": 800.0, "postgres_change_table": 400.0},
        {"none": 1_000.0, "500ms": 900.0, "postgres_change_table": 300.0},
        {"none": 2_000.0, "500ms": 1_600.0, "postgres_change_table": 1_000.0},
    ]
    rows = [row("none"), row("sync", tx_per_s=600.0), row("sync", k=1, tx_per_s=1.0), row("5000ms", UPDATE)]
    named = intervals_report.ratios(rows, rounds, LAG)
    assert named["deferred_500ms_vs_no_view"] == 0.8
    assert named["deferred_500ms_vs_postgres_change_table"] == 2.0
    assert named["lag_p99_over_interval_ms"] == 41.0
    assert (named["lag_recovery_ms"], named["half_rate_kept"]) == (700.0, 1.0)
    assert named["insert_sync_vs_no_view"] == 0.6
    assert named["update_5000ms_vs_no_view"] is None


def test_ratios_of_parts_that_were_not_measured_are_there_but_empty() -> None:
    named = intervals_report.ratios([], [{"none": 1_000.0, "500ms": 900.0}], None)
    assert named["deferred_500ms_vs_no_view"] == 0.9
    assert named["deferred_500ms_vs_postgres_change_table"] is None
    assert named["lag_p99_over_interval_ms"] is None


def test_medians_over_runs() -> None:
    runs = [[row("none", tx_per_s=speed, lag_p50_ms=None), row("sync", tx_per_s=speed)] for speed in (1.0, 9.0, 2.0)]  # type: ignore[arg-type]
    none, sync = intervals_report.median_rows(runs)
    assert (none.tx_per_s, none.lag_p50_ms, none.view_reads) == (2.0, None, 150)
    assert (sync.tx_per_s, sync.lag_p50_ms) == (2.0, 250.0)


def test_table_lines_are_aligned() -> None:
    without = replace(row("none"), lag_p50_ms=None, lag_p99_ms=None)
    lines = [intervals_report.table_header(), *map(intervals_report.table_line, (without, row("5000ms", UPDATE, 50)))]
    assert len({len(line) for line in lines}) == 1


def test_the_tables_replace_what_is_between_the_marks(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.md"
    path.write_text(f"before\n{TABLE_BEGIN}\nold\n{TABLE_END}\nafter\n")
    for _ in range(2):  # Written again, nothing piles up.
        write_table(path, intervals_report.markdown([row("none"), row("500ms")], {"a": 0.5, "b": None}, LAG, "About."))
    text = path.read_text()
    assert text.startswith(f"before\n{TABLE_BEGIN}\n\nAbout.\n")
    assert text.endswith(f"{TABLE_END}\nafter\n")
    assert "| insert | 10 | 500ms | 1,000 | 1.00 | 5.00 | 250 | 540 |" in text
    assert "| `a` | 0.5 |" in text
    assert "700 ms after its end" in text
    assert "old" not in text
    assert "`b`" not in text


def test_the_tables_show_the_plot_where_it_is(tmp_path: Path) -> None:
    table = tmp_path / "docs" / "benchmarks.md"
    (shown,) = intervals._picture(tmp_path / "docs" / "plots" / "intervals.png", table)
    assert shown.endswith("](plots/intervals.png)")
    assert intervals._picture(None, table) == []


@pytest.mark.parametrize("text", [None, "no marks\n", f"{TABLE_END}\n{TABLE_BEGIN}\n"])
def test_a_file_without_marks_is_refused_before_anything_is_measured(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "benchmarks.md"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BenchError, match="needs a file with a line"):
        check_table_file(path)


def test_the_documents_have_a_place_for_the_tables() -> None:
    check_table_file(Path(__file__).parents[2] / "docs" / "benchmarks.md")


class FakeFigure:
    """matplotlib's Figure as far as it is used. It remembers what was drawn."""

    made: list[FakeFigure]

    def __init__(self, **_: object) -> None:
        self.axes: list[FakeAxes] = []
        self.saved: Path | None = None
        self.made.append(self)

    def suptitle(self, _: str) -> None:
        """The title is not looked at."""

    def subplots(self, _rows: int, columns: int, **_: object) -> list[list[FakeAxes]]:
        self.axes = [FakeAxes() for _ in range(columns)]
        return [self.axes]

    def savefig(self, path: Path, **_: object) -> None:
        self.saved = path


class FakeAxes:
    def __init__(self) -> None:
        self.lines: dict[str, tuple[list[int], list[float]]] = {}
        self.called: list[str] = []

    def plot(self, sizes: list[int], speeds: list[float], *, marker: str, label: str) -> None:
        self.lines[label] = (sizes, speeds)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: self.called.append(name)


def test_every_refresh_mode_is_a_line_of_the_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeFigure.made = []
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", SimpleNamespace(Figure=FakeFigure))
    rows = [
        row(refresh, workload, k, tx_per_s=1_000.0 / k)
        for workload in (UPDATE, INSERT)
        for k in (50, 10)
        for refresh in intervals.REFRESHES
    ]
    plot.write_plot(tmp_path / "intervals.png", "title", intervals_report.panels(rows))
    (figure,) = FakeFigure.made
    assert figure.saved == tmp_path / "intervals.png"
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert list(axes.lines) == ["no view", "sync", "50ms", "500ms", "5000ms"]
        assert axes.lines["sync"] == ([10, 50], [100.0, 20.0])
    assert "legend" in figure.axes[1].called


def test_a_missing_matplotlib_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BenchError, match=r"viewtide\[bench\]"):
        run_command(["intervals", "--quick", "--dir", str(tmp_path), "--plot", str(tmp_path / "intervals.png")])
    assert list(tmp_path.iterdir()) == []


# -- the command


def test_quick_has_what_the_ratios_need() -> None:
    options = parser().parse_args(["intervals", "--quick"])
    setup = intervals._setup(options, Path(), None)
    assert (setup.sizes, setup.clients) == ((10,), 16)
    assert setup.parts == intervals.PARTS
    assert set(setup.refreshes) == {"none", "sync", "50ms", "500ms"}
    assert setup.phases.overload_s == 10.0


def test_the_whole_figure_has_all_refresh_modes_with_cells_of_one_length() -> None:
    setup = intervals._setup(parser().parse_args(["intervals"]), Path(), None)
    assert set(setup.refreshes) == {"none", "sync", "50ms", "500ms", "5000ms"}
    assert (setup.sizes, setup.workloads) == ((1, 10, 50), (UPDATE, INSERT))
    assert setup.timing.measure_s * 1_000 >= max(intervals.REFRESHES.values())


def test_a_long_interval_is_measured_for_one_interval_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def keep_on(_: Crew, seconds: float, __: float | None = None) -> Window:
        waited.append(seconds)
        return Window(0.0, seconds)

    monkeypatch.setattr(Crew, "keep_on", keep_on)
    intervals.measure_cell("5000ms", opened(DeferredMemory()), CELL, SHORT)
    assert waited == [SHORT.warm_up_s, 5.0]


def test_intervals_prints_its_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A tree in memory may be all that the tests have; here only the form of the answer counts.
    monkeypatch.setattr(machine, "MEMORY_FILE_SYSTEMS", ())
    options = "--quick --parts figure --refresh none,sync,50ms --clients 2 --seconds 0.1 --json"
    run_command(["intervals", *options.split(), "--dir", str(tmp_path)])
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    cells = [(each["workload"], each["k"], each["refresh"]) for each in result["rows"]]
    assert cells == [(workload, 10, refresh) for workload in (UPDATE, INSERT) for refresh in ("none", "sync", "50ms")]
    assert all(each["tx_per_s"] > 0 for each in result["rows"])
    assert result["ratios"]["insert_50ms_vs_no_view"] > 0
    assert "refresh" in printed.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_postgres_keeps_its_totals_with_a_change_table() -> None:
    with bench_folder(None) as folder, change_table_server(folder) as server:
        measured = intervals.measure_cell("postgres_change_table", server.session, CELL, Timing(0.1, 1.2))
    assert measured.tx_per_s > 0
    assert measured.lag_p99_ms is not None
    assert 0 < measured.lag_p50_ms <= measured.lag_p99_ms  # type: ignore[operator]


@pytest.mark.slow
def test_intervals_reports_all_its_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MEMORY_FILE_SYSTEMS", ())
    monkeypatch.setattr(intervals, "QUICK_PHASES", Phases(0.1, 0.3, 0.6, 1.2, 0.5, 2.0))
    out, tables = tmp_path / "out.json", tmp_path / "benchmarks.md"
    tables.write_text(f"{TABLE_BEGIN}\n{TABLE_END}\n")
    options = "--quick --refresh none,500ms --workloads update --clients 4 --seconds 0.5"
    run_command(["intervals", *options.split(), "--json", str(out), "--table", str(tables)])
    named = json.loads(out.read_text())["ratios"]
    assert named["deferred_500ms_vs_no_view"] > 0
    assert named["deferred_500ms_vs_postgres_change_table"] > 0
    assert isinstance(named["lag_p99_over_interval_ms"], float)
    assert "deferred_500ms_vs_no_view" in tables.read_text()
