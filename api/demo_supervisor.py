"""The demo seen from outside: starts the writer process, kills it with kill -9, starts another, and keeps the accounts.

It has no access to the database. What it knows is what it was told: which commits were acknowledged, and what the next
process found. So what it says about lost commits does not rest on the word of the process that was killed.
"""

from __future__ import annotations

import math
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

from .changetables.errors import InternalError, OperationalError
from .demo_writer import Acknowledged, Checked, Compared, Failed, Message, Ready, Total, decode
from .open_socket import remove_left

#: The kill comes somewhere in this part of the run, at no moment that anybody has chosen.
KILL_PART_MIN, KILL_PART_MAX = 0.40, 0.55
#: However late recovery ends, the second process writes at least this long.
WRITING_S_MIN = 0.5
#: A writer process that says nothing for so long hangs.
SILENCE_S_MAX = 120.0
EXIT_S_MAX = 60.0
#: Of what a process said before it died, the end is what matters.
ERROR_CHARACTERS_MAX = 2_000
#: How often the screen is drawn.
SHOW_EVERY_S = 0.1
#: While writers write, the rate that is shown is that of the last moments; at the end, that of all.
RATE_S = 1.0
#: Relative error of the latencies that are reported.
LATENCY_STEP = 1.01

Phase = Literal["starting", "writing", "recovering", "writing again", "checking", "done"]
M = TypeVar("M", Ready, Checked)


class Latencies:
    """Counts by logarithmic step: any number of latencies, and percentiles within 1 %."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, latency_us: int) -> None:
        self._counts[round(math.log(max(1, latency_us), LATENCY_STEP))] += 1

    def percentile_ms(self, percent: float) -> float:
        rank = math.ceil(self._counts.total() * percent / 100)
        for step in sorted(self._counts):
            rank -= self._counts[step]
            if rank <= 0:
                return float(LATENCY_STEP**step) / 1000
        return 0.0


@dataclass(frozen=True, slots=True)
class Accounts:
    """What was acknowledged against what is there, by writer. A commit that was under way may be there or not."""

    acknowledged: int
    present: int
    lost: int
    #: More than one transaction of a writer beyond its last acknowledged one: it never began them.
    invented: int

    @classmethod
    def of(cls, acknowledged: Sequence[int], present: Sequence[int], under_way: int) -> Accounts:
        pairs = list(zip(acknowledged, present, strict=True))
        return cls(
            sum(acknowledged),
            sum(present),
            sum(max(0, told - found) for told, found in pairs),
            sum(max(0, found - told - under_way) for told, found in pairs),
        )

    @property
    def hold(self) -> bool:
        return self.lost == 0 and self.invented == 0


@dataclass(frozen=True, slots=True)
class Kill:
    pid: int
    at_s: float
    acknowledged: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """`after_s`: from the kill until everything was opened and checked; `open_ms`: opening and replay alone."""

    after_s: float
    open_ms: float
    replayed: int
    accounts: Accounts
    half_there: int
    view_equals_recompute: bool


@dataclass(slots=True)
class Progress:
    """The run so far, as the screen shows it."""

    seconds: float
    writers: int
    phase: Phase = "starting"
    elapsed_s: float = 0.0
    transactions: int = 0
    tx_per_s: float = 0.0
    latencies: Latencies = field(default_factory=Latencies)
    compared: Compared | None = None
    compared_at_s: float = 0.0
    comparisons: int = 0
    comparisons_unequal: int = 0
    kill: Kill | None = None
    recovery: Recovery | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What the demo has shown. `acknowledged` and `present` are those of the kill, the other counts of the whole run.

    `recovery_ms`: opening the directory after the kill, with the replay of its log.
    """

    seconds: float
    transactions: int
    tx_per_s: float
    p50_ms: float
    p99_ms: float
    killed: bool
    recovered: bool
    recovery_ms: float
    acknowledged: int
    present: int
    lost: int
    half_there: int
    comparisons: int
    view_equals_recompute: bool
    ok: bool
    rows: list[Total]


class WriterProcess:
    """A writer process and what it says."""

    def __init__(self, directory: Path, writers: int) -> None:
        self._directory = directory
        # A file, not a pipe: nobody has to read it unless something goes wrong.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "viewtide.demo_writer", str(directory), str(writers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Ctrl-C reaches this process only, which then ends the other in its own way.
            start_new_session=True,
        )
        assert self._process.stdout is not None and self._process.stdin is not None
        self._input = self._process.stdin
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        self.pid = self._process.pid

    def _read(self, stdout: BinaryIO) -> None:
        for line in stdout:
            # The kill may have cut the last line: it is not an acknowledgement.
            if line.endswith(b"\n"):
                self._messages.put(decode(line))
        self._messages.put(None)

    def receive(self, timeout_s: float) -> Message | None:
        """The next message, or None at the end of all; raises queue.Empty after the timeout."""
        return self._messages.get(timeout=max(0.0, timeout_s))

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()

    def ask_to_stop(self) -> None:
        try:
            self._input.write(b"stop\n")
            self._input.close()
        except BrokenPipeError as error:
            raise self.died() from error

    def wait(self) -> int:
        try:
            return self._process.wait(EXIT_S_MAX)
        except subprocess.TimeoutExpired as error:
            raise OperationalError(f"the writer process {self.pid} did not end within {EXIT_S_MAX:g} s") from error

    def died(self) -> OperationalError:
        """The error for an end that nobody asked for."""
        code = self.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        return OperationalError(
            f"the writer process {self.pid} ended by itself with code {code}", hint=said[-ERROR_CHARACTERS_MAX:]
        )

    def close(self) -> None:
        """Leave nothing behind, however the run has ended."""
        self._process.kill()
        self._process.wait()
        remove_left(self._directory)
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        self._errors.close()


class Supervisor:
    """One run of the demo."""

    def __init__(self, directory: Path, seconds: float, writers: int, show: Callable[[Progress], None]) -> None:
        self._directory = directory
        self._show = show
        self._progress = Progress(seconds, writers)
        self._acknowledged = [0] * writers
        self._recent: deque[tuple[float, int]] = deque()
        self._started = self._shown = time.monotonic()
        self._clock_runs = False
        self._writing_s = 0.0

    def run(self) -> Report:
        """Write, kill, recover, check, write on, check again."""
        writer: WriterProcess | None = None
        try:
            writer = self._start("starting")
            self._await(writer, Ready)
            self._clock_runs, self._started = True, time.monotonic()
            killed = self._write_until_killed(writer)
            writer.close()

            killed_at = time.monotonic()
            writer = self._start("recovering")
            found = self._await(writer, Checked)
            self._recovered(found, time.monotonic() - killed_at)
            self._write_until_the_end(writer)
            last = self._await(writer, Checked)
            code = writer.wait()
            self._enter("done")
            return self._report(killed, last, code)
        finally:
            if writer is not None:
                writer.close()

    # -- the phases

    def _start(self, phase: Phase) -> WriterProcess:
        self._enter(phase)
        return WriterProcess(self._directory, self._progress.writers)

    def _write_until_killed(self, writer: WriterProcess) -> bool:
        """The kill has a timer of its own: it does not wait for anything that the writers do."""
        self._enter("writing")
        began = time.monotonic()
        fired = threading.Event()

        def kill() -> None:
            fired.set()
            writer.kill()

        timer = threading.Timer(self._progress.seconds * random.uniform(KILL_PART_MIN, KILL_PART_MAX), kill)
        timer.start()
        try:
            while self._hear(writer) is not None:
                pass
        finally:
            timer.cancel()
        self._writing_s += time.monotonic() - began
        if not fired.is_set():
            raise writer.died()
        self._progress.kill = Kill(writer.pid, self._elapsed_s(), sum(self._acknowledged))
        return writer.wait() == -signal.SIGKILL

    def _recovered(self, found: Checked, after_s: float) -> None:
        accounts = Accounts.of(self._acknowledged, found.present, under_way=1)
        self._progress.recovery = Recovery(
            after_s, found.open_ms, found.replayed, accounts, found.half_there, _equal(found)
        )
        # From here on, those that were under way count as told: the new writers begin behind them.
        self._acknowledged = list(found.present)

    def _write_until_the_end(self, writer: WriterProcess) -> None:
        self._enter("writing again")
        began = time.monotonic()
        end = max(self._started + self._progress.seconds, began + WRITING_S_MIN)
        while (left := end - time.monotonic()) > 0:
            try:
                if self._next(writer, left) is None:
                    raise writer.died()
            except queue.Empty:
                break
        writer.ask_to_stop()
        self._writing_s += time.monotonic() - began
        self._progress.tx_per_s = self._progress.transactions / self._writing_s
        self._enter("checking")

    # -- messages

    def _await(self, writer: WriterProcess, kind: type[M]) -> M:
        while True:
            message = self._hear(writer)
            if message is None:
                raise writer.died()
            if isinstance(message, kind):
                return message

    def _hear(self, writer: WriterProcess) -> Message | None:
        try:
            return self._next(writer, SILENCE_S_MAX)
        except queue.Empty as error:
            raise OperationalError(f"the writer process {writer.pid} said nothing for {SILENCE_S_MAX:g} s") from error

    def _next(self, writer: WriterProcess, timeout_s: float) -> Message | None:
        """The next message, taken into account; draws the screen meanwhile."""
        give_up = time.monotonic() + timeout_s
        while True:
            self._draw()
            now = time.monotonic()
            try:
                message = writer.receive(min(SHOW_EVERY_S, give_up - now))
            except queue.Empty:
                if time.monotonic() >= give_up:
                    raise
                continue
            if message is not None:
                self._heard(message)
            return message

    def _heard(self, message: Message) -> None:
        progress = self._progress
        match message:
            case Acknowledged(writer, transactions, latency_us):
                if transactions != self._acknowledged[writer] + 1:
                    raise InternalError(
                        f"writer {writer} acknowledged {transactions} after {self._acknowledged[writer]}"
                    )
                self._acknowledged[writer] = transactions
                progress.transactions += 1
                progress.latencies.add(latency_us)
            case Compared():
                progress.compared, progress.compared_at_s = message, self._elapsed_s()
                progress.comparisons += 1
                progress.comparisons_unequal += not all(total.equal for total in message.totals)
            case Checked():
                progress.compared = Compared(0, message.events, message.totals)
                progress.compared_at_s = self._elapsed_s()
            case Failed(reason):
                raise OperationalError(f"the writer process failed: {reason}")

    # -- the screen

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started if self._clock_runs else 0.0

    def _enter(self, phase: Phase) -> None:
        self._progress.phase = phase
        self._recent.clear()
        self._shown = 0.0
        self._draw()

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._shown < SHOW_EVERY_S:
            return
        self._shown = now
        progress = self._progress
        progress.elapsed_s = self._elapsed_s()
        if progress.phase not in ("checking", "done"):
            progress.tx_per_s = self._recent_tx_per_s(now)
        self._show(progress)

    def _recent_tx_per_s(self, now: float) -> float:
        recent = self._recent
        recent.append((now, self._progress.transactions))
        while now - recent[0][0] > RATE_S:
            recent.popleft()
        spent_s = now - recent[0][0]
        return (self._progress.transactions - recent[0][1]) / spent_s if spent_s else 0.0

    # -- the end

    def _report(self, killed: bool, last: Checked, code: int) -> Report:
        progress, recovery = self._progress, self._progress.recovery
        assert recovery is not None
        at_end = Accounts.of(self._acknowledged, last.present, under_way=0)
        half_there = recovery.half_there + last.half_there
        equal = recovery.view_equals_recompute and _equal(last) and progress.comparisons_unequal == 0
        recovered = recovery.accounts.hold and recovery.half_there == 0
        return Report(
            seconds=round(self._elapsed_s(), 3),
            transactions=progress.transactions,
            tx_per_s=round(progress.transactions / self._writing_s, 1),
            p50_ms=round(progress.latencies.percentile_ms(50), 3),
            p99_ms=round(progress.latencies.percentile_ms(99), 3),
            killed=killed,
            recovered=recovered,
            recovery_ms=round(recovery.open_ms, 1),
            acknowledged=recovery.accounts.acknowledged,
            present=recovery.accounts.present,
            lost=recovery.accounts.lost + at_end.lost,
            half_there=half_there,
            comparisons=progress.comparisons,
            view_equals_recompute=equal,
            ok=killed and recovered and at_end.hold and half_there == 0 and equal and code == 0,
            rows=last.totals,
        )


def _equal(checked: Checked) -> bool:
    return checked.verified and all(total.equal for total in checked.totals)
