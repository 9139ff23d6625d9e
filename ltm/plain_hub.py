"""A hub without keys: plain sockets in the thread of its loop, which speak ZeroMQ's protocol (`zmtp`).

ZeroMQ would send and receive in a thread of its own: two switches of threads more on each side of a message, and with
16 clients on two cores 45 us of processor time for each that is received and answered, where this takes 22. The price
is that nothing moves but in `poll` and `flush`, handshakes included: the system's buffers take what comes meanwhile.

A link is a connection that somebody has made to this hub, or a peer whom it connects to, again and again. What is sent
in a turn leaves at `flush` as one frame, by one call. What the system does not take waits here, and further messages
are collected behind it, in batches that are as large as may be. Where a peer's connection breaks, what had not left as
a whole is sent again by the next one.

What is bounded, beside what `transport` says: links, how long a handshake takes, frames of a message (one; others are
passed over as they come), and the bytes of all frames together that are not whole. Links take turns, so that one that
always has more to say keeps nobody else from being heard.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections import deque

from ..changetables.errors import InterfaceError, RemoteProtocolError
from .addresses import KEYS_HINT, Address, Refusal, parse_address
from .batches import BATCH_BYTES_MAX, name_in, pack_batch, payloads_in
from .keys import LOCAL, AllowList, Identity, Keys
from .sockets import cannot_listen, connecting, listening, port_of, tune
from .transport import (
    BACKLOG,
    CONNECT_MS_MAX,
    FRAME_COST_BYTES,
    HANDSHAKE_MS_MAX,
    QUEUE_BATCHES_MAX,
    RECEIVED_BATCHES_MAX,
    RECEIVED_BYTES_MAX,
    RECONNECT_MS_MAX,
    RECONNECT_MS_MIN,
    Hub,
    Outlet,
    Received,
    refusal_of,
)
from .zmtp import (
    COMMAND,
    COMMAND_BYTES_MAX,
    CUTS_MIN,
    DEALER_READY,
    GREETING,
    LAST_PART,
    LONG,
    LONG_SIZE,
    MESSAGE,
    ROUTER_READY,
    VERSION_END,
    Frames,
    frame_head,
    is_ready,
    may_be_greeting,
    wants_no_keys,
)

#: What one system call may bring, and one for a frame that is known to be large.
RECEIVE_BYTES = 64 * 2**10
RECEIVE_LARGE_BYTES = 2**20
#: What waits for one peer takes no further batch at this size: as many as may wait, and each as large as it is when
#: many messages are collected. A message that is larger than a batch may be waits like any other.
QUEUE_BYTES_MAX = QUEUE_BATCHES_MAX * BATCH_BYTES_MAX
#: Connections to this hub. The system's limit for open files is often lower, and holds as well.
CONNECTIONS_MAX = 16_384
#: Taken in one `poll`, so that a flood of connections does not keep the loop from its peers.
ACCEPTED_PER_POLL_MAX = 64
#: When there is no room for another open file, so long nobody is accepted.
ACCEPT_PAUSE_MS = 100
#: Links that one `poll` hears of; the system has the others come first the next time.
EVENTS_MAX = 256
#: Batches of one link before it is the turn of the next.
BATCHES_PER_TURN = 16
#: Bytes of frames that are not whole, of all links: 16 of the largest messages at once. Beyond, the link is cut whose
#: frame began first: who means well sends a frame as fast as he can.
UNFINISHED_BYTES_MAX = 512 * 2**20

#: Half the time of calling a named tuple's class.
new = tuple.__new__
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
#: Nobody's batch begins so.
_NO_HEADER = b"?"
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Link(Outlet):
    """One connection, or the way to a peer."""

    __slots__ = (
        "between",
        "frames",
        "greeting",
        "greets",
        "header",
        "held_bytes",
        "held_since",
        "open",
        "sent_bytes",
        "socket",
        "unsent",
        "unsent_bytes",
        "waits",
    )

    def __init__(self, connection: socket.socket | None, who: Identity) -> None:
        super().__init__(who)
        #: None: a peer that there is no connection to.
        self.socket = connection
        #: How its batches begin.
        self.header = _NO_HEADER
        #: Frames that the system has not taken, with how many messages each has, and how much of the first has left.
        self.unsent: deque[tuple[bytes, int]] = deque()
        self.unsent_bytes = self.sent_bytes = 0
        self.begin()

    def begin(self) -> None:
        """What is true of a new connection."""
        self.frames = Frames()
        #: What has come of the greeting, while that is what comes.
        self.greeting = bytearray()
        self.greets = True
        #: The handshake is done.
        self.open = False
        #: What comes next is the beginning of a message.
        self.between = False
        #: It has a place in the line of those who have more to say.
        self.waits = False
        self.held_bytes = 0
        self.held_since = 0.0
        self.sent_bytes = 0


class _Route(_Link):
    """Somebody who has connected to this hub."""

    __slots__ = ("number", "refused")

    def __init__(self, connection: socket.socket, number: int) -> None:
        super().__init__(connection, _NOBODY)
        self.number = number
        #: He was told by our greeting that we use no keys, and hangs up when he has read it.
        self.refused = False


class _Peer(_Link):
    """Somebody whom this hub connects to."""

    __slots__ = ("address", "connects", "cuts", "due", "opened_at", "pause_ms", "refusal")

    def __init__(self, name: str, address: Address) -> None:
        super().__init__(None, Identity(name, LOCAL))
        self.address = address
        #: The connection is not there yet.
        self.connects = False
        self.cuts = 0
        self.refusal: Refusal | None = None
        #: When the next attempt begins, or the one that is under way is given up.
        self.due = 0.0
        self.pause_ms = 0
        self.opened_at = 0.0


_NOBODY = Identity("", LOCAL)


class PlainHub(Hub):
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
        assert keys is None
        super().__init__(name, insecure=insecure, keys_hint=keys_hint)
        self._peers: dict[str, _Peer] = {}
        self._links: dict[int, _Link] = {}
        self._connections = 0
        #: Connections whose handshake is not done, and when it must be: the oldest first.
        self._shaking: dict[_Route, float] = {}
        #: Peers without a connection that is open.
        self._restless: set[_Peer] = set()
        #: Those who have more to say, in the order in which they do.
        self._line: deque[_Link] = deque()
        #: Came while `receive` waited for somebody else.
        self._early: list[Received] = []
        self._room_batches = self._room_bytes = 0
        self._unfinished_bytes = 0
        #: Of the last connection.
        self._numbers = 0
        self._epoll = select.epoll()
        self._epoll.register(self._wake_fd, _IN)
        #: Of other hubs, and whether they are heeded.
        self._others: list[int] = []
        self._heeds = True
        self._listener: socket.socket | None = None
        #: The socket file, and which one it is.
        self._file: tuple[str, int] | None = None
        #: Nobody is accepted before then.
        self._accept_at: float | None = None
        try:
            if listen is not None:
                self._listen(parse_address(listen))
        except BaseException:
            self.close()
            raise

    # Peers.

    def know(self, peer: str, address: str, public_key: str = "") -> None:
        self._check_open()
        known = self._peers.get(peer)
        if known is not None and not public_key and known.address.text == address:
            return
        if public_key:
            raise InterfaceError(f"{address} needs a key of one's own", hint="give `keys`")
        parsed = parse_address(address)
        self._check_plaintext_to(parsed)
        if not parsed.path:
            port_of(parsed)
        renewed = _Peer(peer, parsed)
        if known is not None:
            renewed.batch, renewed.batch_bytes = known.batch, known.batch_bytes
            renewed.unsent, renewed.unsent_bytes = known.unsent, known.unsent_bytes
            renewed.queued = known.queued
            self._dirty = [renewed if outlet is known else outlet for outlet in self._dirty]
            known.batch, known.unsent = [], deque()
            self._leave(known)
        self._peers[peer] = renewed
        self._connect(renewed)

    def forget(self, peer: str) -> None:
        known = self._peers.pop(peer, None)
        if known is not None:
            self._leave(known)

    def refusal(self, peer: str) -> Refusal | None:
        known = self._peers[peer]
        # Who asks for this polls only when something comes.
        if known in self._restless:
            self._look_after_peers(time.monotonic())
        return known.refusal

    def descriptor(self, peer: str) -> int:
        assert peer in self._peers
        return self._epoll.fileno()

    def descriptors(self) -> list[int]:
        return [self._epoll.fileno()]

    def _wake_for(self, descriptor: int) -> None:
        self._epoll.register(descriptor, _IN if self._heeds else 0)
        self._others.append(descriptor)

    def heed(self, others: bool) -> None:
        if others != self._heeds:
            self._heeds = others
            for descriptor in self._others:
                self._epoll.modify(descriptor, _IN if others else 0)

    def _leave(self, peer: _Peer) -> None:
        self._disconnect(peer)
        self._restless.discard(peer)
        self._drop(peer)

    # Sending.

    def connection(self, route: object) -> bytes:
        assert isinstance(route, _Route)
        return route.number.to_bytes(8, "big")

    @property
    def connections(self) -> int:
        return self._connections

    def flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for link in dirty:
            assert isinstance(link, _Link)
            link.queued = False
            if link.open and link.batch and not link.unsent:
                self._hand_over(link)

    def _push(self, outlet: Outlet) -> bool:
        assert isinstance(outlet, _Link)
        if outlet.open and not outlet.unsent:
            self._hand_over(outlet)
        elif len(outlet.unsent) < QUEUE_BATCHES_MAX and outlet.unsent_bytes < QUEUE_BYTES_MAX:
            self._pack(outlet)
        return not outlet.batch

    def _framed(self, link: _Link) -> bytes:
        """All that was collected."""
        batch = link.batch
        count = len(batch)
        size = len(self._header) + 4 + 4 * count + link.batch_bytes
        frame = pack_batch(frame_head(size) + self._header, batch)
        batch.clear()
        link.batch_bytes = 0
        self.counts.sent_batches += 1
        self.counts.sent_payloads += count
        return frame

    def _pack(self, link: _Link) -> None:
        count = len(link.batch)
        frame = self._framed(link)
        link.unsent.append((frame, count))
        link.unsent_bytes += len(frame)

    def _hand_over(self, link: _Link) -> None:
        """To the system, if it takes it. Nothing waits before it."""
        assert link.socket is not None
        count = len(link.batch)
        frame = self._framed(link)
        broken = False
        try:
            sent = link.socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent, broken = 0, True
        if sent == len(frame):
            return
        link.unsent.append((frame, count))
        link.unsent_bytes += len(frame)
        link.sent_bytes = sent
        if broken:
            self._lost(link)
        else:
            self._epoll.modify(link.socket, _IN | _OUT)

    def _write(self, link: _Link) -> None:
        """There is room: what waits leaves, then what was collected behind it."""
        connection = link.socket
        assert connection is not None
        while link.unsent or link.batch:
            if not link.unsent:
                self._pack(link)
            frame = link.unsent[0][0]
            try:
                link.sent_bytes += connection.send(memoryview(frame)[link.sent_bytes :])
            except BlockingIOError:
                break
            except OSError:
                self._lost(link)
                return
            if link.sent_bytes < len(frame):
                break
            link.unsent.popleft()
            link.unsent_bytes -= len(frame)
            link.sent_bytes = 0
        self._epoll.modify(connection, _IN | _OUT if link.unsent else _IN)

    # Receiving.

    def poll(self, timeout_ms: int) -> list[Received]:
        if self._early:
            early, self._early = self._early, []
            return early
        return self._poll(timeout_ms)

    def receive(self, peer: str, timeout_ms: int) -> list[bytes]:
        known = self._peers[peer]
        ends = time.monotonic() + timeout_ms / 1000
        left_ms = timeout_ms
        while True:
            for at, batch in enumerate(self._early):
                if batch.route is known:
                    del self._early[at]
                    return batch.payloads
            if (timeout_ms >= 0 and left_ms < 0) or len(self._early) >= RECEIVED_BATCHES_MAX:
                return []
            self._early += self._poll(left_ms)
            if timeout_ms >= 0:
                left_ms = int((ends - time.monotonic()) * 1000 + 0.999) if left_ms else -1

    def _poll(self, timeout_ms: int) -> list[Received]:
        if self._closed:
            self._check_open()
        received: list[Received] = []
        self._room_batches, self._room_bytes = RECEIVED_BATCHES_MAX, RECEIVED_BYTES_MAX
        if self._restless or self._shaking or self._accept_at is not None:
            timeout_ms = self._look_after(timeout_ms, received)
        line, links = self._line, self._links
        if line or received:
            timeout_ms = 0
        for fd, event in self._epoll.poll(timeout_ms / 1000 if timeout_ms > 0 else timeout_ms, EVENTS_MAX):
            link = links.get(fd)
            if link is None:
                self._other_event(fd)
            elif event != _IN:
                self._event(link, event, received)
            elif link.waits:
                pass
            elif line or self._room_batches <= 0 or self._room_bytes <= 0:
                self._line_up(link)
            else:
                self._read(link, received)
        while line and self._room_batches > 0 and self._room_bytes > 0:
            link = line.popleft()
            if link.waits:
                link.waits = False
                if link.between or not self._cut(link, received):
                    self._read(link, received)
        if line and not received:
            # Who waits at the descriptor would not be told that there is more, because the system does not know.
            self.wake()
        return received

    def _line_up(self, link: _Link) -> None:
        link.waits = True
        self._line.append(link)

    def _other_event(self, fd: int) -> None:
        if fd == self._wake_fd:
            self._woken()
        elif self._listener is not None and fd == self._listener.fileno():
            self._accept(self._listener)
        # Otherwise of a link that was closed in this turn.

    def _event(self, link: _Link, event: int, received: list[Received]) -> None:
        """Of a connection that is made, can be written to again, or is broken."""
        if isinstance(link, _Peer) and link.connects:
            self._connected(link)
            return
        if event & _OUT:
            self._write(link)
        # A broken one is read to its end.
        if event & ~_OUT and link.socket is not None and not link.waits:
            self._line_up(link)

    def _read(self, link: _Link, received: list[Received]) -> None:
        connection = link.socket
        if connection is None:
            return
        missing = link.frames.missing
        try:
            data = connection.recv(RECEIVE_BYTES if missing < RECEIVE_BYTES else min(missing, RECEIVE_LARGE_BYTES))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost(link)
            return
        if link.between:
            # Most of the time it is one whole message.
            size = len(data)
            if size > 1 and data[0] == 0 and data[1] == size - 2:
                self._room_batches -= 1
                self._take(link, data, 2, received)
                return
            if size > 9 and data[0] == LONG and LONG_SIZE.unpack_from(data, 1)[0] == size - 9:
                self._room_batches -= 1
                self._room_bytes -= size
                self._take(link, data, 9, received)
                return
        if link.open:
            link.between = False
            link.frames.feed(data)
            self._room_bytes -= len(data) if missing else 0
            self._cut(link, received)
        else:
            self._shake(link, data, received)

    def _cut(self, link: _Link, received: list[Received]) -> bool:
        """Take the frames that are whole, as far as it is this link's turn; whether there were any."""
        frames, turn, any_taken = link.frames, BATCHES_PER_TURN, False
        try:
            while turn > 0 and self._room_batches > 0 and self._room_bytes > 0:
                found = frames.next() if link.open else None
                if found is None:
                    link.between = link.open and frames.between
                    self._hold(link, any_taken)
                    return any_taken
                any_taken = True
                kind, body = found
                if kind == MESSAGE:
                    turn -= 1
                    self._room_batches -= 1
                    self._room_bytes -= len(body)
                    self._take(link, body, 0, received)
                    continue
                self._room_bytes -= FRAME_COST_BYTES
                if kind == LAST_PART:
                    self._room_batches -= 1
                    self._malformed("a batch in several frames", link.who)
        except RemoteProtocolError as error:
            self._malformed(str(error), link.who)
            self._lost(link)
            return True
        self._line_up(link)
        return True

    def _take(self, link: _Link, data: bytes, start: int, received: list[Received]) -> None:
        """A batch, from `start` on."""
        header = link.header
        try:
            if not data.startswith(header, start):
                header = self._introduced(link, data[start:])
            payloads = payloads_in(data, start + len(header))
        except RemoteProtocolError as error:
            self._malformed(str(error), link.who)
            return
        received.append(new(Received, (link, link.who, payloads)))
        counts = self.counts
        counts.received_batches += 1
        counts.received_payloads += len(payloads)

    def _introduced(self, link: _Link, batch: bytes) -> bytes:
        """Who it is from, as its sender says. A peer is whom this hub wanted to talk to."""
        name, end = name_in(batch)
        link.header = batch[:end]
        if isinstance(link, _Route):
            link.who = Identity(name, LOCAL)
        return link.header

    def _hold(self, link: _Link, is_another: bool) -> None:
        """Count what has come of a frame that is not whole; of another one than before, or of the same."""
        held_bytes = link.frames.held_bytes
        if held_bytes and (is_another or not link.held_bytes):
            link.held_since = time.monotonic()
        self._unfinished_bytes += held_bytes - link.held_bytes
        link.held_bytes = held_bytes
        if self._unfinished_bytes > UNFINISHED_BYTES_MAX:
            oldest = min((each for each in self._links.values() if each.held_bytes), key=lambda each: each.held_since)
            self._malformed(f"{oldest.held_bytes} bytes of a frame that does not end", oldest.who)
            self._lost(oldest)

    # Handshakes.

    def _shake(self, link: _Link, data: bytes, received: list[Received]) -> None:
        if isinstance(link, _Route) and link.refused:
            return
        if link.greets:
            rest = len(GREETING) - len(link.greeting)
            link.greeting += data[:rest]
            data = data[rest:]
            if not may_be_greeting(link.greeting):
                self._misfit(link)
                return
            if len(link.greeting) < len(GREETING):
                return
            link.greets = False
            if not wants_no_keys(link.greeting):
                self._misfit(link, other_mechanism=True)
                return
            if not self._say(link, GREETING[VERSION_END:] + DEALER_READY if isinstance(link, _Peer) else ROUTER_READY):
                return
        link.frames.feed(data)
        try:
            found = link.frames.next()
        except RemoteProtocolError:
            found = MESSAGE, b""
        if found is None:
            # It is a command of a few bytes, and nothing else is held for who has not said it.
            if link.frames.held_bytes > COMMAND_BYTES_MAX:
                self._misfit(link)
            return
        if found[0] != COMMAND or not is_ready(found[1]):
            self._misfit(link)
            return
        self._opened(link)
        self._cut(link, received)

    def _say(self, link: _Link, data: bytes) -> bool:
        """A few bytes of a handshake, for which there is always room; False: the connection is broken."""
        assert link.socket is not None
        with contextlib.suppress(OSError):
            if link.socket.send(data) == len(data):
                return True
        self._lost(link)
        return False

    def _opened(self, link: _Link) -> None:
        link.open = True
        if isinstance(link, _Route):
            del self._shaking[link]
        elif isinstance(link, _Peer):
            self._restless.discard(link)
            link.refusal, link.cuts, link.pause_ms = None, 0, 0
            link.opened_at = time.monotonic()
            self._write(link)

    def _misfit(self, link: _Link, *, other_mechanism: bool = False) -> None:
        """Somebody who does not speak as we do."""
        if isinstance(link, _Peer):
            self._disconnect(link)
            link.due = time.monotonic() + RECONNECT_MS_MAX / 1000
            self._refused_by(link, other_mechanism=other_mechanism)
        elif isinstance(link, _Route):
            self._refuse_handshake()
            link.refused = True
            # Who wants to use keys reads in our greeting that we use none, and hangs up: cut off, he would not know.
            if not other_mechanism:
                self._lost(link)

    def _refuse_handshake(self) -> None:
        self.refuse("somebody connected who does not speak this protocol, or has no proper key")

    def _refused_by(self, peer: _Peer, *, cuts: bool = False, other_mechanism: bool = False) -> None:
        peer.refusal = refusal_of(
            peer.who.name, peer.address.text, cuts=cuts, with_keys=False, other_mechanism=other_mechanism
        )
        self._warn(peer.refusal.message)

    # Connections come and go.

    def _listen(self, address: Address) -> None:
        self._check_plaintext(address)
        try:
            self._listener, self.address = listening(address, BACKLOG)
        except OSError as error:
            raise cannot_listen(address, error.errno, error.strerror or str(error)) from error
        if address.path:
            self._file = address.path, os.stat(address.path).st_ino
        self._epoll.register(self._listener, _IN)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_PER_POLL_MAX):
            try:
                connection, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_FILES:
                    # The system would say without end that somebody waits.
                    self._epoll.unregister(listener)
                    self._accept_at = time.monotonic() + ACCEPT_PAUSE_MS / 1000
                    self._warn(f"nobody is accepted for {ACCEPT_PAUSE_MS} ms: {error.strerror}")
                    return
                continue  # of somebody who has left meanwhile
            if self._connections >= CONNECTIONS_MAX and not self._made_room():
                connection.close()
                continue
            self._welcome(connection)

    def _made_room(self) -> bool:
        """For another connection, in place of the one that waits longest for its handshake."""
        self.refuse(f"there are {CONNECTIONS_MAX} connections")
        oldest = next(iter(self._shaking), None)
        if oldest is not None:
            self._lost(oldest)
        return oldest is not None

    def _welcome(self, connection: socket.socket) -> None:
        self._numbers += 1
        route = _Route(connection, self._numbers)
        try:
            connection.setblocking(False)
            tune(connection)
            self._epoll.register(connection, _IN)
        except OSError:
            connection.close()  # he has left meanwhile
            return
        self._links[connection.fileno()] = route
        self._connections += 1
        self._shaking[route] = time.monotonic() + HANDSHAKE_MS_MAX / 1000
        self._say(route, GREETING)

    def _connect(self, peer: _Peer) -> None:
        self._restless.add(peer)
        try:
            connection = connecting(peer.address)
        except OSError:
            self._pause(peer)
            return
        peer.socket, peer.connects = connection, True
        peer.due = time.monotonic() + CONNECT_MS_MAX / 1000
        self._links[connection.fileno()] = peer
        self._epoll.register(connection, _OUT)

    def _connected(self, peer: _Peer) -> None:
        assert peer.socket is not None
        if peer.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._disconnect(peer)
            self._pause(peer)
            return
        peer.connects = False
        peer.due = time.monotonic() + HANDSHAKE_MS_MAX / 1000
        self._epoll.modify(peer.socket, _IN)
        self._say(peer, GREETING[:VERSION_END])

    def _pause(self, peer: _Peer) -> None:
        """Before the next attempt."""
        peer.pause_ms = min(max(2 * peer.pause_ms, RECONNECT_MS_MIN), RECONNECT_MS_MAX)
        peer.due = time.monotonic() + peer.pause_ms / 1000

    def _lost(self, link: _Link) -> None:
        """A connection is over."""
        was_open = link.open
        if isinstance(link, _Route):
            if not was_open and not link.refused:
                self._refuse_handshake()
            self._drop(link)
        elif isinstance(link, _Peer):
            self._disconnect(link)
            self._restless.add(link)
            if was_open and time.monotonic() > link.opened_at + RECONNECT_MS_MAX / 1000:
                self._connect(link)
                return
            self._pause(link)
            if not was_open:
                link.cuts += 1
                if link.cuts >= CUTS_MIN and link.refusal is None:
                    self._refused_by(link, cuts=True)

    def _drop(self, link: _Link) -> None:
        """Nothing reaches it any more."""
        self._disconnect(link)
        link.gone = True
        self.counts.dropped += len(link.batch) + sum(count for _, count in link.unsent)
        link.batch.clear()
        link.unsent.clear()
        link.batch_bytes = link.unsent_bytes = 0

    def _disconnect(self, link: _Link) -> None:
        connection, link.socket = link.socket, None
        if connection is None:
            return
        del self._links[connection.fileno()]
        # By name: a process that was forked from this one may have the connection, too.
        self._epoll.unregister(connection)
        connection.close()
        self._unfinished_bytes -= link.held_bytes
        link.begin()
        if isinstance(link, _Route):
            self._connections -= 1
            self._shaking.pop(link, None)

    # What is due.

    def _look_after(self, timeout_ms: int, received: list[Received]) -> int:
        """Do what is due; how long `poll` may wait then."""
        now = time.monotonic()
        self._look_after_peers(now)
        dues = [peer.due for peer in self._restless]
        while self._shaking:
            route, ends = next(iter(self._shaking.items()))
            if ends > now:
                dues.append(ends)
                break
            # His answer may lie there, if this loop was busy.
            self._read(route, received)
            if route in self._shaking:
                self._lost(route)
        if self._accept_at is not None and self._listener is not None:
            if self._accept_at <= now:
                self._accept_at = None
                self._epoll.register(self._listener, _IN)
            else:
                dues.append(self._accept_at)
        if not dues:
            return timeout_ms
        due_ms = max(0, int((min(dues) - now) * 1000) + 1)
        return due_ms if timeout_ms < 0 else min(timeout_ms, due_ms)

    def _look_after_peers(self, now: float) -> None:
        for peer in [peer for peer in self._restless if peer.due <= now]:
            if peer.socket is None:
                self._connect(peer)
            else:
                # It says nothing, and nobody knows why: that is no refusal, it may be busy.
                self._disconnect(peer)
                self._pause(peer)

    def _close_sockets(self) -> None:
        for link in [*self._links.values()]:
            if link.socket is not None:
                link.socket.close()
            link.gone = True
        self._links.clear()
        if self._listener is not None:
            self._listener.close()
        if self._file is not None:
            path, inode = self._file
            # Somebody else may listen there by now.
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == inode:
                    os.unlink(path)
        self._epoll.close()
