"""A hub over ZeroMQ: for those who have keys, which ZeroMQ encrypts with.

It listens with a ROUTER and has a DEALER for each peer. ZeroMQ's own thread stands between a message and its reader,
and costs two switches of threads on each side; without keys nobody needs that (`plain_hub`).

What is not bounded: ZeroMQ keeps a message until its last frame has come, and has no limit for the number of frames.
Somebody who gets through the handshake, so whoever is on the list, and sends frames without ever ending a message fills
the memory (200 MB of them take 180 MB): a limit for the memory of the process, from outside, is the only help.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from ..changetables.errors import InterfaceError, RemoteProtocolError
from .addresses import KEYS_HINT, Address, Refusal, parse_address
from .batches import FRAME_BYTES_MAX, name_in, pack_batch, payloads_in
from .keys import LOCAL, SERVER, AllowList, Identity, Keys
from .sockets import (
    FILE_MODE,
    KEEPALIVE_IDLE_S,
    KEEPALIVE_INTERVAL_S,
    KEEPALIVE_PROBES,
    UNCONFIRMED_MS_MAX,
    cannot_listen,
)
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
from .zmtp import CUTS_MIN

#: Connections whose names and queues are kept. One that is forgotten is known again by its next batch.
ROUTES_MAX = 16_384
#: While a batch waits for a peer with a full queue, it is tried again so often.
STUCK_RETRY_MS = 2
#: Handled in one `poll`, so that a flood of connections does not keep the loop from its peers.
HANDSHAKES_PER_POLL_MAX = 64

_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_MONITOR_ADDRESS = "inproc://connections"
_FAILED_HANDSHAKES = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
_CONNECTIONS = _FAILED_HANDSHAKES | zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED
_OWN_HANDSHAKES = _FAILED_HANDSHAKES | zmq.Event.HANDSHAKE_FAILED_AUTH
_OTHER_MECHANISM = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)

#: Plain numbers: with the members of pyzmq's enumerations each call takes microseconds more.
_DONTWAIT, _SNDMORE, _RCVMORE = int(zmq.DONTWAIT), int(zmq.SNDMORE), int(zmq.RCVMORE)


class _Outlet(Outlet):
    """What waits to be sent to one peer, and the way there."""

    __slots__ = ("packed", "packed_count", "socket")

    def __init__(self, socket: zmq.Socket[bytes], who: Identity) -> None:
        super().__init__(who)
        self.socket = socket
        #: A batch of so many messages that did not fit into ZeroMQ's queue. It leaves before anything else.
        self.packed = b""
        self.packed_count = 0

    def hand(self, frame: bytes) -> None:
        """To ZeroMQ, which raises `Again` if its queue is full."""
        self.socket.send(frame, zmq.DONTWAIT)

    def clear(self) -> int:
        """Drop everything; how many messages that were."""
        count = len(self.batch) + self.packed_count
        self.batch.clear()
        self.batch_bytes = self.packed_count = 0
        self.packed = b""
        return count


class _Peer(_Outlet):
    """Somebody whom this hub connects to."""

    __slots__ = ("address", "cuts", "monitor", "public_key", "refusal", "timeout_ms")

    def __init__(
        self, socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes], who: Identity, address: str, public_key: str
    ) -> None:
        super().__init__(socket, who)
        #: Tells which handshakes fail.
        self.monitor = monitor
        self.address, self.public_key = address, public_key
        #: That of `Hub.receive`; `poll` never waits at a socket.
        self.timeout_ms = -1
        self.refusal: Refusal | None = None
        self.cuts = 0


class _Route(_Outlet):
    """Somebody who has connected to this hub: one connection. `header` is how his batches begin."""

    __slots__ = ("header", "routing_id", "user")

    def __init__(self, socket: zmq.Socket[bytes], who: Identity, routing_id: bytes, user: str, header: bytes) -> None:
        super().__init__(socket, who)
        self.routing_id, self.user, self.header = routing_id, user, header

    def hand(self, frame: bytes) -> None:
        self.socket.send_multipart((self.routing_id, frame), zmq.DONTWAIT)


class _Context(zmq.Context["zmq.Socket[bytes]"]):
    """Ends with its hub. Python may collect it before the sockets, and it would wait for them for ever."""

    def __del__(self) -> None: ...


class ZmqHub(Hub):
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
        super().__init__(name, insecure=insecure, keys_hint=keys_hint)
        self._keys, self._allowed = keys, allowed
        self._peers: dict[str, _Peer] = {}
        self._routes: dict[bytes, _Route] = {}
        #: The descriptors of connections that ZeroMQ has accepted.
        self._accepted: set[int] = set()
        self._stuck = False
        #: Peers that ZeroMQ has given up, and when to connect to them again.
        self._given_up: dict[_Peer, float] = {}
        self._monitors = 0
        self._room_batches = self._room_bytes = 0
        self._context = _Context()
        self._poller = zmq.Poller()
        self._handlers: dict[object, Callable[[list[Received]], None]] = {}
        self._router: zmq.Socket[bytes] | None = None
        self._zap: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._watch(self._wake_fd, lambda received: self._woken())
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
        if known is not None and (known.address, known.public_key) == (address, public_key):
            return
        socket, monitor = self._connect(parse_address(address), public_key)
        renewed = _Peer(socket, monitor, self._identity_of(peer, public_key), address, public_key)
        if known is not None:
            self._disconnect(known)
            renewed.batch, renewed.batch_bytes = known.batch[:], known.batch_bytes
            renewed.packed, renewed.packed_count = known.packed, known.packed_count
            renewed.queued = known.queued
            known.clear()
            self._dirty = [renewed if outlet is known else outlet for outlet in self._dirty]
        self._peers[peer] = renewed
        self._watch(socket, lambda received: self._receive_from(renewed, received))
        self._watch(monitor, lambda received: self._watch_peer(renewed))

    def forget(self, peer: str) -> None:
        known = self._peers.pop(peer, None)
        if known is not None:
            self._disconnect(known)
            self.counts.dropped += known.clear()

    def _disconnect(self, peer: _Peer) -> None:
        peer.gone = True
        self._given_up.pop(peer, None)
        peer.socket.disable_monitor()
        for socket in (peer.socket, peer.monitor):
            self._unwatch(socket)
            socket.close(0)

    def refusal(self, peer: str) -> Refusal | None:
        known = self._peers[peer]
        self._watch_peer(known)
        return known.refusal

    def descriptor(self, peer: str) -> int:
        return int(self._peers[peer].socket.getsockopt(zmq.FD))

    def descriptors(self) -> list[int]:
        sockets = (self._router, self._zap, self._monitor)
        return [self._wake_fd, *(int(each.getsockopt(zmq.FD)) for each in sockets if each is not None)]

    def _wake_for(self, descriptor: int) -> None:
        self._watch(descriptor, lambda received: None)

    # Sending.

    def connection(self, route: object) -> bytes:
        assert isinstance(route, _Route)
        return route.routing_id

    @property
    def connections(self) -> int:
        return len(self._accepted)

    def flush(self) -> None:
        stuck: list[Outlet] = []
        for outlet in self._dirty:
            outlet.queued = not self._push(outlet)
            if outlet.queued:
                stuck.append(outlet)
        self._dirty, self._stuck = stuck, bool(stuck)

    def _push(self, outlet: Outlet) -> bool:
        """Hand all that waits to ZeroMQ; False: some of it must wait."""
        assert isinstance(outlet, _Outlet)
        if outlet.packed_count and not self._hand_over(outlet):
            return False
        if not outlet.batch:
            return True
        outlet.packed, outlet.packed_count = pack_batch(self._header, outlet.batch), len(outlet.batch)
        outlet.batch.clear()
        outlet.batch_bytes = 0
        return self._hand_over(outlet)

    def _hand_over(self, outlet: _Outlet) -> bool:
        try:
            outlet.hand(outlet.packed)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH or not isinstance(outlet, _Route):
                raise
            outlet.gone = True
            self._routes.pop(outlet.routing_id, None)
            self.counts.dropped += outlet.clear()
            return True
        self.counts.sent_batches += 1
        self.counts.sent_payloads += outlet.packed_count
        outlet.packed, outlet.packed_count = b"", 0
        return True

    # Receiving.

    def poll(self, timeout_ms: int) -> list[Received]:
        self._check_open()
        if self._allowed is not None and not self._allowed.look():
            self._warn(f"the allow-list stays as it was: {self._allowed.trouble}")
        if self._stuck:
            self.flush()
            if self._stuck and not 0 <= timeout_ms < STUCK_RETRY_MS:
                timeout_ms = STUCK_RETRY_MS
        if self._given_up:
            self._connect_again()
            if not 0 <= timeout_ms < RECONNECT_MS_MAX:
                timeout_ms = RECONNECT_MS_MAX
        received: list[Received] = []
        self._room_batches, self._room_bytes = RECEIVED_BATCHES_MAX, RECEIVED_BYTES_MAX
        for source, _ in self._poller.poll(timeout_ms):
            self._handlers[source](received)
        return received

    def receive(self, peer: str, timeout_ms: int) -> list[bytes]:
        known = self._peers[peer]
        socket = known.socket
        if known.timeout_ms != timeout_ms:
            socket.rcvtimeo = known.timeout_ms = timeout_ms
        try:
            frame = socket.recv()
        except zmq.Again:
            return []
        if socket.get(_RCVMORE):
            self._skip(socket)
            self._malformed("a batch in several frames", known.who)
            return []
        return payloads_in(frame, name_in(frame)[1])

    def _receive_from(self, peer: _Peer, received: list[Received]) -> None:
        receive = peer.socket.recv
        while self._room_batches > 0 and self._room_bytes > 0:
            try:
                frame = receive(_DONTWAIT)
            except zmq.Again:
                return
            self._room_batches -= 1
            self._room_bytes -= len(frame)
            if peer.socket.get(_RCVMORE):
                self._skip(peer.socket)
                self._malformed("a batch in several frames", peer.who)
                continue
            try:
                _, start = name_in(frame)
                self._take(received, Received(peer, peer.who, payloads_in(frame, start)))
            except RemoteProtocolError as error:
                self._malformed(str(error), peer.who)

    def _receive(self, received: list[Received]) -> None:
        """From those who have connected to this hub."""
        router = self._router
        assert router is not None
        while self._room_batches > 0 and self._room_bytes > 0:
            try:
                routing_id, user = self._next_sender(router)
            except zmq.Again:
                return
            frame = router.recv(_DONTWAIT) if router.get(_RCVMORE) else b""
            self._room_batches -= 1
            self._room_bytes -= len(frame)
            if router.get(_RCVMORE):
                self._skip(router)
                self._malformed("a batch in several frames", None)
                continue
            try:
                route = self._route_of(routing_id, user, frame)
                if route is not None:
                    self._take(received, Received(route, route.who, payloads_in(frame, len(route.header))))
            except RemoteProtocolError as error:
                self._malformed(str(error), None)

    def _next_sender(self, router: zmq.Socket[bytes]) -> tuple[bytes, str]:
        """Where the next batch came from, and by which key. The key is asked for each time: the sender may have chosen
        the routing id of somebody who has left."""
        if self._keys is None:
            return router.recv(_DONTWAIT), ""
        first = router.recv(zmq.DONTWAIT, copy=False)
        return first.bytes, str(first.get("User-Id"))

    def _route_of(self, routing_id: bytes, user: str, frame: bytes) -> _Route | None:
        """The connection that a batch came by; None: its sender is not allowed any more."""
        route = self._routes.get(routing_id)
        if self._keys is not None:
            who = self._allowed.find(user) if self._allowed is not None else None
            if who is None:
                self.refuse(f"the key {user} is not allowed any more")
                return None
            if route is not None and route.user == user and route.who is who and frame.startswith(route.header):
                return route
            _, start = name_in(frame)
        else:
            if route is not None and frame.startswith(route.header):
                return route
            name, start = name_in(frame)
            who = Identity(name, LOCAL)
        assert self._router is not None
        route = self._routes[routing_id] = _Route(self._router, who, routing_id, user, frame[:start])
        if len(self._routes) > ROUTES_MAX:
            del self._routes[next(iter(self._routes))]
        return route

    def _take(self, received: list[Received], batch: Received) -> None:
        received.append(batch)
        self.counts.received_batches += 1
        self.counts.received_payloads += len(batch.payloads)

    def _skip(self, socket: zmq.Socket[bytes]) -> None:
        """The rest of a message of several frames."""
        while socket.get(_RCVMORE):
            self._room_bytes -= len(socket.recv(zmq.DONTWAIT)) + FRAME_COST_BYTES

    # Who may connect.

    def _authenticate(self, received: list[Received]) -> None:
        """ZeroMQ asks, by its own protocol (ZAP), whether a key may connect."""
        zap = self._zap
        assert zap is not None and self._allowed is not None
        for _ in range(HANDSHAKES_PER_POLL_MAX):
            try:
                version, request, _domain, address, _identity, mechanism, *credentials = zap.recv_multipart(
                    zmq.DONTWAIT
                )
            except zmq.Again:
                return
            public = credentials[0].hex() if mechanism == b"CURVE" and credentials else ""
            who = self._allowed.find(public)
            if who is None:
                self.refuse(f"{address.decode()}: the key {public or '(none)'} is not allowed")
            status = (b"200", b"", public.encode()) if who is not None else (b"400", b"not allowed", b"")
            zap.send_multipart((version, request, *status, b""))

    def _heard_of_connections(self, received: list[Received]) -> None:
        assert self._monitor is not None
        for _ in range(HANDSHAKES_PER_POLL_MAX):
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.DONTWAIT))
            except zmq.Again:
                return
            kind = event["event"]
            if kind == zmq.Event.ACCEPTED:
                self._accepted.add(event["value"])
            elif kind == zmq.Event.DISCONNECTED:
                self._accepted.discard(event["value"])
            elif kind & _FAILED_HANDSHAKES:
                self.refuse("somebody connected who does not speak this protocol, or has no proper key")

    def _watch_peer(self, peer: _Peer) -> None:
        """Which handshakes with a peer have failed."""
        while True:
            try:
                event = parse_monitor_message(peer.monitor.recv_multipart(zmq.DONTWAIT))
            except zmq.Again:
                return
            kind = event["event"]
            cut = kind == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
            peer.cuts = peer.cuts + 1 if cut else 0
            if not cut:
                self._given_up[peer] = time.monotonic() + RECONNECT_MS_MAX / 1000
            if not cut or peer.cuts >= CUTS_MIN:
                peer.refusal = _refusal(peer, kind, event["value"])
                self._warn(peer.refusal.message)

    def _connect_again(self) -> None:
        now = time.monotonic()
        for peer in [peer for peer, at in self._given_up.items() if at <= now]:
            del self._given_up[peer]
            peer.refusal = None
            # Twice to one address is once, for ZeroMQ.
            with contextlib.suppress(zmq.ZMQError):
                peer.socket.disconnect(peer.address)
            peer.socket.connect(peer.address)

    def _identity_of(self, peer: str, public_key: str) -> Identity:
        """Somebody whom this hub connects to: by the list if his key is on it."""
        if not public_key:
            return Identity(peer, LOCAL)
        listed = self._allowed.find(public_key) if self._allowed is not None else None
        return Identity(peer, listed.role if listed is not None else SERVER)

    # Sockets.

    def _listen(self, address: Address) -> None:
        if self._keys is None:
            self._check_plaintext(address)
        elif self._allowed is None:
            raise InterfaceError(f"{address.text} needs a list of the keys that may connect", hint="give `allowed`")
        router = self._router = self._socket(zmq.ROUTER, address)
        router.router_mandatory = True
        router.backlog = BACKLOG
        if self._keys is not None:
            self._zap = self._context.socket(zmq.REP)
            self._zap.linger = 0
            self._zap.bind(_ZAP_ADDRESS)
            self._watch(self._zap, self._authenticate)
            router.curve_server = True
            router.curve_secretkey = bytes.fromhex(self._keys.secret)
            router.zap_domain = b"viewtide"
        self._watch_connections(router)
        try:
            router.bind(address.text)
        except zmq.ZMQError as error:
            raise cannot_listen(address, error.errno, error.strerror) from error
        if address.path:
            os.chmod(address.path, FILE_MODE)
        self.address = router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._watch(router, self._receive)

    def _watch_connections(self, router: zmq.Socket[bytes]) -> None:
        monitor = self._monitor = self._monitoring(router, _MONITOR_ADDRESS, _CONNECTIONS)
        self._watch(monitor, self._heard_of_connections)

    def _monitoring(self, socket: zmq.Socket[bytes], address: str, events: int) -> zmq.Socket[bytes]:
        socket.monitor(address, events)
        monitor = self._context.socket(zmq.PAIR)
        monitor.linger = 0
        # With a limit, ZeroMQ's own thread would wait for this one. An event is small, and a connection makes few.
        monitor.rcvhwm = 0
        monitor.connect(address)
        return monitor

    def _connect(self, address: Address, public_key: str) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """The socket, and the one that tells which of its handshakes fail."""
        if not public_key:
            self._check_plaintext_to(address)
        elif self._keys is None:
            raise InterfaceError(f"{address.text} needs a key of one's own", hint="give `keys`")
        dealer = self._socket(zmq.DEALER, address)
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = RECONNECT_MS_MIN, RECONNECT_MS_MAX
        dealer.connect_timeout = CONNECT_MS_MAX
        if public_key and self._keys is not None:
            dealer.curve_publickey = bytes.fromhex(self._keys.public)
            dealer.curve_secretkey = bytes.fromhex(self._keys.secret)
            dealer.curve_serverkey = _public_key(public_key)
        self._monitors += 1
        monitor = self._monitoring(dealer, f"inproc://handshakes-{self._monitors}", _OWN_HANDSHAKES)
        dealer.connect(address.text)
        return dealer, monitor

    def _socket(self, kind: int, address: Address) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.ipv6 = address.wants_ipv6
        socket.maxmsgsize = FRAME_BYTES_MAX
        socket.sndhwm = socket.rcvhwm = QUEUE_BATCHES_MAX
        socket.handshake_ivl = HANDSHAKE_MS_MAX
        socket.tcp_keepalive = 1
        socket.tcp_keepalive_idle, socket.tcp_keepalive_intvl = KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S
        socket.tcp_keepalive_cnt = KEEPALIVE_PROBES
        socket.tcp_maxrt = UNCONFIRMED_MS_MAX
        return socket

    def _watch(self, source: zmq.Socket[bytes] | int, handler: Callable[[list[Received]], None]) -> None:
        self._handlers[source] = handler
        self._poller.register(source, zmq.POLLIN)

    def _unwatch(self, source: zmq.Socket[bytes]) -> None:
        del self._handlers[source]
        self._poller.unregister(source)

    def _close_sockets(self) -> None:
        for monitored in (self._router, *(peer.socket for peer in self._peers.values())):
            # Of a hub that is collected as garbage, a socket may have ended before it.
            if monitored is not None and not monitored.closed:
                monitored.disable_monitor()
        # By name, not by what the context knows: of a hub that is collected as garbage it knows none any more, and
        # would wait for them for ever.
        for socket in (*self._handlers, self._router, self._zap, self._monitor):
            if isinstance(socket, zmq.Socket):
                socket.close(linger=0)
        self._context.destroy(linger=0)


def _refusal(peer: _Peer, event: int, value: int) -> Refusal:
    if event == zmq.Event.HANDSHAKE_FAILED_AUTH:
        return Refusal(
            f"{peer.who.name} at {peer.address} does not take this key", "have it put on its list: viewtide keys allow"
        )
    return refusal_of(
        peer.who.name,
        peer.address,
        cuts=event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL,
        with_keys=bool(peer.public_key),
        other_mechanism=event == zmq.Event.HANDSHAKE_FAILED_PROTOCOL and value == _OTHER_MECHANISM,
    )


def _public_key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InterfaceError(
            f"{text!r} is no public key: it has 64 hexadecimal digits", hint="`viewtide keys list` shows it"
        )
    return key


def new_keys(name: str, role: str) -> Keys:
    public, secret = zmq.curve_keypair()
    return Keys(name, role, z85.decode(public).hex(), z85.decode(secret).hex())
