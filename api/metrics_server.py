"""/metrics for Prometheus, /healthz and /readyz, in a thread of its own.

/healthz answers 200 while the process lives, /readyz only when it can serve: 503 otherwise, with the reason.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from .changetables.errors import InterfaceError

#: A request line with its headers that takes longer to come is not waited for.
REQUEST_S_MAX = 5.0
#: Requests at the same time; more are closed at once. A scraper makes one.
REQUESTS_MAX = 16
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_UNUSUAL = re.compile(r"[^a-zA-Z0-9_]")

#: (name, labels, value); a name that ends in _total only grows.
Figure = tuple[str, Mapping[str, str], float]


def process_figures() -> dict[str, float]:
    """Of this process, as the kernel has them."""
    with open("/proc/self/statm") as pages:
        resident_pages = int(pages.read().split()[1])
    return {
        "resident_bytes": resident_pages * os.sysconf("SC_PAGE_SIZE"),
        "descriptors_open": len(os.listdir("/proc/self/fd")),
    }


def metrics_text(figures: list[Figure]) -> str:
    """The text format: figures of one name stand together."""
    by_name: dict[str, list[str]] = {}
    for name, labels, value in figures:
        name = "viewtide_" + _UNUSUAL.sub("_", name)
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        by_name.setdefault(name, []).append(f"{name}{{{shown}}} {_number(value)}")
    lines = []
    for name, values in by_name.items():
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += values
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isfinite(value) and value == int(value):
        return str(int(value))
    return repr(float(value))


class MetricsServer:
    """`figures` and `why_not_ready` ("" if it is) are asked from its threads."""

    def __init__(self, listen: str, figures: Callable[[], list[Figure]], why_not_ready: Callable[[], str]) -> None:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit():
            raise InterfaceError(f"metrics is {listen!r}", hint="host:port, for example 127.0.0.1:9401")
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_S_MAX

            def do_GET(self) -> None:
                status, kind, body = server._answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scrapers ask every few seconds: not worth a line."""

        self._figures = figures
        self._why_not_ready = why_not_ready
        try:
            self._server = _Server((host.strip("[]"), int(port)), Handler)
        except (OSError, OverflowError) as error:
            raise InterfaceError(f"metrics cannot be served at {listen}: {error}") from error
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        if path == "/metrics":
            return 200, TEXT_TYPE, metrics_text(self._figures()).encode()
        if path == "/healthz":
            return 200, "text/plain", b"ok\n"
        if path == "/readyz":
            reason = self._why_not_ready()
            return (503 if reason else 200), "text/plain", (reason or "ok").encode() + b"\n"
        return 404, "text/plain", b"/metrics, /healthz or /readyz\n"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._room = threading.BoundedSemaphore(REQUESTS_MAX)
        super().__init__(address, handler)

    def process_request(self, request: object, client_address: object) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]
            return
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._room.release()
