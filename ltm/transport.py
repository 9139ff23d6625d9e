"""Messages between processes: one `Hub` for each process and thread.

A hub listens, if it listens, and has a connection to each peer that it knows by name. Nothing here blocks but `poll`:
the loop that owns the hub polls, handles all that has arrived, and flushes once. All messages for one peer leave
together (`batches`).

There are two kinds, and they speak the same protocol on the wire. Without keys a hub has plain sockets, in the thread
of its loop (`plain_hub`). With keys it is ZeroMQ that encrypts, in a thread of its own (`zmq_hub`).

What is bounded: a message and a batch in bytes, a batch in messages, the batches that wait for one peer, and the one
that is being collected. When all of that is full, `send` and `reply` return False: the caller says `Busy`.

Without keys a hub talks only to its own machine, unless that is asked for explicitly. With keys (CURVE), everybody is
who his key says, by the allow-list, and a key that is taken off the list is refused from then on, also on connections
that are open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..changetables.errors import InterfaceError, LocalProtocolError
from .addresses import KEYS_HINT, Address, Refusal, check_plaintext, check_plaintext_to
from .batches import BATCH_BYTES_MAX, MESSAGE_BYTES_MAX, PAYLOADS_PER_BATCH_MAX, header_of
from .keys import AllowList, Identity, Keys

__all__ = ["MESSAGE_BYTES_MAX", "AllowList", "Counts", "Hub", "Identity", "Keys", "Received", "new_keys"]

#: Batches that wait for one peer. A batch is up to BATCH_BYTES_MAX, or one large message.
QUEUE_BATCHES_MAX = 64
#: What one `poll` takes at most, batches that are dropped included: those who came first are answered before it takes
#: more, also when somebody sends as much as he can.
RECEIVED_BATCHES_MAX = 256
RECEIVED_BYTES_MAX = 16 * 2**20
#: A frame takes as long as so many bytes of one.
FRAME_COST_BYTES = 4 * 2**10
#: Connections that wait to be accepted.
BACKLOG = 1_024
#: Who has connected and not shown by then that he speaks our protocol is disconnected.
HANDSHAKE_MS_MAX = 5_000
CONNECT_MS_MAX = 3_000
#: Between two attempts to connect: each time twice as long. Who is refused comes back after the longest: the other side
#: may have changed its mind meanwhile.
RECONNECT_MS_MIN, RECONNECT_MS_MAX = 100, 2_000
#: Peers that are refused are logged at most so often; the rest is counted.
LOG_EVERY_S = 1.0

_log = logging.getLogger("viewtide.transport")


class Received(NamedTuple):
    """A batch: `payloads` are encoded messages. `route` is opaque: give it to `Hub.reply`."""

    route: object
    who: Identity
    payloads: list[bytes]


@dataclass(slots=True)
class Counts:
    """For the metrics, since the hub was made. `malformed` may be counted up by whoever decodes the payloads."""

    received_batches: int = 0
    received_payloads: int = 0
    sent_batches: int = 0
    sent_payloads: int = 0
    #: Peers without a key that is allowed, or whose handshake failed.
    refused: int = 0
    malformed: int = 0
    #: Messages for peers that have gone.
    dropped: int = 0
    #: Messages that were not taken because a queue was full.
    full: int = 0


class Outlet:
    """What is collected for one peer until it leaves. Each kind of hub has its way there."""

    __slots__ = ("batch", "batch_bytes", "gone", "queued", "who")

    def __init__(self, who: Identity) -> None:
        self.who = who
        self.batch: list[bytes] = []
        self.batch_bytes = 0
        #: Whether the next `flush` looks here.
        self.queued = False
        self.gone = False


class Hub:
    """Not for several threads, but for `wake`. `Hub(...)` makes the kind that fits; this class is what both share."""

    _peers: Mapping[str, Outlet]

    def __new__(
        cls,
        name: str,
        *,
        listen: str | None = None,
        keys: Keys | None = None,
        allowed: AllowList | None = None,
        insecure: bool = False,
        keys_hint: str = KEYS_HINT,
    ) -> Hub:
        if cls is not Hub:
            return super().__new__(cls)
        if keys is None:
            from .plain_hub import PlainHub

            return super().__new__(PlainHub)
        # Only now: who uses no keys does not load ZeroMQ.
        from .zmq_hub import ZmqHub

        return super().__new__(ZmqHub)

    def __init__(
        self,
        name: str,
        *,
        listen: str | None = None,
        keys: Keys | None = None,
        allowed: AllowList | None = None,
        insecure: bool = False,
        keys_hint: str = KEYS_HINT,
    ) -> None:
        """`listen` is an address; port 0 or * is one that is free. With `keys`, who connects must be on the list
        `allowed`. `insecure`: no keys are needed, wherever the peers are. `keys_hint`: what to do where they are."""
        self.name = name
        self.address = ""
        self.counts = Counts()
        self._header = header_of(name)
        self._insecure = insecure
        self._keys_hint = keys_hint
        self._dirty: list[Outlet] = []
        self._log_at = 0.0
        self._unlogged = 0
        self._closed = False
        self._wake_lock = threading.Lock()
        self._waking = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    # Peers.

    def know(self, peer: str, address: str, public_key: str = "") -> None:
        """Connect to a peer. Again with another address or key, connects anew; what waits here for it is sent there."""
        raise NotImplementedError

    def forget(self, peer: str) -> None:
        """Disconnect; what waits for it is dropped."""
        raise NotImplementedError

    def refusal(self, peer: str) -> Refusal | None:
        """Why the last attempts to connect to this peer failed; None: they did not, or there is nobody at all."""
        raise NotImplementedError

    def knows(self, peer: str) -> bool:
        return peer in self._peers

    def descriptor(self, peer: str) -> int:
        """For an event loop that waits by itself: it becomes readable when something comes from this peer, and may be
        once only. Then, and after each flush, `poll(0)` until it gives nothing."""
        raise NotImplementedError

    def descriptors(self) -> list[int]:
        """For another hub's `also`."""
        raise NotImplementedError

    def also(self, other: Hub) -> None:
        """`poll` returns, too, when something may have come for another hub, of the same thread. That one is to be
        polled after each `poll` and after each of its own flushes, until it gives nothing: it may be told of once."""
        for descriptor in other.descriptors():
            self._wake_for(descriptor)

    def heed(self, others: bool) -> None:
        """Whether `poll` returns for what comes for other hubs (`also`). What it did not return for, it does when they
        are heeded again. A hub that cannot tell them apart heeds all."""

    def _wake_for(self, descriptor: int) -> None:
        raise NotImplementedError

    # Sending.

    def send(self, peer: str, payload: bytes) -> bool:
        """Queued until `flush`. False: the peer is not known, or its queue is full."""
        known = self._peers.get(peer)
        return known is not None and self.reply(known, payload)

    def reply(self, route: object, payload: bytes) -> bool:
        """To whoever a `Received` came from. Queued until `flush`. False: it has gone, or its queue is full."""
        assert isinstance(route, Outlet)
        size = len(payload)
        if size > MESSAGE_BYTES_MAX:
            raise LocalProtocolError(f"a message of {size} bytes, at most {MESSAGE_BYTES_MAX}")
        if route.gone:
            self.counts.dropped += 1
            return False
        batch = route.batch
        if batch and (route.batch_bytes + size > BATCH_BYTES_MAX or len(batch) >= PAYLOADS_PER_BATCH_MAX):
            self._push(route)
            if batch:
                self.counts.full += 1
                return False
            return self.reply(route, payload)
        if not route.queued:
            route.queued = True
            self._dirty.append(route)
        batch.append(payload)
        route.batch_bytes += size
        return True

    def connection(self, route: object) -> bytes:
        """By which connection a `Received` came. Who connects again, which peers do by themselves, has another one:
        what was sent by the one before may be lost, in both directions."""
        raise NotImplementedError

    @property
    def connections(self) -> int:
        """Of others to this hub, open now; also those whose handshake is not done. From any thread."""
        raise NotImplementedError

    def flush(self) -> None:
        """One batch for each peer leaves. What does not fit stays, and leaves from `poll` when there is room."""
        raise NotImplementedError

    def _push(self, outlet: Outlet) -> bool:
        """Make room for another batch; False: that is not possible, and the one that is there stays."""
        raise NotImplementedError

    # Receiving.

    def poll(self, timeout_ms: int) -> list[Received]:
        """All that has arrived, up to a limit; waits for something if there is nothing. -1 waits for ever. It may also
        give nothing before the time is over."""
        raise NotImplementedError

    def receive(self, peer: str, timeout_ms: int) -> list[bytes]:
        """The messages of the next batch of one peer; none: nothing has come in time. For a client that waits for its
        answer and for nothing else."""
        raise NotImplementedError

    def wake(self) -> None:
        """From any thread: `poll` returns."""
        if self._waking:
            return  # whoever polls has not seen the last one yet
        with self._wake_lock:
            if not self._closed:
                self._waking = True
                os.eventfd_write(self._wake_fd, 1)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        # In this order: what somebody writes between the two would be read here, and nobody would be woken any more.
        # Who came before this is seen after `poll`, who comes from now on wakes it again.
        self._waking = False

    # Who may not do what he wants.

    def refuse(self, why: str) -> None:
        """Count and log somebody who may not do what he wants; also for those who look at roles."""
        self.counts.refused += 1
        self._warn(f"refused: {why}")

    def _malformed(self, what: str, who: Identity | None) -> None:
        self.counts.malformed += 1
        self._warn(f"dropped {what}" + (f" from {who.name}" if who is not None else ""))

    def _warn(self, what: str) -> None:
        """Not more often than somebody can read it."""
        now = time.monotonic()
        if now < self._log_at:
            self._unlogged += 1
            return
        more = f" (and {self._unlogged} more since the last such line)" if self._unlogged else ""
        _log.warning("%s: %s%s", self.name, what, more)
        self._log_at, self._unlogged = now + LOG_EVERY_S, 0

    def _check_plaintext(self, address: Address) -> None:
        if not self._insecure:
            check_plaintext(address, self._keys_hint)

    def _check_plaintext_to(self, address: Address) -> None:
        if not self._insecure:
            check_plaintext_to(address, self._keys_hint)

    # The end.

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError(f"the hub {self.name} is closed")

    def close(self) -> None:
        """What was flushed and has not left is dropped: whoever must know that it arrived waits for an answer."""
        with self._wake_lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._wake_fd)
        self._close_sockets()

    def _close_sockets(self) -> None:
        raise NotImplementedError

    def __del__(self) -> None:
        # Nobody closed it. `_closed` is missing if it was never whole.
        if not getattr(self, "_closed", True):
            self.close()


def refusal_of(name: str, address: str, *, cuts: bool, with_keys: bool, other_mechanism: bool) -> Refusal:
    """What the handshakes with somebody show who does not let this process in."""
    who = f"{name} at {address}"
    if other_mechanism:
        if with_keys:
            return Refusal(f"{who} uses no keys", "leave out the keys, if it is the right address")
        return Refusal(f"{who} takes only those who have a key", "give `keys` and `server_key`")
    if cuts:
        # Each side sees that the other wants something else, and who hangs up first need not say why.
        if with_keys:
            guess = "it may have another public key than the one that was given, or it uses no keys"
        else:
            guess = "perhaps it takes only those who have a key (`keys`, `server_key`), or is no process of Viewtide"
        return Refusal(f"{who} cuts every connection", guess)
    return Refusal(f"who listens at {address} is no process of Viewtide", "check the address")


def new_keys(name: str, role: str) -> Keys:
    # ZeroMQ makes them; who needs none does not load it.
    from .zmq_hub import new_keys as made

    return made(name, role)
