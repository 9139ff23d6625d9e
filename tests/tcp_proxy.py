"""A proxy in front of a TCP server that loses answers, cuts connections and holds back what it is told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType

CHUNK_BYTES = 1 << 16


class TcpProxy:
    """Listens on `address`. What it does to the connections is set while they run."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._answers_flow, self._requests_flow = threading.Event(), threading.Event()
        self._answers_flow.set()
        self._requests_flow.set()
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

    def holding_requests(self) -> AbstractContextManager[None]:
        """Requests arrive when the block has ended."""
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
                server = socket.create_connection(self._target)
            except OSError:
                continue
            self.connections += 1
            with self._lock:
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink, source is server), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while some := source.recv(CHUNK_BYTES):
                self._pass(self._answers_flow if answers else self._requests_flow)
                if answers and self._loses_one():
                    break
                sink.sendall(some)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _pass(self, flow: threading.Event) -> None:
        if not flow.is_set():
            self._held.set()
            flow.wait()

    def _loses_one(self) -> bool:
        with self._lock:
            if self.answers_to_lose == 0:
                return False
            self.answers_to_lose -= 1
            return True
