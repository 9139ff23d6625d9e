"""The benches judge others, so they are tested: figures are computed right, and a wrong view read never goes unseen."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bench import dashboard, driver, machine, product, report
from bench.__main__ import COMMANDS, main, parser, run_command
from bench.driver import Measurement, Record, Timing
from bench.errors import BenchError, Violation
from bench.peers.sqlite import sqlite_session
from bench.workload import (
    CATEGORIES_COUNT,
    COST_MEAN,
    EVENTS_COUNT_INITIAL,
    HOT,
    HOT_CATEGORY,
    TABLES,
    UNIFORM,
    Cell,
    Event,
    ViewChecker,
    ViewRow,
    base_rows,
    category_name,
    category_of,
    transactions,
)

SHORT = Timing(warm_up_s=0.02, measure_s=0.3)
CELL = Cell(k=10, clients=2, skew=UNIFORM)


def row(system: str, **changed: object) -> report.Row:
    base = report.Row(system, 10, 16, UNIFORM, 1_000.0, 1.0, 5.0, 9.0, 0.9, 0.2, 0.8, 50)
    return replace(base, **changed)  # type: ignore[arg-type]


class MemorySession:
    """A system in memory. `fault` makes it wrong in one way."""

    def __init__(self, fault: str | None = None) -> None:
        self._fault = fault
        self._lock = threading.Lock()
        self._totals = {category_name(i): (0, 0) for i in range(CATEGORIES_COUNT)}
        for event in base_rows("events"):
            self._add(event)  # type: ignore[arg-type]

    def _add(self, event: Event) -> None:
        cost, n = self._totals[category_of(event[2])]
        self._totals[category_of(event[2])] = (cost + event[5], n + 1)

    def _commit(self, events: list[Event]) -> None:
        if self._fault == "client fails":
            raise RuntimeError("no more room")
        with self._lock:
            for event in events[1:] if self._fault == "torn" else events:
                self._add(event)

    def client(self) -> MemorySession:
        return self

    def reader(self) -> MemorySession:
        return self

    def prepare(self, events: list[Event]) -> Callable[[], None]:
        return lambda: self._commit(events)

    def read(self) -> list[ViewRow]:
        with self._lock:
            return [(category, cost, n) for category, (cost, n) in self._totals.items()]

    def close(self) -> None:
        """Nothing is open."""

    def recompute_differs(self) -> str | None:
        return "one row is missing" if self._fault == "differs" else None


class AsyncMemorySession:
    def __init__(self, session: MemorySession) -> None:
        self._session = session

    def client(self) -> AsyncMemorySession:
        return self

    def prepare(self, events: list[Event]) -> Callable[[], Awaitable[None]]:
        async def commit() -> None:
            await asyncio.sleep(0)
            self._session.prepare(events)()

        return commit

    async def read(self) -> list[ViewRow]:
        return self._session.read()

    async def recompute_differs(self) -> str | None:
        return self._session.recompute_differs()


def measure(style: str, fault: str | None = None) -> Measurement:
    session = MemorySession(fault)

    @contextmanager
    def opened() -> Iterator[MemorySession]:
        yield session

    @asynccontextmanager
    async def opened_async() -> AsyncIterator[AsyncMemorySession]:
        yield AsyncMemorySession(session)

    if style == "threads":
        return driver.measure_threads("memory", opened, CELL, SHORT)
    return driver.measure_asyncio("memory", opened_async, CELL, SHORT)


@pytest.mark.parametrize("k", [1, 2, 7, 10, 100])
def test_every_transaction_keeps_the_rule(k: int) -> None:
    for events in itertools.islice(transactions(Cell(k, 3, UNIFORM), client=1), 50):
        assert len(events) == k
        assert sum(event[5] for event in events) == k * COST_MEAN
        assert all(event[5] > 0 for event in events)


def test_ids_never_repeat_over_clients() -> None:
    cell = Cell(10, 4, UNIFORM)
    ids = [
        event[0]
        for client in range(cell.clients)
        for events in itertools.islice(transactions(cell, client), 600)
        for event in events
    ]
    assert len(set(ids)) == len(ids) == 4 * 600 * 10
    assert min(ids) == EVENTS_COUNT_INITIAL


def test_hot_transactions_hit_one_category() -> None:
    batches = itertools.islice(transactions(Cell(10, 1, HOT), client=0), 100)
    assert {category_of(event[2]) for events in batches for event in events} == {category_name(HOT_CATEGORY)}


def test_base_rows_fit_their_tables() -> None:
    for table in TABLES:
        rows = base_rows(table.name)
        assert rows
        assert all(len(values) == len(table.columns) for values in rows)
        assert len({values[0] for values in rows}) == len(rows)


def view(count: int, cost: int | None = None) -> list[ViewRow]:
    """A view of two categories with so many events."""
    cost = COST_MEAN * count if cost is None else cost
    return [("a", cost - 90, count - 3), ("b", 90, 3)]


@pytest.mark.parametrize(
    ("rows", "acknowledged", "message"),
    [
        (view(5_001), 0, "no multiple"),
        (view(5_010, 30 * 5_010 + 5), 0, "no multiple"),
        (view(5_010, 30 * 5_010 + 10), 0, "is not 30"),
        (view(5_010), 2, "acknowledged before the read"),
        ([*view(5_010), ("a", 0, 0)], 0, "twice"),
    ],
)
def test_a_wrong_read_is_a_violation(rows: list[ViewRow], acknowledged: int, message: str) -> None:
    with pytest.raises(Violation, match=message):
        ViewChecker("memory", CELL).check(rows, acknowledged)


def test_a_view_that_goes_back_is_a_violation() -> None:
    checker = ViewChecker("memory", CELL)
    checker.check(view(5_020), 0)
    with pytest.raises(Violation, match="went back"):
        checker.check(view(5_010), 0)


def test_more_than_was_acknowledged_is_right_during_the_run_but_not_at_its_end() -> None:
    checker = ViewChecker("memory", CELL)
    checker.check(view(5_020), 1)
    with pytest.raises(Violation, match="at the end"):
        checker.check_end(view(5_020), 1)


@pytest.mark.parametrize("style", ["threads", "asyncio"])
def test_a_right_system_is_measured(style: str) -> None:
    measured = measure(style)
    assert len(measured.client_counts) == CELL.clients
    assert min(measured.client_counts) > 0
    assert measured.reads_checked > 0
    assert len(measured.latencies_s) >= sum(measured.client_counts)


@pytest.mark.parametrize("style", ["threads", "asyncio"])
@pytest.mark.parametrize(("fault", "message"), [("torn", "wrong view read"), ("differs", "one row is missing")])
def test_a_wrong_system_fails_the_bench(style: str, fault: str, message: str) -> None:
    with pytest.raises(Violation, match=message):
        measure(style, fault)


@pytest.mark.parametrize("style", ["threads", "asyncio"])
def test_a_client_that_fails_ends_the_cell_with_its_error(style: str) -> None:
    with pytest.raises(RuntimeError, match="no more room"):
        measure(style, "client fails")


def test_sqlite_keeps_its_totals(tmp_path: Path) -> None:
    measured = driver.measure_threads("sqlite_trigger", lambda: sqlite_session(tmp_path), CELL, SHORT)
    assert sum(measured.client_counts) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_wait_beyond_the_end_counts_as_latency_but_not_as_throughput() -> None:
    record = Record()
    record.add(0.0, 0.5)  # warm-up
    record.add(0.9, 1.25)
    record.add(1.5, 9.0)  # began in the window, ended long after it
    assert record.ended_in(1.0, 2.0) == 1
    assert record.latencies_s(1.0, 2.0) == [0.35, 7.5]


@pytest.mark.parametrize(("percent", "expected"), [(50, 50), (99, 99), (100, 100), (0, 1)])
def test_percentile(percent: float, expected: float) -> None:
    assert report.percentile([float(n) for n in range(100, 0, -1)], percent) == expected


def test_percentile_of_nothing_and_of_one() -> None:
    assert report.percentile([], 50) == 0.0
    assert report.percentile([3.0], 99) == 3.0


def test_row_of_a_measurement() -> None:
    measured = Measurement(2.0, [30, 10], [0.001, 0.002, 0.004], [0.0005], 7)
    made = report.row_of("viewtide", CELL, measured)
    assert (made.tx_per_s, made.p50_ms, made.p99_ms, made.max_ms) == (20.0, 2.0, 4.0, 4.0)
    assert made.slowest_over_fastest == pytest.approx(1 / 3, abs=0.001)
    assert (made.view_read_p50_ms, made.view_reads) == (0.5, 7)


def test_ratios() -> None:
    rows = [
        row("viewtide", tx_per_s=8_000.0, p99_ms=3.0),
        row("viewtide", tx_per_s=7_600.0, skew=HOT),
        row("viewtide", tx_per_s=5_000.0, clients=1),
        row("viewtide", tx_per_s=1.0, k=1),
        row("viewtide_asyncio", tx_per_s=9_000.0),
        row("postgres_trigger", tx_per_s=2_000.0),
        row("sqlite_trigger", tx_per_s=4_000.0),
        row("sqlite_trigger", tx_per_s=5_000.0, clients=1),
    ]
    named = report.ratios(rows)
    assert named["threads16_vs_postgres"] == 4.0
    assert named["threads16_vs_sqlite"] == 2.0
    assert named["asyncio16_vs_postgres"] == 4.5
    assert named["thread1_vs_sqlite"] == 1.0
    assert named["hot_vs_uniform"] == 0.95
    assert named["view_read_p50_ms"] == 0.2
    assert named["p99_ms_16_threads"] == 3.0
    assert named["slowest_over_fastest_16_threads"] == 0.9
    assert named["thread1_vs_postgres"] is None


def test_medians_over_runs() -> None:
    runs = [[row("viewtide", tx_per_s=speed)] for speed in (1_000.0, 5_000.0, 2_000.0)]
    (median,) = report.median_rows(runs)
    assert (median.tx_per_s, median.view_reads) == (2_000.0, 150)
    assert report.median_ratios([{"a": 1.0, "b": None}, {"a": 3.0, "b": None}, {"a": 2.0, "b": None}]) == {
        "a": 2.0,
        "b": None,
    }


def test_table_lines_are_aligned() -> None:
    lines = [
        report.table_header(),
        report.table_line(row("viewtide")),
        report.table_line(row("postgres_trigger", k=100)),
    ]
    assert len({len(line) for line in lines}) == 1


def test_machine_facts(tmp_path: Path) -> None:
    facts = machine.machine_facts(tmp_path)
    assert facts["cpu"]
    assert isinstance(facts["fdatasync_p50_us"], float)
    assert facts["file_system"] != "unknown"


def test_every_bench_takes_json_and_quick() -> None:
    for name in COMMANDS:
        options = parser().parse_args([name, "--json", "out.json", "--quick"])
        assert (options.json, options.quick) == (Path("out.json"), True)


def test_quick_has_the_cells_that_the_ratios_need() -> None:
    options = parser().parse_args(["dashboard", "--quick"])
    wanted = {Cell(10, clients, skew) for clients in (1, 16) for skew in (UNIFORM, HOT)}
    assert wanted == set(dashboard._cells(options))


def test_dashboard_writes_its_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A tree in memory may be all that the tests have; here only the form of the answer counts.
    monkeypatch.setattr(machine, "MEMORY_FILE_SYSTEMS", ())
    out = tmp_path / "out.json"
    options = "--quick --systems sqlite_trigger --k 10 --clients 2 --skew hot --seconds 0.1 --runs 2"
    run_command(["dashboard", *options.split(), "--dir", str(tmp_path), "--json", str(out)])
    result = json.loads(out.read_text())
    assert result["machine"]["python"]
    (only,) = result["rows"]
    assert (only["system"], only["k"], only["clients"], only["skew"]) == ("sqlite_trigger", 10, 2, "hot")
    assert only["tx_per_s"] > 0
    assert "threads16_vs_postgres" in result["ratios"]
    assert "sqlite_trigger" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [out]


def test_a_missing_viewtide_is_said_clearly() -> None:
    with pytest.raises(BenchError, match="cannot be imported"):
        product.load_viewtide("viewtide_that_is_not_there")


def test_what_cannot_run_exits_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "dashboard", "--dir", "/no/such/folder", "--systems", "sqlite_trigger"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main() == 2
    assert "/no/such/folder" in capsys.readouterr().err


def test_a_violation_exits_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def torn(_cell: Cell, _timing: Timing) -> Measurement:
        return measure("threads", "torn")

    @contextmanager
    def opened(_folder: Path) -> Iterator[dashboard.Measure]:
        yield torn

    monkeypatch.setattr(machine, "MEMORY_FILE_SYSTEMS", ())
    monkeypatch.setattr(dashboard, "SYSTEMS", {"memory": opened})
    monkeypatch.setattr("sys.argv", ["bench", "dashboard", "--quick"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main() == 1
    assert "wrong view read" in capsys.readouterr().err
