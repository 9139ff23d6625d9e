"""The socket of an open directory: other processes of its owner reach a running database through it.

    shop.db/socket              a file that says in which folder its process listens
    /tmp/viewtide-open-.../k    somebody connects; the answer is a line with the address of the node, then it is closed
    /tmp/viewtide-open-.../s    the node, after the first of them

Nothing but a thread that sleeps in `accept` is there until somebody knocks: only then the node is started (`server`).
The folder is short, because the path of a socket must be; and what is in the directory is a file, because who copies
directories knows no sockets. A copy of it does not lead to the process that has the original open: it names the LOCK of
its directory by device and inode, which no other file has as long as that process keeps it open.

Only the owner of the directory can connect: file and folder are closed to others, and the kernel says who it is. What a
file says is believed only if all of that is so, and the process that answers is its owner's.

The folder is locked as long as its process lives. One that a killed process left is removed by the next that opens the
directory; those whose directories are not opened any more, by any process of the same user.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import socket
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .node import Node
    from .server import Server

NAME = "socket"
LOCK = "LOCK"
#: The first line of the file; the next ones are the identity of the LOCK, and the folder.
HEAD = b"viewtide socket 1\n"
#: More than the longest path.
FILE_BYTES_MAX = 8192
#: The sockets in the folder: whom to ask, and the node.
KNOCK, SERVED = "k", "s"
FOLDER_PREFIX = "viewtide-open-"
#: A path of a socket has at most 107 bytes; of these, the folder and a name in it take 25.
FOLDERS_BYTES_MAX = 107 - 25
#: A folder that is younger may be one that is just being made, and not locked yet.
LEFT_S_MIN = 60.0
#: For where the usual folder for such things has a longer path.
SHORT_FOLDERS = "/tmp"  # mkdtemp makes a private one in it
#: It stays the one that was looked at, and is no link.
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: How long a knock waits for its answer; the node is started by the first one.
KNOCK_S_MAX = 10.0
ADDRESS_BYTES_MAX = 512
#: Knocks that wait.
BACKLOG = 16

logger = logging.getLogger("viewtide")

#: Whether this process has looked for what others left: once is enough.
_swept = threading.Event()


class OpenSocket:
    """Answers knocks for one open database, until it is closed."""

    def __init__(self, node: Node, directory: Path) -> None:
        """Whoever holds the lock of the directory may take away what a killed process left."""
        self._node = node
        self._directory = directory.absolute()
        self._server: Server | None = None
        self._served: threading.Thread | None = None
        self._address = ""
        remove_left(self._directory)
        self._folder = _make_folder()
        self._held = os.open(self._folder, FOLDER_FLAGS)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # First of all: a folder that the file names is found again by the next process.
            _write(self._directory, self._folder)
            with _inside(self._folder, os.geteuid()) as inside:
                self._listening.bind(f"{inside}/{KNOCK}")
            self._listening.listen(BACKLOG)
        except BaseException:
            self._listening.close()
            self._remove()
            raise
        self._thread = threading.Thread(target=self._answer_knocks, name="viewtide-socket", daemon=True)
        self._thread.start()

    def _answer_knocks(self) -> None:
        if not _swept.is_set():
            _swept.set()
            _remove_all_left(self._folder.parent)
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
                logger.exception("%s cannot be served to other processes", self._directory)
                return ""
        return self._address

    def _start(self) -> None:
        # Imported here: most databases are used by their own process alone.
        from .database import Database
        from .ltm.transport import Hub
        from .server import Server

        hub = Hub("node", listen=f"ipc://{self._folder}/{SERVED}")
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
        if self._server is not None and self._served is not None:
            self._server.stop()
            self._served.join()
        self._remove()

    def _remove(self) -> None:
        """Also the file, if it is still this one: another directory may be in its place."""
        said = _said(self._directory)
        if said is not None and said.folder == self._folder:
            (self._directory / NAME).unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._held)

    def forked(self) -> None:
        """In a forked child: the parent goes on."""
        self._listening.close()
        os.close(self._held)


def open_socket(node: Node, directory: Path) -> OpenSocket | None:
    """None where the file system has no owners, or something else is in its place: the database can be used
    without."""
    path = directory / NAME
    try:
        if _is_something_else(path):
            logger.warning(
                "%s is no socket: other processes cannot reach the database until it is moved away, and the database "
                "is opened again",
                path,
            )
            return None
        return OpenSocket(node, directory)
    except OSError as error:
        logger.info("%s: no socket for other processes: %s", directory, error.strerror)
        return None


def running_address(directory: Path) -> str:
    """Where the process that has the directory open serves it; empty if nobody answers."""
    said = _said(directory)
    if said is None:
        return ""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.settimeout(KNOCK_S_MAX)
        try:
            with _inside(said.folder, said.user) as inside:
                knock.connect(f"{inside}/{KNOCK}")
            if _user_of(knock) != said.user:
                return ""
            answer = b""
            while not answer.endswith(b"\n") and len(answer) < ADDRESS_BYTES_MAX:
                part = knock.recv(ADDRESS_BYTES_MAX)
                if not part:
                    break
                answer += part
        except OSError:
            return ""  # it was killed, or is just closing
    return answer.decode(errors="replace").strip()


# -- the file


class _Said(NamedTuple):
    """What the file in a directory says, and whose it is."""

    folder: Path
    user: int


def _said(directory: Path) -> _Said | None:
    """None if there is no such file, it is one of another directory, or this user must not go by it."""
    try:
        content, status = _content(directory / NAME)
        head = HEAD + _identity(directory)
    except OSError:
        return None
    if not content.startswith(head) or not content.endswith(b"\n"):
        return None
    if status.st_mode & 0o077 or (os.geteuid() not in (status.st_uid, 0)):
        return None
    return _Said(Path(os.fsdecode(content[len(head) : -1])), status.st_uid)


def _write(directory: Path, folder: Path) -> None:
    path = directory / NAME
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(file, 0o600)
        os.write(file, HEAD + _identity(directory) + os.fsencode(folder) + b"\n")
    finally:
        os.close(file)
    if _said(directory) != (folder, os.geteuid()):
        path.unlink()
        raise OSError(errno.ENOTSUP, "the file system does not keep the owner and the mode of a file")


def _identity(directory: Path) -> bytes:
    status = (directory / LOCK).stat()
    return b"%d %d\n" % (status.st_dev, status.st_ino)


def _content(path: Path) -> tuple[bytes, os.stat_result]:
    """Of a regular file. A link is followed by nobody here, and nobody waits for a pipe."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        return file.read(FILE_BYTES_MAX), status


def _is_something_else(path: Path) -> bool:
    """Than what a killed process may have left: a file, perhaps not written yet; of an earlier version, a socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        return not stat.S_ISSOCK(mode)
    content, _ = _content(path)
    return not content.startswith(HEAD) and content != b""


# -- the folder


def _make_folder() -> Path:
    usual = tempfile.gettempdir()
    parent = usual if len(os.fsencode(usual)) <= FOLDERS_BYTES_MAX else SHORT_FOLDERS
    return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))


@contextlib.contextmanager
def _inside(folder: Path, user: int) -> Iterator[str]:
    """A short name of the folder, which is closed to all but this user."""
    opened = os.open(folder, FOLDER_FLAGS)
    try:
        status = os.fstat(opened)
        if status.st_uid != user or status.st_mode & 0o077:
            raise PermissionError(errno.EACCES, "it is open to others", str(folder))
        yield f"/proc/self/fd/{opened}"
    finally:
        os.close(opened)


def remove_left(directory: Path) -> None:
    """The folder of a process that had this very directory open, and was killed."""
    said = _said(directory)
    if said is not None and said.user == os.geteuid() and said.folder.name.startswith(FOLDER_PREFIX):
        _remove_folder(said.folder)


def _remove_all_left(parent: Path) -> None:
    """Also those whose directories nobody will open again."""
    made_before = time.time() - LEFT_S_MIN
    try:
        names = [name for name in os.listdir(parent) if name.startswith(FOLDER_PREFIX)]
    except OSError as error:
        logger.info("%s cannot be looked through for what killed processes left: %s", parent, error.strerror)
        return
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            status = (parent / name).lstat()
            if status.st_uid == os.geteuid() and status.st_mtime < made_before:
                _remove_folder(parent / name)


def _remove_folder(folder: Path) -> None:
    """If its process is gone. Nothing but its sockets goes, and the folder if it is empty then."""
    try:
        opened = os.open(folder, FOLDER_FLAGS)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.info("%s stays: %s", folder, error.strerror)
        return
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in (KNOCK, SERVED):
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=opened)
        folder.rmdir()
    except BlockingIOError:
        return  # its process lives
    except OSError as error:
        logger.info("%s stays, which a process that was killed has left: %s", folder, error.strerror)
    finally:
        os.close(opened)


def _user_of(knock: socket.socket) -> int:
    """The user of the process at the other end."""
    credentials = knock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)
