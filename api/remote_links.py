"""Connections to a served node, for threads: each call borrows one, alone.

A node that does not answer is asked for a sign of life (`ping`), which its loop gives at once, whatever its workers do.
Without one, or if another process answers, the connection is lost: reads and commits are sent again by a new one, a
commit with its tx_id, so that it happens once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar, cast

from .changetables.errors import Busy, CommitUnknown, Error, Refused, RemoteProtocolError, Unavailable
from .ltm.addresses import Refusal
from .ltm.codec import make_pack
from .ltm.direct import Direct
from .ltm.transport import Hub, Keys
from .remote_calls import COMMIT, ONCE, TELL, Ask, Asking, Client
from .remote_protocol import (
    ANSWER,
    FAILURE,
    PROGRESS,
    REQUEST_BYTES_MAX,
    RETRIES_MS_MAX,
    VERSION,
    error_from_wire,
    reply_of,
    request_bytes,
)

T = TypeVar("T")

#: How long `connect` waits for a node that does not answer.
CONNECT_S_MAX = 5.0
#: A call that takes longer asks for a sign of life; without one for LOST_S the connection is lost.
PING_S = 0.5
_PING_MS = int(PING_S * 1000)
LOST_S = 3.0
#: So often somebody who waits for the first answer looks whether he is let in at all.
REFUSED_LOOK_S = 0.05
#: How long calls are sent again, other than commits.
RETRIES_S_MAX = 10.0
#: Connections of one client, at the most: as many threads can have a call under way.
LINKS_MAX = 256
#: Pause before the next attempt to reach a node.
RETRY_PAUSE_S = 0.05

PEER = "node"


class Lost(Exception):
    """The connection is gone, and whether the request arrived is not known."""


class Broken(Lost):
    """Nothing more will come through this connection."""


class Wire(Protocol):
    """What messages to one node, and its answers, go through. A connection that broke is an OSError, or is made anew
    behind it: then another process may answer."""

    def send(self, payload: bytes) -> None: ...

    def receive(self, timeout_ms: int) -> list[bytes]:
        """None: nothing has come in time."""

    def ask(self, payload: bytes, timeout_ms: int) -> list[bytes]:
        """Send, then receive."""

    def refusal(self) -> Refusal | None:
        """Why the node does not let this client in, as far as it shows that."""

    def close(self) -> None: ...


class _Encrypted:
    """With keys: ZeroMQ encrypts."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.close = hub.close

    def send(self, payload: bytes) -> None:
        if not self._hub.send(PEER, payload):
            raise Busy("the queue to the node is full", hint="try again in a moment")
        self._hub.flush()

    def receive(self, timeout_ms: int) -> list[bytes]:
        return self._hub.receive(PEER, timeout_ms)

    def ask(self, payload: bytes, timeout_ms: int) -> list[bytes]:
        self.send(payload)
        return self.receive(timeout_ms)

    def refusal(self) -> Refusal | None:
        return self._hub.refusal(PEER)


class Target:
    """Where a node is, and how to get in."""

    keys_hint = "give `keys` and `server_key` (`viewtide keys new` makes keys), or say that it is meant: `insecure`"

    def __init__(self, address: str, keys: Keys | None = None, server_key: str = "", *, insecure: bool = False) -> None:
        self.address, self.keys, self.server_key, self.insecure = address, keys, server_key, insecure

    def hub(self, name: str) -> Hub:
        own_name = name if self.keys is None else self.keys.name
        hub = Hub(own_name, keys=self.keys, insecure=self.insecure, keys_hint=self.keys_hint)
        try:
            hub.know(PEER, self.address, self.server_key)
        except BaseException:
            hub.close()
            raise
        return hub

    def wire(self, name: str) -> Wire:
        if self.keys is None and not self.server_key:
            return Direct(name, self.address, insecure=self.insecure, keys_hint=self.keys_hint)
        return _Encrypted(self.hub(name))

    def lost(self, address: str) -> None:
        """Nobody answers at an address: if there are others, `address` is another one from now on."""

    def unavailable(self) -> Unavailable:
        return Unavailable(
            f"nobody answers at {self.address}",
            hint="is the node running there? it is started with: viewtide serve PATH --listen ADDRESS",
        )


def given_up(target: Target, ask: Ask) -> Error:
    """What to say when a request got no answer."""
    if ask.kind == COMMIT:
        return CommitUnknown(
            f"the connection to {target.address} was lost during the commit, which may have happened",
            hint="look at the data when the node is there again",
        )
    if ask.kind == ONCE:
        return CommitUnknown(
            f"the connection to {target.address} was lost, and {ask.operation} may have happened",
            hint="look at the database before you try it again",
        )
    return target.unavailable()


class Link:
    """One connection; one request at a time."""

    def __init__(self, target: Target, client: Client) -> None:
        self._target = target
        self._client = client
        self.address = target.address
        self._wire = target.wire(f"client-{client.number:x}")
        self._pack = make_pack()
        self._number = 0
        #: Of the process that answered; None: not known yet.
        self.life: object = None

    def close(self) -> None:
        self._wire.close()

    def meet(self, seconds: float) -> None:
        """Find out who answers; Lost if nobody does, Refused if he does not let this client in."""
        number = self._send("ping", ())
        give_up = time.monotonic() + seconds
        while True:
            try:
                self.life = self._wait(number, REFUSED_LOOK_S, None)[1]
                return
            except Broken:
                raise
            except Lost:
                refusal = self._wire.refusal()
                if refusal is not None:
                    raise Refused(refusal.message, hint=refusal.hint) from None
                if time.monotonic() > give_up:
                    raise

    def exchange(self, ask: Ask, arguments: tuple[object, ...]) -> object:
        """The body of the answer, or its error."""
        operation, _, kind, _, progress = ask
        if kind == TELL:
            self._send(operation, arguments)
            return None
        self._number = number = self._number + 1
        try:
            payload = self._pack((VERSION, number, operation, arguments))
        except (ValueError, TypeError, OverflowError):
            payload = b""
        if not 0 < len(payload) <= REQUEST_BYTES_MAX:
            payload = request_bytes(number, operation, arguments)  # says what is wrong with it
        try:
            payloads = self._wire.ask(payload, _PING_MS)
        except OSError:
            raise Broken from None
        if len(payloads) == 1:
            # Mostly this is the answer, and tells nothing else.
            answered, status, version, body = reply_of(payloads[0])
            if answered == number and status == ANSWER and version == self._client.version:
                return body
        status, body = self._wait(number, None, progress, payloads)
        if status == FAILURE:
            raise error_from_wire(body)
        return body

    def _send(self, operation: str, arguments: tuple[object, ...]) -> int:
        self._number += 1
        payload = request_bytes(self._number, operation, arguments, self._pack)
        try:
            self._wire.send(payload)
        except OSError:
            raise Broken from None
        return self._number

    def _wait(
        self,
        number: int,
        seconds: float | None,
        progress: Callable[[int, int], object] | None,
        payloads: list[bytes] | None = None,
    ) -> tuple[object, object]:
        """Wait for an answer: for so long, or as long as there are signs of life. `payloads`: what has come in the
        first PING_S, if somebody has waited already."""
        heard_s = asked_s = time.monotonic() - (PING_S if payloads == [] else 0.0)
        ping = -1
        while True:
            if payloads is None:
                try:
                    payloads = self._wire.receive(int((seconds or PING_S) * 1000))
                except OSError:
                    raise Broken from None
            for payload in payloads:
                answered, kind, first, body = reply_of(payload)
                if answered == number and kind != PROGRESS:
                    if first != self._client.version:
                        self._client.heard(first)
                    return kind, body
                heard_s = time.monotonic()
                if answered == number and progress is not None:
                    progress(cast(int, first), cast(int, body))
                elif answered == ping and kind == ANSWER and body != self.life:
                    raise Lost  # another process, to which nobody has sent this request
            payloads = None
            now = time.monotonic()
            if now - heard_s > (seconds or LOST_S):
                raise Lost
            if seconds is None and now - asked_s >= PING_S:
                ping, asked_s = self._send("ping", ()), now


class Links:
    """The connections of one client."""

    def __init__(self, target: Target, client: Client) -> None:
        self.target = target
        self._client = client
        self._idle: list[Link] = []
        #: Connections that there are, idle or not.
        self._count = 0
        self._freed = threading.Condition()
        self._closed = False

    def run(self, asking: Asking[T], failed: BaseException | None = None) -> T:
        """Run a call to its end. `failed`: what `once` raised for its first request."""
        try:
            ask = next(asking)
            while True:
                try:
                    body = self._exchange(ask) if failed is None else self._again(ask, failed)
                except BaseException as error:
                    ask = asking.throw(error)
                else:
                    ask = asking.send(body)
                failed = None
        except StopIteration as end:
            return cast(T, end.value)

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def meet(self) -> None:
        """Is there a node at all?"""
        link = self._new_link()
        try:
            link.meet(CONNECT_S_MAX)
        except Lost:
            self._drop(link)
            self.target.lost(link.address)
            raise self.target.unavailable() from None
        except BaseException:
            self._drop(link)
            raise
        self._idle.append(link)

    def _exchange(self, ask: Ask) -> object:
        try:
            return self.once(ask, ask.arguments)
        except Lost as lost:
            return self._again(ask, lost)

    def _again(self, ask: Ask, failed: BaseException) -> object:
        """What becomes of a request after `once` has failed."""
        if not isinstance(failed, Lost):
            raise failed
        if ask.kind == ONCE:
            raise given_up(self.target, ask) from None
        give_up = time.monotonic() + (RETRIES_MS_MAX / 1000 if ask.kind == COMMIT else RETRIES_S_MAX)
        arguments = ask.arguments if ask.resent is None else ask.resent
        while time.monotonic() < give_up:
            time.sleep(RETRY_PAUSE_S)
            try:
                return self.once(ask, arguments)
            except Lost:
                continue
            except (Busy, Unavailable, Refused):
                # Of a commit that was sent before, that says nothing: it may have happened.
                if ask.kind != COMMIT:
                    raise
        raise given_up(self.target, ask) from None

    def once(self, ask: Ask, arguments: tuple[object, ...]) -> object:
        """One attempt, in few calls: in a process that was asleep until its answer came each of them is cold."""
        try:
            link = self._idle.pop()
        except IndexError:
            link = self._chosen(ask)
        else:
            # By position: a named tuple looks its names up each time.
            if ask[2] == ONCE or link.life is None or link.address != self.target.address:
                self._idle.append(link)
                link = self._chosen(ask)
        try:
            body = link.exchange(ask, arguments)
        except BaseException as error:
            self._take_back(link, error)
            raise
        if self._closed or self._count >= LINKS_MAX:
            self._give_back(link)
        else:
            self._idle.append(link)
        return body

    def _chosen(self, ask: Ask) -> Link:
        # What may not be done twice is sent only to a node that is there.
        link = self._answering() if ask.kind == ONCE else self._borrowed()
        if link.life is None:
            # Before anything is asked: who answers later may be another process, which knows nothing of it.
            try:
                link.meet(LOST_S)
            except BaseException as error:
                self._take_back(link, error)
                raise
        return link

    def _take_back(self, link: Link, error: BaseException) -> None:
        """After a request has failed."""
        if isinstance(error, Lost):
            self._lost(link)
        elif isinstance(error, Error) and not isinstance(error, RemoteProtocolError | Refused):
            self._give_back(link)
        else:
            self._drop(link)  # also after an interrupt: its answer is still under way

    def _answering(self) -> Link:
        """As `_borrowed`, one whose node just gave a sign of life. Some may have broken since they were used."""
        give_up = time.monotonic() + CONNECT_S_MAX
        while True:
            link = self._borrowed()
            was_used = link.life is not None
            try:
                link.meet(give_up - time.monotonic())
            except Lost:
                self._lost(link)
                if time.monotonic() > give_up:
                    raise self.target.unavailable() from None
                if not was_used:
                    time.sleep(RETRY_PAUSE_S)
            except BaseException:
                self._drop(link)
                raise
            else:
                return link

    def _lost(self, link: Link) -> None:
        self._drop(link)
        with suppress(Unavailable):  # the next attempt finds that, too
            self.target.lost(link.address)

    def _borrowed(self) -> Link:
        """One that nobody uses; those to a node that is gone are closed."""
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return self._new_link()
            if link.address == self.target.address:
                return link
            self._drop(link)

    def _new_link(self) -> Link:
        with self._freed:
            while self._count >= LINKS_MAX:
                with suppress(IndexError):  # one that was given back since the first look
                    return self._idle.pop()
                self._freed.wait()
            self._count += 1
        try:
            link = Link(self.target, self._client)
        except BaseException:
            self._count_down()
            raise
        return link

    def _give_back(self, link: Link) -> None:
        if self._closed:
            self._drop(link)
            return
        self._idle.append(link)
        if self._count >= LINKS_MAX:
            with self._freed:
                self._freed.notify()

    def _drop(self, link: Link) -> None:
        link.close()
        self._count_down()

    def _count_down(self) -> None:
        with self._freed:
            self._count -= 1
            self._freed.notify()
