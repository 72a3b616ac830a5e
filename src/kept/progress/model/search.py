"""Looking for a schedule that breaks a world: at random by seed, or every one up to a number of choices."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kept.progress.model.world import Outcome, World

MakeWorld: TypeAlias = Callable[["Seeded | Listed"], World]

FIRST_SEED = 1


class Seeded:
    """Luck from a seed: the same seed is the same schedule."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random  # noqa: S311 - schedules, not secrets

    def pick(self, options: int) -> int:
        return int(self._random() * options)

    def rarely(self) -> bool:
        return self._random() < 0.15


@dataclass
class Listed:
    """Luck from a list of choices; beyond its end the first option is taken, and written down."""

    choices: list[int] = field(default_factory=list)
    options: list[int] = field(default_factory=list)

    def pick(self, options: int) -> int:
        at = len(self.options)
        self.options.append(options)
        if at == len(self.choices):
            self.choices.append(0)
        return self.choices[at]

    def rarely(self) -> bool:
        return bool(self.pick(2))


@dataclass(frozen=True)
class Played:
    """A schedule as it went, to be read and to be run again."""

    seed: int | tuple[int, ...]
    outcome: Outcome
    schedule: tuple[str, ...]

    def __str__(self) -> str:
        lines = list(self.schedule)
        if len(lines) > 100:
            lines[100:] = [f"... and {len(lines) - 100} steps more"]
        return "\n".join([f"seed {self.seed}: {self.outcome}", *(f"  {line}" for line in lines)])


@dataclass(frozen=True)
class Result:
    """How many schedules ran, and the first that harmed."""

    schedules: int
    found: Played | None
    stops: int

    def __str__(self) -> str:
        head = f"{self.schedules} schedules, {self.stops} stopped loudly"
        return head if self.found is None else f"{head}\n{self.found}"


def replay(make_world: MakeWorld, seed: int | tuple[int, ...]) -> Played:
    """Run one schedule again."""
    return _play(make_world, Seeded(seed) if isinstance(seed, int) else Listed(list(seed)), seed)


def search(
    make_world: MakeWorld,
    schedules: int,
    *,
    allowed: frozenset[str] = frozenset(),
    first_seed: int = FIRST_SEED,
) -> Result:
    """Try that many seeds; end at the first that shows an anomaly that is not allowed."""
    seeds = range(first_seed, first_seed + schedules)
    return _first_harm((_play(make_world, Seeded(seed), seed) for seed in seeds), allowed)


def exhaust(make_world: MakeWorld, limit: int, *, allowed: frozenset[str] = frozenset()) -> Result:
    """Try EVERY schedule of a world small enough for that; more than `limit` of them is an error."""
    return _first_harm(_every_schedule(make_world, limit), allowed)


def _play(make_world: MakeWorld, luck: Seeded | Listed, seed: int | tuple[int, ...]) -> Played:
    world = make_world(luck)
    world.disturb()
    outcome = world.finish()
    return Played(seed, outcome, tuple(world.trace))


def _first_harm(tries: Iterator[Played], allowed: frozenset[str]) -> Result:
    count, stops = 0, 0
    for tried in tries:
        count += 1
        stops += bool(tried.outcome.stopped)
        if not tried.outcome.anomalies <= allowed:
            return Result(count, tried, stops)
    return Result(count, None, stops)


def _every_schedule(make_world: MakeWorld, limit: int) -> Iterator[Played]:
    """Count through the tree of choices like an odometer: the last one that can still turn, turns."""
    luck = Listed()
    for _ in range(limit):
        played = _play(make_world, luck, ())
        yield replace(played, seed=tuple(luck.choices))
        turned = luck.choices
        while turned and turned[-1] + 1 == luck.options[len(turned) - 1]:
            turned.pop()
        if not turned:
            return
        luck = Listed([*turned[:-1], turned[-1] + 1])
    raise OverflowError(f"more than {limit} schedules: make the world smaller")
