"""What processes send each other: a message from a machine to a machine."""

from __future__ import annotations

from typing import NamedTuple


class Addressed(NamedTuple):
    to: str
    sender: str
    message: object
