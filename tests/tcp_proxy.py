"""A proxy in front of a TCP server that loses answers, cuts connections and holds back what it is told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType

CHUNK_BYTES = 1 << 16
#: By so much of what it says first a connection is known: a handshake, and whose messages these are.
FIRST_BYTES = 128


class TcpProxy:
    """Listens on `address`. What it does to the connections is set while they run."""

    def __init__(self, target: str) -> None:
        """`target` is host:port, or the path of a socket."""
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._answers_flow, self._requests_flow = threading.Event(), threading.Event()
        self._answers_flow.set()
        self._requests_flow.set()
        #: What connections say first whose requests are held back.
        self._held_who = b""
        #: Something waits to be let through.
        self._held = threading.Event()
        #: So many answers are swallowed, with the connection cut behind each.
        self.answers_to_lose = 0
        self.connections = 0
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._closed = True
        self._answers_flow.set()
        self._requests_flow.set()
        # A listener that another thread waits on is woken by shutdown, not by close.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End every connection that there is now."""
        with self._lock:
            connections, self._open = self._open, set()
        for each in connections:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def holding_answers(self) -> AbstractContextManager[None]:
        """Requests arrive, answers come when the block has ended."""
        return self._holding(self._answers_flow)

    def holding_requests(self, who: bytes = b"") -> AbstractContextManager[None]:
        """Requests arrive when the block has ended; only those of connections that have `who` in what they say first,
        if it is given."""
        self._held_who = who
        return self._holding(self._requests_flow)

    @contextmanager
    def _holding(self, flow: threading.Event) -> Iterator[None]:
        self._held.clear()
        flow.clear()
        try:
            yield
        finally:
            flow.set()

    def wait_for_held(self, timeout_s: float = 10.0) -> None:
        assert self._held.wait(timeout_s), "nothing has come to be held back"

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
                server = _connected(self._target)
            except OSError:
                continue
            self.connections += 1
            with self._lock:
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink, source is server), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        first = b""
        with suppress(OSError):
            while True:
                some = source.recv(CHUNK_BYTES)
                first = (first + some)[:FIRST_BYTES]
                if answers or self._held_who in first:
                    self._pass(some, self._answers_flow if answers else self._requests_flow)
                if not some or (answers and self._loses_one()):
                    break
                sink.sendall(some)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _pass(self, some: bytes, flow: threading.Event) -> None:
        """The end of a connection, without any bytes, is held back like all else."""
        if not flow.is_set():
            if some:
                self._held.set()
            flow.wait()

    def _loses_one(self) -> bool:
        with self._lock:
            if self.answers_to_lose == 0:
                return False
            self.answers_to_lose -= 1
            return True


def _connected(target: str) -> socket.socket:
    host, _, port = target.rpartition(":")
    if host:
        return socket.create_connection((host, int(port)))
    made = socket.socket(socket.AF_UNIX)
    made.connect(target)
    return made
