"""Addresses that processes listen on and connect to: tcp://host:port, IPv6 in brackets, and ipc://path."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple

from ..changetables.errors import InterfaceError

#: sun_path of a UNIX socket has 108 bytes, the last of them is 0.
IPC_PATH_BYTES_MAX = 107
_EVERYWHERE = "*"
#: What to do where keys are needed, unless somebody knows better what his user can do.
KEYS_HINT = "make keys with `viewtide keys new`"


class Address(NamedTuple):
    """`host` is without brackets; of an ipc address it is empty, and `path` is set."""

    text: str
    host: str
    path: str

    @property
    def stays_here(self) -> bool:
        """Nobody outside this machine can listen in."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def wants_ipv6(self) -> bool:
        """ZeroMQ tries one address of a name only: an IPv4 one where there is any, because most listen there."""
        if self.path or self.host == "localhost":
            return False
        if self.host == _EVERYWHERE:
            return True
        try:
            return ipaddress.ip_address(self.host).version == 6
        except ValueError:
            return not _has_ipv4(self.host)


class Refusal(NamedTuple):
    """Why somebody at an address did not let this process in, for people."""

    message: str
    hint: str


def check_plaintext(address: Address, hint: str) -> None:
    """Without keys, nobody outside this machine is listened to. `hint`: how keys are given here, and what else there
    is."""
    if not address.stays_here:
        raise InterfaceError(
            f"without keys, {address.text} would be open to everybody on the network",
            hint=hint,
        )


def check_plaintext_to(address: Address, hint: str) -> None:
    """Without keys, nobody outside this machine is connected to."""
    if not address.stays_here:
        raise InterfaceError(
            f"{address.text} is on another machine, and without keys its connections are neither secret nor certain",
            hint=hint,
        )


def parse_address(text: str) -> Address:
    scheme, found, rest = text.partition("://")
    if scheme == "ipc" and rest and not rest.startswith(("@", "*")):
        size = len(rest.encode())
        if size > IPC_PATH_BYTES_MAX:
            raise InterfaceError(
                f"the path of {text!r} has {size} bytes, and a socket's has at most {IPC_PATH_BYTES_MAX}",
                hint="use a shorter or a relative path",
            )
        return Address(text, "", rest)
    host, colon, port = rest.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    right = found and scheme == "tcp" and host and colon and (bracketed or ":" not in host)
    if not right or not _is_port(port):
        raise InterfaceError(f"{text!r} is no address", hint="write tcp://host:port, tcp://[::1]:port or ipc://path")
    return Address(text, host, "")


def _is_port(text: str) -> bool:
    return text == _EVERYWHERE or (text.isascii() and text.isdigit() and int(text) <= 65_535)


def _has_ipv4(name: str) -> bool:
    """Asks the resolver, as ZeroMQ will. A name that is not known now may be IPv4 when it is."""
    try:
        families = {family for family, *_ in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return True
    return socket.AF_INET in families
