"""Fixtures of the property tests."""

from tests.postgres import postgres

__all__ = ["postgres"]
