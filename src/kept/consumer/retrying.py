"""Trying again before a record is given up: a value that says how often and how long, and the loop around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from kept.errors import FixConfiguration, KeptError

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Retry:
    """How often an effect that raised is tried again, and how long to wait before each time."""

    times: int = 3
    first: float = 0.2
    longest: float = 30.0

    def __post_init__(self) -> None:
        if self.times < 0 or self.first < 0 or self.longest < self.first:
            raise FixConfiguration(f"{self} makes no sense", way_out="give times >= 0 and 0 <= first <= longest")

    def delays(self) -> Iterator[float]:
        """Twice as long each time, up to the longest."""
        for number in range(self.times):
            yield min(self.longest, self.first * 2**number)


@dataclass(frozen=True)
class Giving:
    """How a record that cannot be done is given up: after which tries, and to which dead-letter topic, if any."""

    retry: Retry = field(default_factory=Retry)
    dead_letters: str | None = None


class NoLongerOurs(Exception):
    """The record's partition went to another member while we waited."""


def insist(attempt: Callable[[], Outcome], failed: Exception, retry: Retry, wait: Callable[[float], bool]) -> Outcome:
    """Try again what has failed, until it works; the last error is raised. `wait` says whether it is still ours.

    Errors of this package are not retried here: they are about delivery, not about the record.
    """
    for delay in retry.delays():
        if not wait(delay):
            raise NoLongerOurs
        try:
            return attempt()
        except KeptError:
            raise
        except Exception as again:  # noqa: BLE001 - whatever the effect raises: it is tried again, and raised at last
            failed = again
    raise failed
