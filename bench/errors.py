"""What stops a bench. Not viewtide's own errors: the benches of the peers run without viewtide."""

from __future__ import annotations


class BenchError(Exception):
    """The bench cannot run here or broke off: nothing was proven. The message says what to do."""

    exit_code = 2


class Violation(BenchError):
    """A system gave a wrong answer: figures of a wrong system are worth nothing, so the whole bench fails."""

    exit_code = 1
