"""When a consumer records its progress: small values, one word each.

at least once    Every(seconds)         by the clock; what was done since is done again after a crash
                 AfterEach()            after every record: slow, and repeats one record at most
                 AfterBatch(records)    after so many records, which are also fetched together
                 Asynchronously(...)    by the clock, without waiting; an old commit never replaces a newer one
at most once     AfterBatch(records)    so many records are committed, then handed out: a crash loses these at most
                 AfterEach()            one record is committed, then handed out
                 Asynchronously(...)    the next records are committed while these are handed out; un-read if that fails

At close, and before a partition is given away, progress is recorded synchronously whatever the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kept.errors import FixConfiguration, KeptError

FETCHED_TOGETHER = 500


@dataclass(frozen=True)
class Every:
    """Record progress by the clock, and wait until it is recorded."""

    seconds: float = 1.0

    def __post_init__(self) -> None:
        _positive("seconds", self.seconds)


@dataclass(frozen=True)
class AfterEach:
    """Record progress record by record."""


@dataclass(frozen=True)
class AfterBatch:
    """Record progress after so many records; the larger, the fewer commits and the more may be repeated or lost."""

    records: int = FETCHED_TOGETHER

    def __post_init__(self) -> None:
        _positive("records", self.records)


@dataclass(frozen=True)
class Asynchronously:
    """Record progress by the clock without waiting for it; `on_failure` hears of each commit that failed."""

    seconds: float = 1.0
    on_failure: Callable[[KeptError], object] | None = None

    def __post_init__(self) -> None:
        _positive("seconds", self.seconds)


Policy = Every | AfterEach | AfterBatch | Asynchronously


def together(policy: Policy) -> int:
    """How many records are fetched, and for at-most-once committed, together."""
    match policy:
        case AfterEach():
            return 1
        case AfterBatch(records):
            return records
        case _:
            return FETCHED_TOGETHER


def seconds_between(policy: Policy) -> float:
    """After how many seconds a commit is due, whatever the count."""
    return policy.seconds if isinstance(policy, (Every, Asynchronously)) else math.inf


def records_between(policy: Policy) -> float:
    """After how many records a commit is due, whatever the clock."""
    return math.inf if isinstance(policy, (Every, Asynchronously)) else together(policy)


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise FixConfiguration(f"{name}={value} makes no policy", way_out="give a number above 0")
