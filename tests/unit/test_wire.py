"""Messages as bytes: every message comes back as it was, and nothing else comes through."""

from __future__ import annotations

import inspect
import math
import resource
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.messages import FLAT, fits, is_message, messages
from viewtide.changetables.errors import LocalProtocolError, RemoteProtocolError
from viewtide.changetables.types import NAN
from viewtide.coordinator import registered
from viewtide.coordinator.two_phase import messages as client_messages
from viewtide.coordinator.vms import cluster_messages as refresh_messages
from viewtide.coordinator.vms.cluster_messages import Closed
from viewtide.coordinator.vms.step_rows import Step
from viewtide.ltm import codec, wire
from viewtide.ltm.cluster import log_messages
from viewtide.ltm.cluster import messages as cluster_messages
from viewtide.ltm.cluster.hosted import Logged
from viewtide.ltm.cluster.log_messages import LogRecords
from viewtide.ltm.cluster.messages import ForLog
from viewtide.ltm.two_phase import messages as commit_messages
from viewtide.ltm.two_phase import records
from viewtide.ltm.two_phase.messages import Ask, Decide, Prepare, Told, Vote
from viewtide.ltm.two_phase.records import Decided

MODULES = (commit_messages, records, cluster_messages, log_messages, client_messages, refresh_messages)
ATTEMPT = ((123_456, 99_999), 1 << 50)
ROW = (1, "books", None, 2.5, True)
PREPARE = Prepare(ATTEMPT, 1, 2, 3, 4, ("ltm-1",), ((b"k1", ROW), (b"k2", None)), ((7, b"v", (1,), (2,)),))

#: Messages that never leave the process of their sender.
WITHIN_A_PROCESS = (client_messages.Wave,)
#: What is on the wire for ever. A new message adds a line; no line changes.
PINNED = """
1 Ask 2 Told 3 Refused 4 Prepare 5 Vote 6 Decide 7 Settled 8 Forget 9 Inquire 10 Answer 11 Resolve 12 Resolved 13 Draw
14 Timestamps 15 Read 16 ReadRows 17 NotServed 40 Committed 41 Voted 42 Refusal 43 Decided 44 Forgotten 45 Adopted
64 ForLog 65 NotHere 66 Report 67 Lease 68 FetchMap 69 NewMap 70 FetchRange 71 RangeRows 72 Split 73 Merge 74 MoveRange
75 Done 76 ChangeCatalog 77 CatalogChanged 78 FetchCatalog 79 CatalogIs 96 Seal 97 ReadLog 98 LogRecords 99 NoLog
112 Logged 128 Submit 129 Outcome 130 ReadAt 131 RowsAt 160 Close 161 Closed 162 Collect 163 Changed 164 Marker 165 Work
166 Working 167 SlotDone 168 SlotRefused 169 Hello 170 Passed 171 WantGroup 172 GroupIs
18 ReadChanges 19 FoundChanges 132 ChangesAt 133 ChangesFound 192 Addressed
134 Submits 135 Outcomes
"""


def test_every_message_of_the_protocol_has_a_number() -> None:
    """A message that is missing here goes to `registered.py` of its package."""
    known = set(registered.MESSAGES.values())
    for module in MODULES:
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == module.__name__ and issubclass(kind, tuple) and kind not in WITHIN_A_PROCESS:
                assert kind in known, f"{kind.__module__}.{kind.__name__} is not registered"
    assert len(known) == len(registered.MESSAGES)
    assert registered.MESSAGES.items() <= wire.registered().items()


def test_numbers_never_change() -> None:
    words = PINNED.split()
    for number, name in zip(words[::2], words[1::2], strict=True):
        assert registered.MESSAGES[int(number)].__name__ == name


@pytest.mark.parametrize("kind", registered.MESSAGES.values(), ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    decoded = wire.decode(wire.encode(message))
    assert decoded == message
    assert fits(decoded, kind)


def test_classes_in_fields_come_back_as_such() -> None:
    closed = wire.decode(wire.encode(Closed(Step(1, 2, 3, 4), "ltm-1", 5, 6)))
    assert isinstance(closed, Closed) and isinstance(closed.step, Step)
    for message in (
        ForLog("ltm-1", "", PREPARE),
        LogRecords(1, "ltm-1", 1, (Logged("ltm-1", Decided(ATTEMPT, 5)), Logged("ltm-2", Decided(ATTEMPT, 0))), True),
    ):
        decoded = wire.decode(wire.encode(message))
        assert decoded == message and is_message(decoded)


def test_what_arrives_as_nan_is_the_one_nan() -> None:
    for sent in (math.nan, -math.nan, math.inf - math.inf):
        told = wire.decode(wire.encode(Told(ATTEMPT, 1, 1, ((sent, math.inf),), ())))
        assert isinstance(told, Told) and told.rows[0] is not None
        assert told.rows[0][0] is NAN and told.rows[0][1] == math.inf
    # Other bits that mean NaN, and one of four bytes.
    for bits in (b"\xcb\xff\xff\xff\xff\xff\xff\xff\xff", b"\xcb\x7f\xf0\0\0\0\0\0\x01", b"\xca\x7f\x80\0\x01"):
        value = codec.unpack_from_peer(b"\x91\x91" + bits, 0)
        assert value == ((NAN,),)


def test_fields_that_have_defaults_need_not_be_sent() -> None:
    """A process of the version before does not know them."""
    short = b"\x01" + codec.pack((1, *Ask(ATTEMPT, 1, 2, 3, 4, (b"k",))[:6]))
    assert wire.decode(short) == Ask(ATTEMPT, 1, 2, 3, 4, (b"k",))
    partly = b"\x01" + codec.pack((5, *Vote(ATTEMPT, "ltm-1", 7)[:3]))
    assert wire.decode(partly) == Vote(ATTEMPT, "ltm-1", 7)


@pytest.mark.parametrize(
    "plain",
    [
        (),
        5,
        (b"5", ATTEMPT, "ltm-1", 7, ""),
        (True, ATTEMPT, 1, 2, 3, 4, ()),
        (63_000, 1),
        (5, ATTEMPT, "ltm-1"),
        (5, ATTEMPT, "ltm-1", 7, "", 1),
        (5, ATTEMPT, b"ltm-1", 7, ""),
        (5, ATTEMPT, "ltm-1", True, ""),
        (5, ATTEMPT, "ltm-1", 7.0, ""),
        (5, ATTEMPT, "ltm-1", None, ""),
        (5, ((1, 2), 3, 4), "ltm-1", 7, ""),
        (5, (b"12", 3), "ltm-1", 7, ""),
        (5, {1: 2}, "ltm-1", 7, ""),
        (4, *PREPARE[:6], ((b"k", ((1,),)),), ()),
        (4, *PREPARE[:6], ((b"k", ({},)),), ()),
        (4, *PREPARE[:6], (b"kv",), ()),
        (4, *PREPARE[:6], ((b"k", ROW, 1),), ()),
        (4, *PREPARE[:6], {b"k": ROW}, ()),
        (64, "ltm-1", "", 5),
        (64, "ltm-1", "", ()),
        (64, "ltm-1", "", (63_000,)),
        (64, "ltm-1", "", (5, ATTEMPT, "ltm-1")),
        (98, 1, "ltm-1", 1, ((43, ATTEMPT, 5), 5), True),
        (161, (1, 2, 3), "ltm-1", 5, 6),
        (161, (1, 2, 3, "4"), "ltm-1", 5, 6),
    ],
    ids=repr,
)
def test_what_does_not_fit_the_annotations_is_refused(plain: object) -> None:
    with pytest.raises(RemoteProtocolError):
        wire.decode(b"\x01" + codec.pack(plain))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.integers(0, 5), inner, max_size=2),
    max_leaves=8,
)


def changed(value: Any, data: st.DataObject) -> Any:
    """A plain value with another value in one place."""
    if isinstance(value, tuple) and value and data.draw(st.integers(0, 3)):
        place = data.draw(st.integers(0, len(value) - 1))
        return (*value[:place], changed(value[place], data), *value[place + 1 :])
    return data.draw(PLAIN)


@settings(max_examples=400)
@given(st.sampled_from(FLAT).flatmap(messages), st.data())
def test_a_message_with_something_wrong_in_it_is_refused_or_still_fits(message: Any, data: st.DataObject) -> None:
    number = {kind: number for number, kind in registered.MESSAGES.items()}[type(message)]
    plain = changed((number, *message), data)
    try:
        decoded = wire.decode(b"\x01" + codec.pack(plain))
    except RemoteProtocolError:
        return
    assert is_message(decoded)


@settings(max_examples=400)
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_raise_a_protocol_error_or_are_a_message(data: bytes, versioned: bool) -> None:
    try:
        decoded = wire.decode(b"\x01" + data if versioned else data)
    except RemoteProtocolError:
        return
    assert is_message(decoded)


def test_a_message_that_is_cut_anywhere_or_goes_on_is_refused() -> None:
    data = wire.encode(ForLog("ltm-1", "", PREPARE))
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            wire.decode(data[:end])
    with pytest.raises(RemoteProtocolError, match="after the end"):
        wire.decode(data + b"\0")
    # None of it stays in a buffer.
    assert wire.decode(data) == ForLog("ltm-1", "", PREPARE)


def test_one_changed_byte_is_refused_or_gives_another_message() -> None:
    data = bytearray(wire.encode(PREPARE))
    refused = 0
    for place in range(len(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            try:
                assert is_message(wire.decode(bytes(data)))
            except RemoteProtocolError:
                refused += 1
            data[place] ^= 1 << bit
    assert refused > len(data)
    assert wire.decode(bytes(data)) == PREPARE


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_named(version: int) -> None:
    data = bytes((version,)) + wire.encode(PREPARE)[1:]
    with pytest.raises(RemoteProtocolError, match=f"version {version}, not 1") as caught:
        wire.decode(data)
    assert "update" in caught.value.hint
    with pytest.raises(RemoteProtocolError, match="version none"):
        wire.decode(b"")


LONG = b"\xdd\x01\x00\x00\x00"
HOSTILE = {
    "nested arrays": b"\x01" + b"\x91" * 100_000 + b"\0",
    "nested arrays that say they are long": b"\x01" + LONG * 1_000 + bytes(2**20),
    "an array that says it is long": b"\x01\xdd\xff\xff\xff\xff" + bytes(100),
    "a map that says it is long": b"\x01\xdf\xff\xff\xff\xff" + bytes(100),
    "a text that says it is long": b"\x01\xdb\xff\xff\xff\xff" + bytes(100),
    "bytes that say they are long": b"\x01\xc6\xff\xff\xff\xff" + bytes(100),
    "a map as a key": b"\x01\x81\x80\x00",
    "no UTF-8": b"\x01\x92\x05\xa2\xff\xfe",
    "an unknown extension": b"\x01\x92\x05\xd4\x63\x00",
    "a date that does not exist": b"\x01\x92\x05\xd6\x02\xff\xff\xff\xff",
    "a timestamp that does not exist": b"\x01\x92\x05\xd7\x03\x7f\xff\xff\xff\xff\xff\xff\xff",
    "a decimal that is none": b"\x01\x92\x05\xd4\x01x",
    "a number of a million digits": b"\x01\x92\x05\xc9\x00\x0f\x42\x40\x01" + b"9" * 1_000_000,
    "ZeroMQ's own kind of time": b"\x01\x92\x05\xd6\xff\x00\x00\x00\x01",
    "a message in a message without end": b"\x01" + b"\x94\x40\xa0\xa0" * 400 + b"\xc0",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_refused_and_take_no_memory(data: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        with pytest.raises(RemoteProtocolError):
            wire.decode(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 2**10
    assert wire.decode(wire.encode(PREPARE)) == PREPARE


def test_a_large_message_does_not_leave_its_buffers_behind() -> None:
    big = Told(ATTEMPT, 1, 1, (tuple(range(200_000)),), ())
    assert wire.decode(wire.encode(big)) == big
    assert wire.decode(wire.encode(PREPARE)) == PREPARE


def test_threads_do_not_get_in_each_others_way() -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        told = Told(ATTEMPT, number, 1, tuple((number, f"{number}" * 50) for _ in range(20)), ())
        for _ in range(200):
            if wire.decode(wire.encode(told)) != told:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- mistakes of our own


class Unregistered(NamedTuple):
    number: int


class Unsendable(NamedTuple):
    what: list[int]


class Hidden(NamedTuple):
    what: Mapping[int, object]


def test_what_is_not_registered_cannot_be_sent() -> None:
    with pytest.raises(LocalProtocolError, match="Unregistered") as caught:
        wire.encode(Unregistered(1))
    assert "registered.py" in caught.value.hint
    with pytest.raises(LocalProtocolError):
        wire.encode(ForLog("ltm-1", "", Unregistered(1)))
    with pytest.raises(LocalProtocolError):
        wire.encode((1, 2))


def test_what_msgpack_cannot_hold_cannot_be_sent() -> None:
    with pytest.raises(LocalProtocolError, match="Decide cannot be sent"):
        wire.encode(Decide(ATTEMPT, object()))  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError):
        wire.encode(Vote(ATTEMPT, "\ud800", 1))
    assert wire.decode(wire.encode(PREPARE)) == PREPARE


def test_a_number_has_one_class_and_a_class_one_number() -> None:
    wire.register(1, Ask)
    for number, kind in ((1, Unregistered), (60_000, Ask), (0, Unregistered), (wire.NUMBER_MAX + 1, Unregistered)):
        with pytest.raises(LocalProtocolError):
            wire.register(number, kind)
    assert wire.registered()[1] is Ask and Unregistered not in wire.registered().values()


@pytest.mark.parametrize("kind", [Unsendable, Hidden])
def test_a_class_that_cannot_be_checked_is_not_registered(kind: type) -> None:
    with pytest.raises(LocalProtocolError):
        wire.register(61_000, kind)
    assert 61_000 not in wire.registered()
