"""Torn ends, flipped bits, lost files and stale bytes of the commit log: found, or cut and reported, never shown.

Nothing here is about what a sync does, so syncs are left out: the tests open thousands of logs.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from viewtide.changetables.errors import OperationalError
from viewtide.ltm.commit_log import blocks
from viewtide.ltm.commit_log.format import (
    FORMAT_VERSION,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    TERMINATOR,
    Place,
    decode_record_header,
    decode_segment_header,
    encode_record,
    encode_segment_header,
    walk_records,
)
from viewtide.ltm.commit_log.segments import SegmentLog

#: Two blocks: what is stale lies behind the block of the last record.
SEGMENT_BYTES = 2 * blocks.BLOCK_BYTES
PAYLOAD_BITS_PER_RECORD = 24
PAYLOAD_BITS_OF_LAST_RECORD = 100
SEED = 20240611


@pytest.fixture(autouse=True, scope="module")
def without_syncs() -> Iterator[None]:
    def no_sync(fd: int) -> None:
        assert fd >= 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", no_sync)
        patch.setattr(os, "fdatasync", no_sync)
        patch.setattr(os, "O_DSYNC", 0)
        patch.setattr(blocks, "_DIRECT", 0)
        yield


class Found(NamedTuple):
    """A record in a segment file: [start, stop) with header and padding."""

    path: Path
    lsn: int
    start: int
    stop: int


class Opened:
    """A log with what it reported."""

    def __init__(self, directory: Path) -> None:
        self.reports: list[str] = []
        self.log = SegmentLog(directory, segment_bytes=SEGMENT_BYTES, on_report=self.reports.append)

    def contents(self, from_lsn: int) -> list[tuple[int, bytes]]:
        return [(record.lsn, record.payload) for record in self.log.read(from_lsn)]


class Image:
    """The files of a log that ends cleanly, to be laid out again and damaged in every way."""

    def __init__(self, directory: Path, written: dict[int, bytes]) -> None:
        self.directory = directory
        self.files = {path: path.read_bytes() for path in sorted(directory.iterdir())}
        self.segments = [path for path in self.files if path.suffix == ".log"]
        self.records = [found for path in self.segments for found in find_records(path)]
        self.oldest_lsn = self.records[0].lsn
        self.written = {lsn: payload for lsn, payload in written.items() if lsn >= self.oldest_lsn}

    def restore(self) -> None:
        for path in self.directory.iterdir():
            if path not in self.files:
                path.unlink()
        for path, data in self.files.items():
            path.write_bytes(data)

    def flip(self, path: Path, bit: int) -> None:
        data = bytearray(self.files[path])
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)

    def expected(self, below_lsn: int) -> list[tuple[int, bytes]]:
        return [(lsn, payload) for lsn, payload in self.written.items() if lsn < below_lsn]

    def assert_untouched_but(self, damaged: Path) -> None:
        for path, data in self.files.items():
            if path.suffix == ".log" and path != damaged:
                assert path.read_bytes() == data


def find_records(path: Path) -> list[Found]:
    data = path.read_bytes()
    header = decode_segment_header(data)
    assert header is not None
    place = Place(header.first_lsn, SEGMENT_HEADER_BYTES, header.chain)
    found: list[Found] = []
    for _, after in walk_records(memoryview(data), header.salt, place):
        found.append(Found(path, place.lsn, place.offset, after.offset))
        place = after
    return found


def payload_of(lsn: int) -> bytes:
    """Distinct, of every padding, some with zeros at the end and in the middle."""
    return b"record %d " % lsn * (1 + lsn * 7 % 5) + bytes(lsn % 17) + (b"\0tail" if lsn % 3 else b"")


def large_payload_of(lsn: int) -> bytes:
    """Two fill a segment."""
    return payload_of(lsn) + b"." * 2720


def build(directory: Path, *, recycled: bool) -> Image:
    """Three segments, the last with several small records; in recycled ones stale bytes lie behind the end."""
    opened = Opened(directory)
    written: dict[int, bytes] = {}

    def append(payload: bytes) -> int:
        lsn = opened.log.append(payload)
        written[lsn] = payload
        return lsn

    if recycled:
        for lsn in range(1, 8):
            append(large_payload_of(lsn))
        opened.log.trim(7)
    while len(list(directory.glob("*.log"))) < 3:
        lsn = append(large_payload_of(opened.log.last_lsn + 1))
    for _ in range(4):
        lsn = append(payload_of(lsn + 1))
    opened.log.close()
    image = Image(directory, written)
    stale = image.files[image.segments[-1]][image.records[-1].stop + RECORD_HEADER_BYTES :]
    assert any(stale) == recycled
    assert [found.path for found in image.records[-5:]] == [image.segments[-1]] * 5
    return image


@pytest.fixture(params=[False, True], ids=["fresh", "recycled"])
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Image:
    return build(tmp_path, recycled=request.param)


def check_usable(image: Image, opened: Opened, below_lsn: int) -> None:
    """The log holds exactly the records below `below_lsn`, takes the next one, and is clean when opened again."""
    assert opened.log.last_lsn == below_lsn - 1
    assert opened.contents(image.oldest_lsn) == image.expected(below_lsn)
    assert opened.log.append(b"after the cut") == below_lsn
    opened.log.close()
    again = Opened(image.directory)
    assert again.log.cut_bytes == 0
    assert again.reports == []
    assert again.contents(image.oldest_lsn) == [*image.expected(below_lsn), (below_lsn, b"after the cut")]
    again.log.close()


@pytest.mark.parametrize("lost", ["truncated", "zeroed"])
def test_every_truncation_offset_of_the_last_three_records_recovers(image: Image, lost: str) -> None:
    """A file system may give back less, or zeros where the last pages were not written."""
    path = image.segments[-1]
    data = image.files[path]
    for offset in range(image.records[-3].start, image.records[-1].stop):
        image.restore()
        damaged = data[:offset] + (b"" if lost == "truncated" else bytes(len(data) - offset))
        path.write_bytes(damaged)
        # Zeros for zeros change nothing, so a record that ends with zeros may be complete after all.
        complete = next(found for found in reversed(image.records) if damaged[: found.stop] == data[: found.stop])
        unfinished = any(damaged[complete.stop : complete.stop + RECORD_HEADER_BYTES])
        opened = Opened(image.directory)
        assert (opened.log.cut_bytes > 0) == (len(opened.reports) == 1) == (lost == "truncated" or unfinished)
        check_usable(image, opened, complete.lsn + 1)


def test_a_cut_at_every_offset_across_a_segment_boundary_recovers(image: Image) -> None:
    """The newest segment is lost in its header or its first record: the log ends in the segment before it."""
    *_, before, last = image.segments
    first = next(found for found in image.records if found.path == last)
    in_payload = first.start + RECORD_HEADER_BYTES + 1
    for offset in [*range(in_payload), *range(in_payload, first.stop, 37), first.stop - 1]:
        image.restore()
        last.write_bytes(image.files[last][:offset])
        opened = Opened(image.directory)
        assert opened.log.cut_bytes > 0
        assert len(opened.reports) == 1
        assert str(last) in opened.reports[0]
        check_usable(image, opened, first.lsn)
    assert before.read_bytes()[:SEGMENT_HEADER_BYTES] == image.files[before][:SEGMENT_HEADER_BYTES]


def test_a_truncated_older_segment_is_damage(image: Image) -> None:
    records = [found for found in image.records if found.path == image.segments[1]]
    for offset in [0, 20, 48, *(found.stop - 9 for found in records)]:
        image.restore()
        image.segments[1].write_bytes(image.files[image.segments[1]][:offset])
        with pytest.raises(OperationalError, match=r"\.log at offset \d+"):
            Opened(image.directory)


def test_an_older_segment_without_its_unused_end_is_whole(image: Image) -> None:
    path = image.segments[0]
    path.write_bytes(image.files[path][: next(f.stop for f in reversed(image.records) if f.path == path)])
    opened = Opened(image.directory)
    assert opened.contents(image.oldest_lsn) == image.expected(image.records[-1].lsn + 1)
    opened.log.trim(image.records[-1].lsn)
    assert all(path.stat().st_size == SEGMENT_BYTES for path in image.directory.glob("*.spare"))


def test_every_flipped_bit_before_the_last_record_is_damage(image: Image) -> None:
    """All header bits, a sample of payload and padding bits; the message names file and offset of the record."""
    choose = random.Random(SEED)
    for found in image.records[:-1]:
        inner = range(8 * (found.start + RECORD_HEADER_BYTES), 8 * found.stop)
        header_bits = range(8 * found.start, 8 * (found.start + RECORD_HEADER_BYTES))
        for bit in [*header_bits, *choose.sample(inner, PAYLOAD_BITS_PER_RECORD)]:
            image.flip(found.path, bit)
            with pytest.raises(OperationalError) as raised:
                Opened(image.directory)
            assert f"{found.path} at offset {found.start}:" in str(raised.value)
        image.assert_untouched_but(found.path)
        found.path.write_bytes(image.files[found.path])
    opened = Opened(image.directory)
    assert opened.contents(image.oldest_lsn) == image.expected(image.records[-1].lsn + 1)


def test_every_flipped_bit_of_the_last_record_is_cut_and_reported(image: Image) -> None:
    last = image.records[-1]
    header_bits = range(8 * last.start, 8 * (last.start + RECORD_HEADER_BYTES))
    inner = range(8 * (last.start + RECORD_HEADER_BYTES), 8 * last.stop)
    for bit in [*header_bits, *random.Random(SEED).sample(inner, PAYLOAD_BITS_OF_LAST_RECORD)]:
        image.restore()
        image.flip(last.path, bit)
        opened = Opened(image.directory)
        assert opened.log.cut_bytes > 0
        assert f"lsn {last.lsn}, was unfinished and is cut" in opened.reports[0]
        check_usable(image, opened, last.lsn)


def test_every_flipped_bit_of_a_segment_header_is_damage(image: Image) -> None:
    for path in image.segments:
        for bit in range(8 * SEGMENT_HEADER_BYTES):
            image.flip(path, bit)
            with pytest.raises(OperationalError, match="at offset"):
                Opened(image.directory)
        path.write_bytes(image.files[path])


def test_damage_while_the_log_is_open_is_found_by_reading(image: Image) -> None:
    opened = Opened(image.directory)
    choose = random.Random(SEED)
    for found in image.records:
        image.flip(found.path, choose.randrange(8 * found.start, 8 * found.stop))
        seen: list[tuple[int, bytes]] = []
        with pytest.raises(OperationalError) as raised:
            seen.extend((record.lsn, record.payload) for record in opened.log.read(image.oldest_lsn))
        assert f"{found.path} at offset {found.start}:" in str(raised.value)
        assert seen == image.expected(found.lsn)[: len(seen)]
        found.path.write_bytes(image.files[found.path])
    found.path.write_bytes(image.files[found.path][:100])
    with pytest.raises(OperationalError, match="at offset"):
        opened.contents(image.oldest_lsn)
    found.path.unlink()
    with pytest.raises(OperationalError, match="cannot be read"):
        opened.contents(image.oldest_lsn)


def test_a_missing_segment_in_the_middle_is_damage(image: Image) -> None:
    for path in image.segments[1:-1]:
        path.unlink()
        with pytest.raises(OperationalError, match="segment is missing"):
            Opened(image.directory)
        path.write_bytes(image.files[path])


def test_a_missing_oldest_segment_is_refused_to_its_readers(image: Image) -> None:
    """The log cannot tell it from a trim; whoever needs its records can."""
    image.segments[0].unlink()
    opened = Opened(image.directory)
    oldest = int(image.segments[1].stem)
    with pytest.raises(OperationalError, match=f"the oldest is {oldest}"):
        opened.log.read(image.oldest_lsn)


def test_a_segment_of_another_log_is_damage(image: Image, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Same lsns and sizes, but one flush before it was different: only the chain tells."""
    twin_directory = tmp_path_factory.mktemp("twin") / "log"
    shutil.copytree(image.directory, twin_directory)
    for directory, payload in ((image.directory, b"one"), (twin_directory, b"two")):
        opened = Opened(directory)
        opened.log.append(payload)
        opened.log.append(bytes(SEGMENT_BYTES - 200))
        opened.log.close()
    newest = max(image.directory.glob("*.log"))
    assert newest not in image.segments
    shutil.copyfile(twin_directory / newest.name, newest)
    with pytest.raises(OperationalError, match="does not continue the chain"):
        Opened(image.directory)


def test_renamed_and_lengthened_files_are_damage(image: Image) -> None:
    last = image.segments[-1]
    last.write_bytes(image.files[last] + b"\0")
    with pytest.raises(OperationalError, match="longer than its header says"):
        Opened(image.directory)
    image.restore()
    last.rename(last.with_name(f"{int(last.stem) + 1:020d}.log"))
    with pytest.raises(OperationalError, match="its name says otherwise"):
        Opened(image.directory)


def test_a_misplaced_older_record_at_the_end_is_damage(image: Image) -> None:
    """An unfinished write there could only have had the next lsn."""
    last = image.records[-1]
    older = image.records[-3]
    data = bytearray(image.files[last.path])
    data[last.stop : last.stop + older.stop - older.start] = data[older.start : older.stop]
    last.path.write_bytes(data)
    with pytest.raises(OperationalError, match=f"lsn {older.lsn} follows at offset {last.stop}"):
        Opened(image.directory)


def test_an_unknown_version_is_refused_by_name(image: Image) -> None:
    path = image.segments[0]
    data = image.files[path]
    header = decode_segment_header(data)
    assert header is not None
    encoded = encode_segment_header(header.salt, header.first_lsn, header.segment_bytes, header.chain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("viewtide.ltm.commit_log.format.FORMAT_VERSION", FORMAT_VERSION + 1)
        newer = encode_segment_header(header.salt, header.first_lsn, header.segment_bytes, header.chain)
    assert encoded == data[:SEGMENT_HEADER_BYTES] != newer
    path.write_bytes(newer + data[SEGMENT_HEADER_BYTES:])
    with pytest.raises(OperationalError, match=f"version {FORMAT_VERSION + 1} of the log format"):
        Opened(image.directory)


def test_a_torn_flush_that_holds_copies_of_older_records_is_cut(image: Image) -> None:
    """The copies carry this segment's salt, but lower lsns."""
    last = image.records[-1]
    opened = Opened(image.directory)
    copies = image.files[last.path][image.records[-4].start : last.stop]
    lsn = opened.log.append(bytes(-len(copies) % 8) + copies)
    assert opened.contents(lsn) == [(lsn, bytes(-len(copies) % 8) + copies)]
    torn = next(found for found in find_records(last.path) if found.lsn == lsn)
    data = bytearray(last.path.read_bytes())
    data[torn.stop - 8 : torn.stop] = b"\xff" * 8
    last.path.write_bytes(data)
    opened = Opened(image.directory)
    assert opened.log.cut_bytes == torn.stop - torn.start
    check_usable(image, opened, lsn)


def test_a_lost_header_in_the_middle_is_damage(image: Image) -> None:
    """Zeros where a header was look like the end of the log, but records follow."""
    found = image.records[-3]
    data = bytearray(image.files[found.path])
    data[found.start : found.start + RECORD_HEADER_BYTES] = bytes(RECORD_HEADER_BYTES)
    found.path.write_bytes(data)
    with pytest.raises(OperationalError, match=f"at offset {found.start}: .* lsn {found.lsn + 1} follows"):
        Opened(image.directory)


def test_an_unborn_segment_after_a_torn_one_is_damage(image: Image) -> None:
    """A next segment is only begun after the one before is durable."""
    last = image.records[-1]
    unborn = image.directory / f"{last.lsn + 1:020d}.log"
    unborn.write_bytes(b"")
    image.flip(last.path, 8 * last.start)
    with pytest.raises(OperationalError, match="was begun after it"):
        Opened(image.directory)
    last.path.write_bytes(image.files[last.path])
    opened = Opened(image.directory)
    assert opened.log.cut_bytes > 0
    assert len(opened.reports) == 1
    check_usable(image, opened, last.lsn + 1)


def test_a_recycled_segment_that_was_never_begun_is_taken_out_of_use(image: Image) -> None:
    """Its stale records are older than its name."""
    last = image.records[-1]
    unborn = image.directory / f"{last.lsn + 1:020d}.log"
    unborn.write_bytes(bytes(SEGMENT_HEADER_BYTES) + image.files[image.segments[0]][SEGMENT_HEADER_BYTES:])
    opened = Opened(image.directory)
    assert opened.log.cut_bytes > 0
    assert len(opened.reports) == 1
    assert not unborn.exists()
    check_usable(image, opened, last.lsn + 1)


def test_every_use_of_a_file_has_its_own_salt(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    salts = set()
    for lsn in range(1, 21):
        opened.log.append(bytes(5000))
        header = decode_segment_header(max(tmp_path.glob("*.log")).read_bytes())
        assert header is not None
        salts.add(header.salt)
        opened.log.trim(lsn)
    assert len(salts) == 20
    assert len(list(tmp_path.iterdir())) <= 4


def put_at_end(image: Image, *, salt: bytes = b"", lsn_ahead: int = 0, chain_bits: int = 0) -> Place:
    """Write a record with a perfect checksum at the end of the log that differs in one thing from the next record."""
    last = image.records[-1]
    data = bytearray(image.files[last.path])
    segment = decode_segment_header(image.files[last.path])
    header = decode_record_header(image.files[last.path], last.start)
    assert segment is not None
    assert header is not None
    place = Place(last.lsn + 1 + lsn_ahead, last.stop, header.header_crc ^ chain_bits)
    encoded, padding, after = encode_record(salt or segment.salt, place, b"not of this log")
    data[last.stop : after.offset + len(TERMINATOR)] = encoded + b"not of this log" + padding + TERMINATOR
    last.path.write_bytes(data)
    return place


def test_the_next_record_itself_would_be_accepted(image: Image) -> None:
    """The three tests below prove something only if this holds."""
    place = put_at_end(image)
    opened = Opened(image.directory)
    assert opened.reports == []
    assert opened.contents(place.lsn) == [(place.lsn, b"not of this log")]


def test_a_record_with_another_salt_is_cut(image: Image) -> None:
    place = put_at_end(image, salt=b"another use salt")
    opened = Opened(image.directory)
    assert opened.log.cut_bytes > 0
    check_usable(image, opened, place.lsn)


def test_a_record_with_another_chain_is_cut(image: Image) -> None:
    place = put_at_end(image, chain_bits=1)
    opened = Opened(image.directory)
    assert opened.log.cut_bytes > 0
    check_usable(image, opened, place.lsn)


def test_a_gap_in_the_lsns_is_damage(image: Image) -> None:
    place = put_at_end(image, lsn_ahead=1)
    with pytest.raises(OperationalError, match=f"at offset {place.offset}: .* lsn {place.lsn} follows"):
        Opened(image.directory)


def test_the_only_segment_without_header_and_records_keeps_the_count(image: Image) -> None:
    """Its name says where the count goes on; the first lsn must not be used twice."""
    for path in image.segments[:-1]:
        path.unlink()
    last = image.segments[-1]
    first_lsn = int(last.stem)
    for length in range(SEGMENT_HEADER_BYTES):
        last.write_bytes(image.files[last][:length])
        opened = Opened(image.directory)
        assert opened.log.cut_bytes > 0
        assert len(opened.reports) == 1
        opened.log.close()
        opened = Opened(image.directory)
        assert opened.log.last_lsn == first_lsn - 1
        assert opened.reports == []
        empty = last.read_bytes()
        for bit in range(0, 8 * SEGMENT_HEADER_BYTES, 29):
            flipped = bytearray(empty)
            flipped[bit // 8] ^= 1 << bit % 8
            last.write_bytes(flipped)
            opened = Opened(image.directory)
            assert len(opened.reports) == 1
            assert opened.log.last_lsn == first_lsn - 1
        assert opened.log.append(b"next") == first_lsn
        assert Opened(image.directory).contents(first_lsn) == [(first_lsn, b"next")]


def test_leftovers_of_a_crash_are_removed_or_reused(image: Image) -> None:
    (image.directory / "made-1.tmp").write_bytes(b"half")
    (image.directory / "small.spare").write_bytes(b"half")
    for number in range(5):
        (image.directory / f"made-{number}.spare").write_bytes(os.urandom(SEGMENT_BYTES))
    opened = Opened(image.directory)
    assert not list(image.directory.glob("*.tmp"))
    assert len(list(image.directory.glob("*.spare"))) == 2
    for lsn in range(image.records[-1].lsn + 1, image.records[-1].lsn + 40):
        assert opened.log.append(payload_of(lsn)) == lsn
        image.written[lsn] = payload_of(lsn)
    again = Opened(image.directory)
    assert again.reports == []
    assert again.contents(image.oldest_lsn) == image.expected(lsn + 1)


kinds = st.sampled_from(["text", "text", "zeros", "log bytes"])
# Equal sizes put new records exactly over stale ones, which is where a missing salt would show.
sizes = st.sampled_from([0, 1, 200, 200, 200, 984, 984, 1000, 8104, 8105, 12200])


class LogMachine(RuleBasedStateMachine):
    """Appends, trims, kills and torn writes against a dict: what the log shows is the dict, never a stale record."""

    SECTOR_BYTES = 32

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="log-machine-"))
        self.opened = Opened(self.directory)
        self.model: dict[int, bytes] = {}
        self.last_lsn = 0
        self.below_lsn = 1

    def teardown(self) -> None:
        self.opened.log.close()
        shutil.rmtree(self.directory)

    def newest(self) -> Path | None:
        return max(self.directory.glob("*.log"), default=None)

    def payload(self, kind: str, size: int) -> bytes:
        if kind == "zeros":
            return bytes(size)
        newest = self.newest()
        if kind == "log bytes" and newest is not None:
            # Aligned as it was in the file, so that the copies of headers are where headers may be.
            return newest.read_bytes()[SEGMENT_HEADER_BYTES:][:size]
        return (b"%d." % (self.last_lsn + 1) * size)[:size]

    @rule(count=st.integers(1, 6), kind=kinds, size=sizes)
    def append(self, count: int, kind: str, size: int) -> None:
        for _ in range(count):
            self.acknowledge(self.payload(kind, size))

    def acknowledge(self, payload: bytes) -> None:
        assert self.opened.log.append(payload) == self.last_lsn + 1
        self.last_lsn += 1
        self.model[self.last_lsn] = payload

    @rule(behind=st.integers(-1, 12))
    def trim(self, behind: int) -> None:
        self.below_lsn = max(self.below_lsn, self.last_lsn - behind)
        self.opened.log.trim(self.below_lsn)

    @rule()
    def prepare(self) -> None:
        self.opened.log.prepare()

    @rule()
    def reopen(self) -> None:
        self.opened.log.close()
        self.opened = Opened(self.directory)
        assert self.opened.reports == []
        assert self.opened.log.cut_bytes == 0

    @rule(seed=st.integers(0, 2**32), loss=st.sampled_from([0.1, 0.5, 0.9]), kind=kinds, size=sizes)
    def die_while_appending(self, seed: int, loss: float, kind: str, size: int) -> None:
        """Any subset of the sectors of the last write reached the disk, or the new segment's rename did not."""
        path = self.newest()
        before = path.read_bytes() if path is not None else b""
        payload = self.payload(kind, size)
        self.opened.log.append(payload)
        self.opened.log.close()
        if self.newest() != path:
            survives, cut = self.lose_rename(seed), False
        else:
            assert path is not None
            survives, cut = self.lose_sectors(path, before, random.Random(seed), loss)
        self.opened = Opened(self.directory)
        if survives:
            self.last_lsn += 1
            self.model[self.last_lsn] = payload
        assert (self.opened.log.cut_bytes > 0) == (len(self.opened.reports) == 1) == cut

    def lose_rename(self, seed: int) -> bool:
        newest = self.newest()
        assert newest is not None
        if seed % 2:
            newest.rename(newest.with_suffix(".spare"))
        return not seed % 2

    def lose_sectors(self, path: Path, before: bytes, choose: random.Random, loss: float) -> tuple[bool, bool]:
        """Whether the record is complete all the same, and whether the end must be reported as cut."""
        after = path.read_bytes()
        record = find_records(path)[-1]
        mixed = b"".join(
            (before if choose.random() < loss else after)[offset : offset + self.SECTOR_BYTES]
            for offset in range(0, len(after), self.SECTOR_BYTES)
        )
        path.write_bytes(mixed)
        survives = mixed[record.start : record.stop] == after[record.start : record.stop]
        end = record.stop if survives else record.start
        return survives, any(mixed[end : end + RECORD_HEADER_BYTES])

    @invariant()
    def shows_the_model(self) -> None:
        assert self.opened.log.last_lsn == self.last_lsn
        expected = [(lsn, payload) for lsn, payload in self.model.items() if lsn >= self.below_lsn]
        assert self.opened.contents(self.below_lsn) == expected

    @invariant()
    def keeps_few_files(self) -> None:
        assert len(list(self.directory.glob("*.spare"))) <= 3
        assert not list(self.directory.glob("*.tmp"))


LogMachine.TestCase.settings = settings(deadline=None, max_examples=100, stateful_step_count=40)
TestLogMachine = LogMachine.TestCase


def test_record_headers_are_found_only_where_they_are_intact(image: Image) -> None:
    data = image.files[image.segments[0]]
    first = image.records[0]
    header = decode_record_header(data, first.start)
    assert header is not None
    assert header.lsn == first.lsn
    assert decode_record_header(data, first.start + 8) is None
    assert decode_record_header(data, -8) is None
    assert decode_record_header(data, len(data) - 8) is None
