"""How far a group is behind: pure decisions about positions and the logs they point into.

The lag that counts is the number of records that a read_committed reader would still get. Offsets only bound it
from above: the marker that ends a transaction takes one, aborted records take one each, and compaction leaves
holes. So the records are counted as far as that is affordable, and what was not looked at is an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Place:
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True)
class Bounds:
    """Where a log begins, up to where read_committed readers may read, and where it ends."""

    start: int
    stable: int
    end: int


@dataclass(frozen=True)
class Position:
    """What a group has committed for a partition; `moving`: an open transaction carries another position."""

    place: Place
    offset: int | None
    metadata: str = ""
    moving: bool = False


@dataclass(frozen=True)
class Tally:
    """How many records were counted, and the first offset that was not looked at."""

    records: int
    reached: int


@dataclass(frozen=True)
class Backlog:
    """One partition of a group: its position, its log (None: the topic is gone) and what is left to read."""

    position: Position
    bounds: Bounds | None
    tally: Tally | None

    @property
    def exact(self) -> bool:
        """Whether every record was counted, rather than bounded by offsets."""
        return self.bounds is not None and self.tally is not None and self.tally.reached >= self.bounds.stable

    @property
    def lag(self) -> int | None:
        """The records left for a read_committed reader, at most; None when nobody can say."""
        if self.bounds is None or self.tally is None:
            return None
        return self.tally.records + max(0, self.bounds.stable - self.tally.reached)

    @property
    def held_back_at(self) -> int | None:
        """Where the first open transaction begins: no read_committed reader gets past it."""
        if self.bounds is None or self.bounds.stable >= self.bounds.end:
            return None
        return self.bounds.stable

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about this partition, in words."""
        return tuple(_notes(self))


def _notes(backlog: Backlog) -> Iterable[str]:
    position, bounds = backlog.position, backlog.bounds
    if bounds is None:
        yield "the topic or the partition is not there any more"
        return
    if position.offset is None:
        yield "no committed position: a reader begins where its own setting says"
    elif position.offset < bounds.start:
        yield (
            f"the committed position {position.offset} is below the log's start {bounds.start}: "
            "what lay between was deleted before it was read"
        )
    elif position.offset > bounds.end:
        yield (
            f"the committed position {position.offset} is above the log's end {bounds.end}: "
            "the topic was made anew or cut short"
        )
    if position.moving:
        yield "an open transaction carries another position for it"
    if backlog.held_back_at is not None:
        more = bounds.end - bounds.stable
        yield (
            f"held back by an open transaction at offset {bounds.stable}: up to {more} more may follow when it ends; "
            f"`kept transactions {position.place.topic}` shows whose it is"
        )


def next_to_read(position: Position, bounds: Bounds) -> int | None:
    """Where a reader of the group goes on; None when it has no position that the log still bears out."""
    if position.offset is None or position.offset > bounds.end:
        return None
    return max(position.offset, bounds.start)


def not_yet_counted(position: Position, bounds: Bounds | None) -> Backlog:
    """What offsets alone say."""
    following = None if bounds is None else next_to_read(position, bounds)
    return Backlog(position, bounds, None if following is None else Tally(0, following))


def affordable(distances: Mapping[Place, int], budget: int) -> set[Place]:
    """The partitions whose records can be counted within the budget of offsets, the cheapest first."""
    chosen = set()
    for place in sorted(distances, key=lambda place: (distances[place], place)):
        budget -= distances[place]
        if budget < 0:
            break
        chosen.add(place)
    return chosen


def spans(backlogs: Iterable[Backlog], budget: int) -> dict[Place, tuple[int, int]]:
    """What is to be read, for each partition from where to where, so that as many as possible are exact."""
    wanted = {
        each.position.place: (each.tally.reached, each.bounds.stable)
        for each in backlogs
        if each.bounds is not None and each.tally is not None and not each.exact
    }
    chosen = affordable({place: stable - start for place, (start, stable) in wanted.items()}, budget)
    return {place: span for place, span in wanted.items() if place in chosen}
