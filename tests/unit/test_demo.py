"""The command line and the demo: it holds on the real engine, and it would notice if something did not hold."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

import viewtide as vt
from viewtide import demo_supervisor
from viewtide.cli import app
from viewtide.demo_supervisor import Accounts, Latencies, Progress, Report, Supervisor, WriterProcess
from viewtide.demo_workload import (
    CATEGORIES,
    MOVE_EVERY,
    PRODUCTS_COUNT,
    VIEW_NAME,
    Contents,
    Event,
    Workload,
    by_transaction,
    first_category,
)
from viewtide.demo_writer import Acknowledged, Checked, Compared, Failed, Message, Ready, Total, decode, encode

DEMO = [sys.executable, "-m", "viewtide.cli", "demo"]
#: A machine with other work may need many times what the demo takes alone.
DEMO_S_MAX = 120


# -- the command line


def test_demo_holds_through_kill_9(tmp_path: Path) -> None:
    kept = tmp_path / "kept.db"
    done = subprocess.run(
        [*DEMO, "--seconds", "3", "--json", "--dir", str(kept)], capture_output=True, text=True, timeout=DEMO_S_MAX
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] and report["killed"] and report["recovered"] and report["view_equals_recompute"]
    assert report["lost"] == 0
    assert report["half_there"] == 0
    assert 0 < report["acknowledged"] <= report["present"] <= report["acknowledged"] + 4
    assert report["transactions"] > report["acknowledged"]
    assert report["tx_per_s"] > 0 and 0 < report["p50_ms"] <= report["p99_ms"]
    assert [row["category"] for row in report["rows"]] == list(CATEGORIES)
    with vt.connect(kept) as db:
        view = db.view(VIEW_NAME)
        assert view.verify().ok
        assert [(row.category, row.cost, row.n) for row in view.rows()] == [
            (row["category"], row["cost"], row["n"]) for row in report["rows"]
        ]


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [*DEMO, "--seconds", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert demo.stdout is not None
        assert any("tx/s" in line for line in demo.stdout), "the demo ended before it wrote"
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
        assert len(children) == 1
        demo.send_signal(signal.SIGINT)
        _, said = demo.communicate(timeout=DEMO_S_MAX)
    finally:
        demo.kill()
        demo.communicate()
    assert demo.returncode == 128 + signal.SIGINT
    assert said.strip() == "stopped"
    assert not Path(f"/proc/{children[0]}").exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--seconds", "0"], "--seconds"),
        (["--seconds", "soon"], "--seconds"),
        (["--writers", "0"], "--writers"),
        (["--dir", "{tmp}"], "--dir"),
        (["--dir", "{tmp}/no/such"], "--dir"),
        (["--quickly"], "--quickly"),
    ],
)
def test_bad_options_are_named(
    options: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "something").write_text("of the user")
    with pytest.raises(SystemExit) as ended:
        app(["demo", *(option.format(tmp=tmp_path) for option in options)], prog_name="viewtide")
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert named in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("arguments", "expected"), [(["--version"], f"viewtide {vt.__version__}"), (["demo", "--help"], "kill -9")]
)
def test_help_and_version(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(arguments, prog_name="viewtide")
    assert not ended.value.code
    assert expected in capsys.readouterr().out


# -- the workload knows what must be there


def contents_after(workload: Workload, counts: Sequence[int]) -> tuple[dict[int, Event], dict[int, int]]:
    """The tables after so many transactions of each writer, by plain application of their steps."""
    events: dict[int, Event] = {}
    categories = {product: first_category(product) for product in range(PRODUCTS_COUNT)}
    for writer, count in enumerate(counts):
        for sequence in range(count):
            step = workload.step(writer, sequence)
            events.update((event.id, event) for event in step.inserted)
            for event in step.deleted:
                del events[event]
            if step.corrected is not None:
                event, cost = step.corrected
                events[event] = events[event]._replace(cost=cost)
            if step.moved is not None:
                product, category = step.moved
                categories[product] = category
    return events, categories


def found(events: dict[int, Event], categories: dict[int, int]) -> Contents:
    return Contents(by_transaction(events[event] for event in sorted(events)), categories)


WORKLOAD = Workload(writers=3)
COUNTS = [WORKLOAD.window + 2 * MOVE_EVERY + 1, 7, 0]


@pytest.mark.parametrize("counts", [[0, 0, 0], [1, 0, 2], [MOVE_EVERY + 1, 5, 4], COUNTS])
def test_whole_transactions_are_found_whole(counts: list[int]) -> None:
    contents = found(*contents_after(WORKLOAD, counts))
    assert WORKLOAD.present(contents) == counts
    assert WORKLOAD.half_there(contents, counts) == set()


def lose_an_insert(events: dict[int, Event], categories: dict[int, int]) -> int:
    lost = max(events)
    del events[lost]
    return lost // 10


def lose_a_correction(events: dict[int, Event], categories: dict[int, int]) -> int:
    number = WORKLOAD.number(1, 4)
    event, _ = WORKLOAD.step(1, 4).corrected or (0, 0)
    events[event] = next(old for old in WORKLOAD.inserted(WORKLOAD.number(1, 3)) if old.id == event)
    return number - WORKLOAD.writers  # it shows in the events of the one before


def lose_a_deletion(events: dict[int, Event], categories: dict[int, int]) -> int:
    step = WORKLOAD.step(0, COUNTS[0] - 1)
    back = WORKLOAD.inserted(step.deleted[0] // 10)[0]
    events[back.id] = back
    return WORKLOAD.number(0, COUNTS[0] - 1)


def lose_a_move(events: dict[int, Event], categories: dict[int, int]) -> int:
    product, _ = WORKLOAD.step(0, MOVE_EVERY).moved or (0, 0)
    categories[product] = first_category(product)
    return WORKLOAD.number(0, MOVE_EVERY)


def move_too_early(events: dict[int, Event], categories: dict[int, int]) -> int:
    categories[1] += 1
    return WORKLOAD.number(1, COUNTS[1])


@pytest.mark.parametrize("damage", [lose_an_insert, lose_a_correction, lose_a_deletion, lose_a_move, move_too_early])
def test_a_transaction_that_is_half_there_shows(damage: Callable[[dict[int, Event], dict[int, int]], int]) -> None:
    events, categories = contents_after(WORKLOAD, COUNTS)
    broken = damage(events, categories)
    contents = found(events, categories)
    assert WORKLOAD.half_there(contents, WORKLOAD.present(contents)) == {broken}


# -- the accounts


@pytest.mark.parametrize(
    ("acknowledged", "present", "lost", "invented"),
    [([3, 5], [3, 5], 0, 0), ([3, 5], [4, 5], 0, 0), ([3, 5], [2, 6], 1, 0), ([3, 5], [5, 5], 0, 1)],
)
def test_accounts_are_kept_by_writer(acknowledged: list[int], present: list[int], lost: int, invented: int) -> None:
    accounts = Accounts.of(acknowledged, present, under_way=1)
    assert (accounts.lost, accounts.invented) == (lost, invented)
    assert accounts.hold == (not lost and not invented)


def test_latencies_are_right_within_one_percent() -> None:
    latencies = Latencies()
    for latency_us in range(1, 10_001):
        latencies.add(latency_us)
    assert latencies.percentile_ms(50) == pytest.approx(5.0, rel=0.01)
    assert latencies.percentile_ms(99) == pytest.approx(9.9, rel=0.01)


TOTALS = [Total("Books", 30, 2, 30, 2), Total("Toys", 7, 1, 7, 1)]


@pytest.mark.parametrize(
    "message",
    [Ready(7), Acknowledged(1, 2, 3), Compared(9, 3, TOTALS), Checked([1, 2], 0, 3, True, TOTALS, 1.5, 4), Failed("?")],
)
def test_messages_survive_the_pipe(message: Message) -> None:
    line = encode(message)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode(line) == message


# -- the demo notices what does not hold


class ScriptedWriter:
    """Stands in for the two writer processes: each says what its script holds; the first one ends by its kill."""

    def __init__(self, messages: list[Message], killed: bool) -> None:
        self.pid = 1
        self._messages = messages
        self._ended = threading.Event()
        self._killed = killed

    def receive(self, timeout_s: float) -> Message | None:
        if self._messages:
            return self._messages.pop(0)
        if self._ended.wait(timeout_s):
            return None
        raise queue.Empty

    def kill(self) -> None:
        self._ended.set()

    def ask_to_stop(self) -> None:
        self._messages = [Checked([3, 1], 0, 4, True, TOTALS, 1.0, 0)]

    def wait(self) -> int:
        return -signal.SIGKILL if self._killed else 0

    def close(self) -> None:
        self._ended.set()


def scripted_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compared: Compared, found: Checked, acknowledged: int = 2
) -> Report:
    told = [Acknowledged(0, number, 900) for number in range(1, acknowledged + 1)]
    before: list[Message] = [Ready(1), *told, compared]
    after: list[Message] = [found, Acknowledged(0, 3, 900), Acknowledged(1, 1, 900)]
    processes = [ScriptedWriter(before, killed=True), ScriptedWriter(after, killed=False)]
    monkeypatch.setattr(demo_supervisor, "WriterProcess", lambda *_: processes.pop(0))
    monkeypatch.setattr(demo_supervisor, "WRITING_S_MIN", 0.05)
    shown: list[Progress] = []
    report = Supervisor(tmp_path / "db", 0.05, 2, shown.append).run()
    assert shown
    return report


WRONG = [TOTALS[0], TOTALS[1]._replace(cost=8)]
COMPARED = Compared(1, 3, TOTALS)
FOUND = Checked([2, 0], 0, 2, True, TOTALS, 1.0, 2)


def test_a_run_in_which_everything_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = scripted_run(monkeypatch, tmp_path, COMPARED, FOUND)
    assert report.ok and report.killed and report.recovered
    assert (report.acknowledged, report.present, report.transactions) == (2, 2, 4)


@pytest.mark.parametrize(
    ("compared", "found", "wrong"),
    [
        (COMPARED, FOUND._replace(half_there=1), "half_there"),
        (COMPARED, FOUND._replace(verified=False), "view_equals_recompute"),
        (COMPARED, FOUND._replace(totals=WRONG), "view_equals_recompute"),
        (COMPARED._replace(totals=WRONG), FOUND, "view_equals_recompute"),
    ],
)
def test_a_run_in_which_something_does_not_hold(
    compared: Compared, found: Checked, wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report = scripted_run(monkeypatch, tmp_path, compared, found)
    assert not report.ok
    assert getattr(report, wrong) in (1, False)


def test_a_lost_commit_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = scripted_run(monkeypatch, tmp_path, COMPARED, FOUND, acknowledged=3)
    assert report.lost == 1
    assert not report.ok and not report.recovered


def test_a_writer_process_that_dies_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    process = WriterProcess(tmp_path / "db", cast(int, "many"))
    try:
        assert process.receive(DEMO_S_MAX) is None
        died = process.died()
    finally:
        process.close()
    assert "ended by itself with code 1" in died.message
    assert "ValueError" in died.hint


def test_an_error_of_the_writer_process_reaches_the_user(tmp_path: Path) -> None:
    directory = tmp_path / "not-a-database"
    directory.write_text("a file")
    with pytest.raises(vt.OperationalError, match="is a file"):
        Supervisor(directory, 2.0, 1, lambda _: None).run()
