"""Which of the frames that a rule names it takes: each pattern is an endless row of yes and no."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, cycle, repeat

from kept.errors import FixConfiguration


@dataclass(frozen=True)
class Always:
    """Every one."""

    def pattern(self) -> Iterator[bool]:
        return repeat(True)


@dataclass(frozen=True)
class Nth:
    """The n-th only; the first is 1."""

    n: int

    def __post_init__(self) -> None:
        _counts_from_one("Nth", self.n)

    def pattern(self) -> Iterator[bool]:
        return chain(repeat(False, self.n - 1), [True], repeat(False))


@dataclass(frozen=True)
class EveryKth:
    """The k-th, the 2k-th and so on."""

    k: int

    def __post_init__(self) -> None:
        _counts_from_one("EveryKth", self.k)

    def pattern(self) -> Iterator[bool]:
        return cycle([*repeat(False, self.k - 1), True])


@dataclass(frozen=True)
class Chance:
    """Each with this probability; the same seed gives the same row."""

    probability: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise FixConfiguration(f"Chance({self.probability}) is no probability", way_out="give one from 0 to 1")

    def pattern(self) -> Iterator[bool]:
        source = random.Random(self.seed)  # noqa: S311 - to be repeatable is the point
        while True:
            yield source.random() < self.probability


Occurrence = Always | Nth | EveryKth | Chance


def _counts_from_one(name: str, number: int) -> None:
    if number < 1:
        raise FixConfiguration(f"{name}({number}) never comes", way_out="the first is number 1")
