"""What a run must show. A checker sees the events it asked for, and is asked at the end."""

from __future__ import annotations

from collections import Counter

from .trace import Event

#: So many of the last events of what a violation concerns are printed with it.
STORY_LINES_MAX = 40


class Violation(Exception):
    """Something happened that must not. `concerns` are words (processes, keys, tx_ids) that pick the events to show."""

    def __init__(self, checker: str, message: str, *concerns: object) -> None:
        super().__init__(f"{checker}: {message}")
        self.checker = checker
        self.concerns = tuple(str(concern) for concern in concerns)
        #: Filled in by the runner.
        self.story: list[str] = []


class Checker:
    """Subclass this. `kinds` are the events (`Event.what`) that `observe` gets: those of the world, and notes."""

    kinds: tuple[str, ...] = ()

    def __init__(self) -> None:
        #: What went through this run, for the minimum of traffic and the line of figures.
        self.traffic: Counter[str] = Counter()

    @property
    def name(self) -> str:
        return type(self).__name__

    def observe(self, event: Event) -> None:
        """May raise `Violation`, as every method here."""

    def converged(self) -> str:
        """Asked again and again after all is healed: "" if there is nothing left to wait for, else what there is."""
        return ""

    def finish(self) -> None:
        """After convergence: the last word."""

    def violation(self, message: str, *concerns: object) -> Violation:
        return Violation(self.name, message, *concerns)
