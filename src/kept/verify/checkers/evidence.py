"""What a checker hands over: which anomaly, of what, and where in Kafka or in a table it can be looked up."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kept.verify.history.events import Found


class Anomaly(str, Enum):
    """What can be wrong with what was found."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    PHANTOM = "phantom"
    TORN = "torn"
    REORDERED = "reordered"
    STALLED = "stalled"
    SILENT = "silent"


class Place(NamedTuple):
    """Where a record stands."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class Evidence(NamedTuple):
    """One anomaly: `of` is a value, a transaction or a stretch of time; `what` is a sentence for a person."""

    anomaly: Anomaly
    of: str
    what: str
    places: tuple[Place, ...] = ()


def place_of(found: Found) -> Place:
    return Place(found.topic, found.partition, found.offset)
