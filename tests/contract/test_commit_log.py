"""One suite for every commit log, and what only segment files have: rollover, recycling, failing devices."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from viewtide.changetables.errors import DataError, InterfaceError, OperationalError
from viewtide.ltm.commit_log import format as log_format
from viewtide.ltm.commit_log.blocks import BLOCK_BYTES
from viewtide.ltm.commit_log.hbase import HbaseLog, create_log_table
from viewtide.ltm.commit_log.memory import MemoryLog
from viewtide.ltm.commit_log.segments import INDEX_BYTES, SPARE_SEGMENTS_MAX, SegmentLog
from viewtide.ltm.hbase_client import Hbase
from viewtide.ltm.ports import CommitLog

SEGMENT_BYTES = 4096

AnyLog: TypeAlias = SegmentLog | MemoryLog | HbaseLog


def payloads(count: int, start: int = 1) -> list[bytes]:
    """Of many lengths, so that every padding occurs, and long enough to fill several small segments."""
    return [b"%d:" % number * (1 + number * 37 % 61) for number in range(start, start + count)]


def contents(log: CommitLog, from_lsn: int = 1) -> list[tuple[int, bytes]]:
    return [(record.lsn, record.payload) for record in log.read(from_lsn)]


def numbered(written: Sequence[bytes], from_lsn: int = 1) -> list[tuple[int, bytes]]:
    return [(lsn, payload) for lsn, payload in enumerate(written, 1) if lsn >= from_lsn]


class CommitLogContract:
    """What every commit log does; an implementation adds `open_log`."""

    def open_log(self, directory: Path) -> AnyLog:
        raise NotImplementedError

    @pytest.fixture
    def log(self, tmp_path: Path) -> Iterator[AnyLog]:
        log = self.open_log(tmp_path / "log")
        yield log
        log.close()

    def test_a_new_log_is_empty(self, log: AnyLog) -> None:
        assert log.last_lsn == 0
        assert log.cut_bytes == 0
        assert contents(log, 0) == contents(log, 1) == contents(log, 7) == []
        assert log.bytes_since(1) == 0

    def test_lsns_count_from_one(self, log: AnyLog) -> None:
        assert [log.append(payload) for payload in payloads(50)] == list(range(1, 51))
        assert log.last_lsn == 50

    def test_read_begins_at_any_lsn(self, log: AnyLog) -> None:
        written = payloads(60)
        for payload in written:
            log.append(payload)
        for from_lsn in range(0, 63):
            assert contents(log, from_lsn) == numbered(written, from_lsn)

    def test_every_kind_of_payload_comes_back(self, log: AnyLog) -> None:
        written = [
            b"",
            b"\0",
            bytes(700),
            b"VTR\x01" * 9,
            b"VTSEGMT\x01" + bytes(200),
            os.urandom(SEGMENT_BYTES - 48 - 40),
            os.urandom(SEGMENT_BYTES - 48 - 40 + 1),
            os.urandom(5 * SEGMENT_BYTES),
            b"after",
        ]
        for payload in written:
            log.append(payload)
        assert contents(log) == numbered(written)

    def test_a_reader_is_not_disturbed_by_appends(self, log: AnyLog) -> None:
        written = payloads(40)
        for payload in written[:20]:
            log.append(payload)
        reader = log.read(1)
        seen = [next(reader)]
        for payload in written[20:]:
            log.append(payload)
        seen.extend(reader)
        # Whether it sees what came after its call is open; what it sees has no gap.
        assert len(seen) >= 20
        assert [(record.lsn, record.payload) for record in seen] == numbered(written)[: len(seen)]

    @pytest.mark.parametrize("below_lsn", [0, 1, 2, 25, 49, 50, 51, 1000])
    def test_trim_keeps_what_is_not_below(self, log: AnyLog, below_lsn: int) -> None:
        written = payloads(50)
        for payload in written:
            log.append(payload)
        log.trim(below_lsn)
        assert log.last_lsn == 50
        assert contents(log, below_lsn) == numbered(written, below_lsn)
        assert log.append(b"next") == 51
        assert contents(log, max(below_lsn, 51)) == [(51, b"next")][: 1 if below_lsn <= 51 else 0]

    def test_a_trimmed_log_refuses_or_is_complete(self, log: AnyLog) -> None:
        written = payloads(100)
        for payload in written:
            log.append(payload)
        log.trim(90)
        with pytest.raises(OperationalError, match=r"lsn 1 is gone, the oldest is \d+"):
            log.read(1)
        for from_lsn in range(1, 90):
            try:
                found = contents(log, from_lsn)
            except OperationalError:
                continue
            assert found == numbered(written, from_lsn)

    def test_the_oldest_lsn_is_the_lowest_that_can_be_read(self, log: AnyLog) -> None:
        assert log.oldest_lsn == 1
        for payload in payloads(100):
            log.append(payload)
        assert log.oldest_lsn == 1
        for below_lsn in (50, 101, 200):
            log.trim(below_lsn)
            oldest = log.oldest_lsn
            assert 1 < oldest <= min(below_lsn, 100), "the newest record stays"
            assert contents(log, oldest)[0][0] == oldest
            with pytest.raises(OperationalError):
                contents(log, oldest - 1)

    def test_bytes_since_follows_appends_and_trims(self, log: AnyLog) -> None:
        for _ in range(200):
            log.append(bytes(1000))
        everything = log.bytes_since(1)
        assert 200 * 1000 <= everything <= 200 * 1100
        assert log.bytes_since(201) == 0
        assert 100 * 1000 <= log.bytes_since(101) <= 100 * 1100 + INDEX_BYTES
        log.trim(151)
        assert 50 * 1000 <= log.bytes_since(1) <= 50 * 1100 + SEGMENT_BYTES

    def test_a_flush_that_is_too_large_is_refused_before_it_is_written(
        self, log: AnyLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_format, "PAYLOAD_BYTES_MAX", 100)
        log.append(bytes(100))
        with pytest.raises(DataError, match="at most 100 bytes, this one has 101"):
            log.append(bytes(101))
        assert log.append(b"still usable") == 2
        assert contents(log) == [(1, bytes(100)), (2, b"still usable")]

    def test_a_closed_log_refuses(self, log: AnyLog) -> None:
        log.append(b"a")
        log.close()
        log.close()
        with pytest.raises(InterfaceError, match="closed"):
            log.append(b"b")
        with pytest.raises(InterfaceError, match="closed"):
            log.read(1)
        with pytest.raises(InterfaceError, match="closed"):
            log.trim(1)
        assert not log.prepare()


class DurableCommitLogContract(CommitLogContract):
    """What a log that outlives its process does as well."""

    @pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
    def test_everything_is_there_after_reopening(self, tmp_path: Path, closed: bool) -> None:
        written = payloads(120)
        for begin in range(0, 120, 30):
            log = self.open_log(tmp_path)
            assert log.cut_bytes == 0
            assert log.last_lsn == begin
            assert contents(log) == numbered(written[:begin])
            for payload in written[begin : begin + 30]:
                log.append(payload)
            if closed:
                log.close()
        log = self.open_log(tmp_path)
        assert contents(log) == numbered(written)
        assert contents(log, 77) == numbered(written, 77)

    def test_reopening_keeps_the_count_after_everything_was_trimmed(self, tmp_path: Path) -> None:
        log = self.open_log(tmp_path)
        written = payloads(80)
        for payload in written:
            log.append(payload)
        log.trim(81)
        log.close()
        log = self.open_log(tmp_path)
        assert log.last_lsn == 80
        assert contents(log, 81) == []
        assert log.append(b"next") == 81
        assert contents(log, 81) == [(81, b"next")]

    def test_a_large_flush_survives_reopening(self, tmp_path: Path) -> None:
        written = [b"small", os.urandom(3 * SEGMENT_BYTES), b"", os.urandom(2 * SEGMENT_BYTES)]
        log = self.open_log(tmp_path)
        for payload in written[:2]:
            log.append(payload)
        log = self.open_log(tmp_path)
        for payload in written[2:]:
            log.append(payload)
        assert contents(self.open_log(tmp_path)) == numbered(written)


@pytest.mark.slow
class TestHbaseLog(DurableCommitLogContract):
    """What only it does is in tests/hbase/test_log.py."""

    @pytest.fixture(autouse=True)
    def table(self, hbase_client: Hbase) -> None:
        """One table for all tests: each has the names of its own folder."""
        hbase_client.create_namespace("contract")
        self._client, self._table = hbase_client, create_log_table(hbase_client, "contract")

    def open_log(self, directory: Path) -> HbaseLog:
        return HbaseLog(self._client, self._table, str(directory))


class TestMemoryLog(CommitLogContract):
    def open_log(self, directory: Path) -> MemoryLog:
        return MemoryLog()


def no_report(message: str) -> None:
    raise AssertionError(f"unexpected report: {message}")


def open_segments(directory: Path, segment_bytes: int = SEGMENT_BYTES) -> SegmentLog:
    return SegmentLog(directory, segment_bytes=segment_bytes, on_report=no_report)


def files(directory: Path, suffix: str) -> list[Path]:
    return sorted(directory.glob(f"*.{suffix}"))


class TestSegmentLog(DurableCommitLogContract):
    def open_log(self, directory: Path) -> SegmentLog:
        return open_segments(directory)

    def test_files_are_full_size_and_private(self, tmp_path: Path) -> None:
        log = self.open_log(tmp_path / "log")
        for payload in [*payloads(100), bytes(3 * SEGMENT_BYTES)]:
            log.append(payload)
        log.prepare()
        *ordinary, large = files(tmp_path / "log", "log")
        assert len(ordinary) > 2
        for path in [*ordinary, *files(tmp_path / "log", "spare")]:
            assert path.stat().st_size == SEGMENT_BYTES
        assert large.stat().st_size == 4 * SEGMENT_BYTES
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (tmp_path / "log").iterdir())
        assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o700

    def test_trimmed_segments_are_reused_and_few_are_kept(self, tmp_path: Path) -> None:
        log = self.open_log(tmp_path)
        for lsn in range(1, 301):
            log.append(b"x" * 500)
            if lsn % 50 == 0:
                inodes_before = {path.stat().st_ino for path in files(tmp_path, "log")}
                log.trim(lsn)
                assert len(files(tmp_path, "log")) <= 2
                spares = {path.stat().st_ino for path in files(tmp_path, "spare")}
                assert len(spares) <= SPARE_SEGMENTS_MAX
                assert spares & inodes_before
        assert not files(tmp_path, "tmp")

    def test_a_rollover_takes_the_prepared_segment(self, tmp_path: Path) -> None:
        log = self.open_log(tmp_path)
        log.append(bytes(3000))
        assert log.wants_spare
        assert log.prepare()
        assert not log.wants_spare
        assert not log.prepare()
        (spare,) = files(tmp_path, "spare")
        inode = spare.stat().st_ino
        log.append(bytes(3000))
        assert files(tmp_path, "log")[-1].stat().st_ino == inode
        assert log.wants_spare

    def test_preparing_beside_appends_reads_and_trims(self, tmp_path: Path) -> None:
        log = self.open_log(tmp_path)
        done = threading.Event()
        failures: list[BaseException] = []

        def prepare_and_read() -> None:
            try:
                while not done.is_set():
                    log.prepare()
                    try:
                        records = list(log.read(max(log.last_lsn - 3, 1)))
                    except OperationalError as error:
                        assert "trimmed" in str(error)  # a reader that waited for its turn may come too late
                        continue
                    assert all(record.payload == b"%d" % record.lsn * 300 for record in records)
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=prepare_and_read)
        thread.start()
        try:
            for lsn in range(1, 301):
                log.append(b"%d" % lsn * 300)
                log.trim(lsn - 50)
        finally:
            done.set()
            thread.join()
        assert failures == []
        assert contents(log, 260) == [(lsn, b"%d" % lsn * 300) for lsn in range(260, 301)]

    def test_a_reader_whose_segment_is_trimmed_is_told(self, tmp_path: Path) -> None:
        log = self.open_log(tmp_path)
        for _ in range(10):
            log.append(bytes(3000))
        reader = log.read(1)
        next(reader)
        log.trim(9)
        with pytest.raises(OperationalError, match="trimmed: lsn 2 is gone, the oldest is 9"):
            next(reader)

    def test_reading_uses_the_sparse_index(self, tmp_path: Path) -> None:
        log = open_segments(tmp_path, segment_bytes=8 * INDEX_BYTES)
        written = [os.urandom(3000) for _ in range(150)]
        for payload in written:
            log.append(payload)
        assert len(files(tmp_path, "log")) == 1
        for opened in (log, open_segments(tmp_path, segment_bytes=8 * INDEX_BYTES)):
            for from_lsn in range(1, 151, 7):
                assert contents(opened, from_lsn) == numbered(written, from_lsn)
            assert opened.bytes_since(140) < 2 * INDEX_BYTES

    def test_another_segment_size_applies_to_new_segments(self, tmp_path: Path) -> None:
        log = self.open_log(tmp_path)
        written = payloads(60)
        for payload in written[:30]:
            log.append(payload)
        log.prepare()
        log = open_segments(tmp_path, segment_bytes=2 * SEGMENT_BYTES)
        assert not files(tmp_path, "spare")
        for payload in written[30:]:
            log.append(payload)
        assert files(tmp_path, "log")[-1].stat().st_size == 2 * SEGMENT_BYTES
        assert contents(self.open_log(tmp_path)) == numbered(written)

    @pytest.mark.parametrize("segment_bytes", [0, 4095, 4100])
    def test_impossible_segment_sizes_are_refused(self, tmp_path: Path, segment_bytes: int) -> None:
        with pytest.raises(InterfaceError, match=f"{segment_bytes} bytes is not possible"):
            open_segments(tmp_path, segment_bytes)

    def test_a_directory_that_cannot_be_one_is_an_operational_error(self, tmp_path: Path) -> None:
        (tmp_path / "log").write_bytes(b"a file")
        with pytest.raises(OperationalError, match="cannot be opened"):
            self.open_log(tmp_path / "log")

    @pytest.mark.parametrize("written_before_bytes", [0, 4096])
    @pytest.mark.parametrize("payload_bytes", [10, 4000], ids=["in place", "rollover"])
    def test_after_a_device_failure_nothing_is_tried_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_before_bytes: int, payload_bytes: int
    ) -> None:
        log = self.open_log(tmp_path)
        log.append(b"first")
        log.prepare()
        calls: list[int] = []
        real_pwrite = os.pwrite

        def fail(fd: int, data: memoryview, offset: int) -> int:
            calls.append(offset)
            real_pwrite(fd, data[:written_before_bytes], offset)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fail)
            with pytest.raises(OperationalError, match="Input/output error"):
                log.append(bytes(payload_bytes))
            assert calls == [0]
        for _ in range(2):
            with pytest.raises(OperationalError, match=r"stopped earlier.*Input/output error"):
                log.append(b"later")
        with pytest.raises(OperationalError, match="stopped earlier"):
            log.trim(1)
        assert calls == [0]
        assert log.last_lsn == 1
        assert contents(log) == [(1, b"first")]
        reopened = self.open_log(tmp_path)
        # The fate of the failed flush is unknown until now; from now on it is decided.
        assert contents(reopened) in ([(1, b"first")], [(1, b"first"), (2, bytes(payload_bytes))])
        assert contents(self.open_log(tmp_path)) == contents(reopened)

    def test_an_interrupted_append_stops_the_log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = self.open_log(tmp_path)
        log.append(b"first")

        def interrupt(fd: int, data: memoryview, offset: int) -> int:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", interrupt)
            with pytest.raises(KeyboardInterrupt):
                log.append(b"second")
        with pytest.raises(OperationalError, match="interrupted"):
            log.append(b"third")

    @pytest.mark.parametrize("payload_bytes", [10, 20_000], ids=["one block", "several"])
    def test_a_short_write_is_completed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, payload_bytes: int
    ) -> None:
        log = open_segments(tmp_path, 16 * SEGMENT_BYTES)
        log.append(b"first")
        written: list[int] = []
        real_pwrite = os.pwrite

        def short_pwrite(fd: int, data: memoryview, offset: int) -> int:
            written.append(offset)
            return real_pwrite(fd, data[:BLOCK_BYTES], offset)

        payload = os.urandom(payload_bytes)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", short_pwrite)
            log.append(payload)
        assert written == list(range(0, payload_bytes, BLOCK_BYTES))
        assert contents(open_segments(tmp_path, 16 * SEGMENT_BYTES)) == [(1, b"first"), (2, payload)]

    @pytest.mark.parametrize("refused_by", ["open", "write"])
    def test_a_file_system_without_direct_writes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_by: str
    ) -> None:
        """It says so when the file is opened, or, where only the size of blocks does not suit it, at the write."""
        real_fcntl, real_pwrite = fcntl.fcntl, os.pwrite
        direct: list[bool] = []

        def refuse(refused: bool) -> None:
            if refused:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        def set_flags(fd: int, command: int, flags: int = 0) -> int:
            refuse(refused_by == "open" and bool(flags & os.O_DIRECT))
            return real_fcntl(fd, command, flags)

        def pwrite(fd: int, data: memoryview, offset: int) -> int:
            direct.append(bool(real_fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT))
            refuse(direct[-1])
            assert real_fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC == os.O_DSYNC
            return real_pwrite(fd, data, offset)

        log = self.open_log(tmp_path)
        log.append(b"first")
        log.close()
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "fcntl", set_flags)
            patch.setattr(os, "pwrite", pwrite)
            log = self.open_log(tmp_path)
            for payload in payloads(3):
                log.append(payload)
        assert direct == ([True] if refused_by == "write" else []) + [False] * 4
        assert contents(self.open_log(tmp_path)) == numbered([b"first", *payloads(3)])

    def test_what_came_before_in_a_block_is_not_left_behind_a_record(self, tmp_path: Path) -> None:
        """The block of a long record is zeros behind a short one, wherever the blocks begin and end."""
        log = open_segments(tmp_path, 16 * SEGMENT_BYTES)
        written = [os.urandom(size) for size in (9000, 10, 4096, 4040, 3, 8200, 1)]
        for payload in written:
            log.append(payload)
            (path,) = files(tmp_path, "log")
            end = log_format.SEGMENT_HEADER_BYTES + log.bytes_since(1)
            assert not any(path.read_bytes()[end:])
        assert contents(open_segments(tmp_path, 16 * SEGMENT_BYTES)) == numbered(written)

    def test_a_failing_prepare_leaves_the_log_usable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = self.open_log(tmp_path)
        log.append(b"first")

        def full(fd: int, data: bytes, offset: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(OperationalError, match="No space left"):
                log.prepare()
        assert not files(tmp_path, "tmp")
        assert log.append(b"second") == 2

    def test_opening_makes_the_last_flush_durable_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The writer may have been killed between write and sync; then the record is in the page cache only."""
        with monkeypatch.context() as patch:
            steps = record_steps(patch)
            log = self.open_log(tmp_path)
            log.append(b"first")
            steps.clear()
            log = self.open_log(tmp_path)
            # The first record was written together with its segment's header.
            assert steps == ["durable write of VTSEGMT first at 0", "sync"]
            log.append(b"second")
            steps.clear()
            log = self.open_log(tmp_path)
            assert steps == ["durable write of VTSEGMT first second at 0", "sync"]
        assert contents(log) == [(1, b"first"), (2, b"second")]

    def test_a_flush_is_one_durable_write(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = self.open_log(tmp_path)
        log.append(b"first")
        with monkeypatch.context() as patch:
            steps = record_steps(patch)
            log.append(b"second")
            assert steps == ["durable write of VTSEGMT first second at 0"]

    def test_a_segment_gets_its_name_when_it_is_durable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = self.open_log(tmp_path)
        log.append(bytes(3000))
        log.prepare()
        with monkeypatch.context() as patch:
            steps = record_steps(patch)
            log.append(b"second" + bytes(3000))
            assert steps == ["durable write of VTSEGMT second at 0", "rename to .log", "sync"]

    def test_segments_are_retired_one_by_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """If two went in one step, a crash could bring back the older one alone: a hole that looks like damage."""
        log = self.open_log(tmp_path)
        for _ in range(4):
            log.append(bytes(3000))
        with monkeypatch.context() as patch:
            steps = record_steps(patch)
            log.trim(4)
            assert steps == ["rename to .spare", "sync", "rename to .spare", "sync", "unlink", "sync"]


def record_steps(patch: pytest.MonkeyPatch) -> list[str]:
    """The calls that decide what survives a crash, in order, as they are made from now on."""
    steps: list[str] = []
    real_pwrite, real_fsync = os.pwrite, os.fsync
    real_rename, real_unlink = os.rename, os.unlink

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        names = [name for name in ("VTSEGMT", "first", "second") if name.encode() in bytes(data)]
        durable = "durable" if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC == os.O_DSYNC else "other"
        steps.append(f"{durable} write of {' '.join(names)} at {offset}")
        return real_pwrite(fd, data, offset)

    def fsync(fd: int) -> None:
        steps.append("sync")
        real_fsync(fd)

    def rename(source: Path, target: Path) -> None:
        steps.append(f"rename to {target.suffix}")
        real_rename(source, target)

    def unlink(path: Path) -> None:
        steps.append("unlink")
        real_unlink(path)

    for call in (pwrite, fsync, rename, unlink):
        patch.setattr(os, call.__name__, call)
    return steps
