"""The socket of an open directory: other processes of its owner reach a running database through it.

    shop.db/socket      somebody connects; the answer is a line with the address of the node, then it is closed

Nothing but a thread that sleeps in `accept` is there until somebody knocks: only then the node is started (`server`),
on a socket in a folder of its own, because the path of a socket must be short. Only the owner of the directory
can connect: the socket has mode 0600, and the kernel says who it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import stat
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .node import Node
    from .server import Server

NAME = "socket"
#: How long a knock waits for its answer; the node is started by the first one.
KNOCK_S_MAX = 10.0
ADDRESS_BYTES_MAX = 512
#: Knocks that wait.
BACKLOG = 16

logger = logging.getLogger("viewtide")


class OpenSocket:
    """Answers knocks for one open database, until it is closed."""

    def __init__(self, node: Node, directory: Path) -> None:
        self._node = node
        self._path = directory / NAME
        self._folder: Path | None = None
        self._server: Server | None = None
        self._served: threading.Thread | None = None
        self._address = ""
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Whoever holds the lock of the directory may take away what a killed process left.
            self._path.unlink(missing_ok=True)
            with _short(self._path) as name:
                self._listening.bind(name)
            self._path.chmod(0o600)
            self._listening.listen(BACKLOG)
        except BaseException:
            self._listening.close()
            raise
        self._thread = threading.Thread(target=self._answer_knocks, name="viewtide-socket", daemon=True)
        self._thread.start()

    def _answer_knocks(self) -> None:
        while True:
            try:
                knock, _ = self._listening.accept()
            except OSError:
                return  # closed
            with knock, contextlib.suppress(OSError):  # who knocks may be gone
                knock.settimeout(KNOCK_S_MAX)
                if _user_of(knock) in (os.geteuid(), 0):
                    knock.sendall(f"{self._serve()}\n".encode())

    def _serve(self) -> str:
        """Where the node listens; empty if it cannot be started."""
        if self._server is None:
            try:
                self._start()
            except Exception:
                logger.exception("%s cannot be served to other processes", self._path.parent)
                return ""
        return self._address

    def _start(self) -> None:
        # Imported here: most databases are used by their own process alone.
        from .database import Database
        from .ltm.transport import Hub
        from .server import Server

        self._folder = Path(tempfile.mkdtemp(prefix="viewtide-"))
        hub = Hub("node", listen=f"ipc://{self._folder}/s")
        server = Server(Database(self._node), hub)
        self._served = threading.Thread(target=server.run, name="viewtide-served", daemon=True)
        self._served.start()
        self._server, self._address = server, hub.address

    def close(self) -> None:
        """Nobody is served any more when it returns."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        self._path.unlink(missing_ok=True)
        if self._server is not None and self._served is not None:
            self._server.stop()
            self._served.join()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def forked(self) -> None:
        """In a forked child: the parent goes on."""
        self._listening.close()


def open_socket(node: Node, directory: Path) -> OpenSocket | None:
    """None where the file system has no sockets, or something else is in its place: the database can be used
    without."""
    path = directory / NAME
    if _is_something_else(path):
        logger.warning(
            "%s is no socket: other processes cannot reach the database until it is moved away, and the database is "
            "opened again",
            path,
        )
        return None
    try:
        return OpenSocket(node, directory)
    except OSError as error:
        logger.info("%s: no socket for other processes: %s", directory, error.strerror)
        return None


def _is_something_else(path: Path) -> bool:
    """Than a socket, which a killed process may have left. A link is followed by nobody here."""
    try:
        return not stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


def running_address(directory: Path) -> str:
    """Where the process that has the directory open serves it; empty if nobody answers."""
    if not (directory / NAME).is_socket():
        return ""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.settimeout(KNOCK_S_MAX)
        try:
            with _short(directory / NAME) as name:
                knock.connect(name)
            answer = b""
            while not answer.endswith(b"\n") and len(answer) < ADDRESS_BYTES_MAX:
                part = knock.recv(ADDRESS_BYTES_MAX)
                if not part:
                    break
                answer += part
        except OSError:
            return ""  # it was killed, or is just closing
    return answer.decode(errors="replace").strip()


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of a file that is short enough for a socket, however long the path of its directory is."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _user_of(knock: socket.socket) -> int:
    """The user of the process that has connected."""
    credentials = knock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)
