"""Plain sockets for addresses: how they are made, and what TCP is told about them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from ..changetables.errors import InterfaceError, OperationalError
from .addresses import Address

#: A machine that says nothing is taken for gone after 8 s: TCP asks, also while this process is busy, and gives up what
#: is not confirmed. Not ZeroMQ: where a connection breaks while its queue here is full, as when this process was
#: paused, its next heartbeat, or one of the peer's that lies in the queue, ends the process with an assertion (libzmq
#: 4.3.5, its issues 3937, 4364 and 4767). Whether the process behind an address still does anything is for those to ask
#: who wait for its answer.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 2, 2, 3
UNCONFIRMED_MS_MAX = 8_000
#: Who may use a socket file: its owner.
FILE_MODE = 0o600
_EVERYWHERE = "*"


def tune(connection: socket.socket) -> None:
    """A connection of TCP: small messages leave at once, and a machine that is gone is noticed."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNCONFIRMED_MS_MAX)


def port_of(address: Address) -> int:
    """To connect to."""
    port = address.text.rpartition(":")[2]
    if port == _EVERYWHERE:
        raise InterfaceError(f"{address.text!r} is no address to connect to", hint="name the port")
    return int(port)


def connecting(address: Address) -> socket.socket:
    """A connection that is being made, without waiting for it; an OSError if it cannot be. A host's name is resolved,
    which may take a while: only those have one who talk to other machines without keys."""
    if address.path:
        family: int = socket.AF_UNIX
        where: object = address.path
    else:
        family, where = _resolved(address.host, port_of(address), 0)
    made = socket.socket(family)
    try:
        made.setblocking(False)
        tune(made)
        failed = made.connect_ex(where)  # type: ignore[arg-type]
        if failed not in (0, errno.EINPROGRESS):
            raise OSError(failed, os.strerror(failed))
    except BaseException:
        made.close()
        raise
    return made


def listening(address: Address, backlog: int) -> tuple[socket.socket, str]:
    """Who accepts connections, without waiting, and by which address it is reached."""
    made = _bound_file(address.path) if address.path else _bound_port(address)
    try:
        made.setblocking(False)
        made.listen(backlog)
    except BaseException:
        made.close()
        raise
    if address.path:
        return made, address.text
    host, port = made.getsockname()[:2]
    return made, f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def cannot_listen(address: Address, number: int | None, why: str) -> OperationalError:
    """What a hub raises, whichever library has refused."""
    return OperationalError(f"cannot listen on {address.text}: {why}", hint=_listen_elsewhere(address, number))


def _listen_elsewhere(address: Address, number: int | None) -> str:
    if address.path:
        if number == errno.ENOENT:
            return "its directory is missing: make it, or choose another `listen`"
        return "something else has this path, or you may not make files there: choose another `listen`"
    if number == errno.EADDRINUSE:
        return "another process has the port: choose another `listen`; port 0 is any that is free"
    return "choose another `listen`, with an address of this machine and a port that you may use"


def _bound_file(path: str) -> socket.socket:
    """What somebody who was killed has left behind is replaced."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(path)
        # Before it listens: until then nobody gets in.
        os.chmod(path, FILE_MODE)
    except BaseException:
        made.close()
        raise
    return made


def _bound_port(address: Address) -> socket.socket:
    text = address.text.rpartition(":")[2]
    port = 0 if text == _EVERYWHERE else int(text)
    family, where = _resolved("::" if address.host == _EVERYWHERE else address.host, port, socket.AI_PASSIVE)
    try:
        made = socket.socket(family)
    except OSError:
        if address.host != _EVERYWHERE:
            raise
        # A machine without IPv6.
        family, where = _resolved("0.0.0.0", port, socket.AI_PASSIVE)
        made = socket.socket(family)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(where)  # type: ignore[arg-type]
    except BaseException:
        made.close()
        raise
    return made


def _resolved(host: str, port: int, flags: int) -> tuple[int, object]:
    """Of a name that has several, an IPv4 address: most listen there."""
    if host == "localhost":
        host = "127.0.0.1"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError:  # a label that is too long, for instance
        raise OSError(errno.EINVAL, f"{host} is no name of a machine") from None
    chosen = next((each for each in found if each[0] == socket.AF_INET), found[0])
    return chosen[0], chosen[4]
