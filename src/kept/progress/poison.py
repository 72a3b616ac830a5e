"""Finding the one record that can never be written, by proof and not by guess: pure, as a generator."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import Enum
from typing import TypeVar

Row = TypeVar("Row")


class Fate(Enum):
    """What became of an attempt to write some rows."""

    WRITTEN = "written"
    REFUSED = "refused because of what is in it"
    RETRY = "not now"
    STOP = "a person must look"


_BY_CLASS = {
    "22": Fate.REFUSED,  # data exception
    "23": Fate.REFUSED,  # integrity constraint
    "08": Fate.RETRY,  # connection
    "40": Fate.RETRY,  # serialization, deadlock
    "53": Fate.RETRY,  # out of resources
    "57": Fate.RETRY,  # shut down, cancelled
    "58": Fate.RETRY,  # disk, operating system
}


def fate_of_sqlstate(sqlstate: str) -> Fate:
    """Rule 14: only an error about the data can make a record poison; an unknown one stops."""
    return _BY_CLASS.get(sqlstate[:2], Fate.STOP)


def isolate(rows: Sequence[Row]) -> Generator[Sequence[Row], Fate, list[Row]]:
    """Yield rows to write together, be sent their fate, halve what is refused; return the poison.

    Rows come in their order, each is written once, and only a row refused alone is poison. RETRY
    yields the same rows again. STOP is the shell's to raise, not to send.
    """
    poison: list[Row] = []
    waiting: list[Sequence[Row]] = [rows] if rows else []
    while waiting:
        some = waiting.pop()
        fate = yield some
        if fate is Fate.RETRY:
            waiting.append(some)
        elif fate is Fate.REFUSED and len(some) == 1:
            poison.extend(some)
        elif fate is Fate.REFUSED:
            middle = len(some) // 2
            waiting += [some[middle:], some[:middle]]
    return poison
