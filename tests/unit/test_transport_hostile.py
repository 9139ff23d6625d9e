"""A process whose port is open to whatever somebody sends: it does not crash, its memory is bounded, others are served.

A few seconds here; with `VIEWTIDE_SOAK=1` a minute.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.conftest import SOAK
from tests.garbage import ATTACKS, Garbage
from viewtide.coordinator import registered
from viewtide.ltm.keys import ADMIN, CLIENT, LTM, Allowed, AllowList, Keys
from viewtide.ltm.transport import Hub, new_keys
from viewtide.ltm.two_phase.messages import Draw, Read, Timestamps
from viewtide.ltm.wire import decode, encode

assert registered.MESSAGES
SECONDS = 60.0 if SOAK else 3.0
#: A good client is answered within this, whatever goes on: on a machine that is busy with the attack itself.
ANSWER_S_MAX = 5.0
#: What the process may take more than before: large frames that are on their way, on all connections at once.
MEMORY_KB_MAX = 400 * 2**10


class Client:
    """A good one: it asks, and wants its own answer."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.slowest_s = 0.0
        self.answered = 0
        self._numbers = itertools.count(1)

    def ask(self) -> None:
        number = next(self._numbers)
        question = Read(number, 2, 3, (b"key", b"x" * 1_000))
        assert self._exchange(question) == question
        self.answered += 1

    def figures(self) -> Timestamps:
        found = self._exchange(Draw(0, 1))
        assert isinstance(found, Timestamps)
        return found

    def _exchange(self, question: object) -> object:
        began = time.monotonic()
        assert self.hub.send("server", encode(question))
        self.hub.flush()
        while time.monotonic() < began + ANSWER_S_MAX:
            for batch in self.hub.poll(100):
                (payload,) = batch.payloads
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                return decode(payload)
        raise AssertionError(f"no answer to a good client after {ANSWER_S_MAX} s")


@contextmanager
def server(*arguments: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.echo_server", *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process.stdout.readline().strip()
            process.stdin.close()
            assert process.wait(10) == 0, "the server did not end by itself"
        finally:
            process.kill()


@contextmanager
def client(address: str, keys: Keys | None = None, public: str = "") -> Iterator[Client]:
    hub = Hub("good", keys=keys)
    try:
        hub.know("server", address, public)
        yield Client(hub)
    finally:
        hub.close()


def attack(good: Client, garbage: Garbage) -> None:
    good.ask()
    before = good.figures()
    with garbage:
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            good.ask()
    good.ask()
    after = good.figures()
    assert after.first - before.first < MEMORY_KB_MAX
    assert after.issued > before.issued, "nobody was refused"
    assert good.answered > 10


@pytest.mark.slow
def test_garbage_on_an_open_port() -> None:
    with server() as address, client(address) as good:
        garbage = Garbage(address, seed=1)
        attack(good, garbage)
        assert set(ATTACKS) <= set(garbage.sent) and garbage.sent["wrong messages"] > 100
        assert good.figures().epoch >= 50, "nothing malformed was found"


@pytest.mark.slow
def test_garbage_and_strangers_on_a_port_with_keys(tmp_path: Path) -> None:
    """Beside the garbage: no key, a key that is not on the list, and the wrong key of the server."""
    allowed = AllowList(tmp_path / "keys" / "allowed")
    own, known = new_keys("server", LTM), new_keys("shop", CLIENT)
    own.save(tmp_path / "keys" / "server.key")
    for keys in (own, known):
        allowed.add(Allowed(keys.public, keys.name, keys.role))
    with ExitStack() as stack:
        address = stack.enter_context(server(tmp_path / "keys" / "server.key", allowed.path))
        good = stack.enter_context(client(address, known, own.public))
        strangers = [
            stack.enter_context(client(address)),
            stack.enter_context(client(address, new_keys("stranger", ADMIN), own.public)),
            stack.enter_context(client(address, known, new_keys("other", LTM).public)),
        ]
        for stranger in strangers:
            assert stranger.hub.send("server", encode(Draw(0, 1)))
            stranger.hub.flush()
        garbage = Garbage(address, seed=2)
        attack(good, garbage)
        assert all(stranger.hub.poll(0) == [] for stranger in strangers), "a stranger was answered"
        assert good.figures().epoch == 0, "something of a stranger was read"
