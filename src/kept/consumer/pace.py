"""How many records are done in one transaction: a value that learns from how long the last ones took. No I/O.

A member that is at work does not hear its group. A slow effect therefore gets few records at a time, so that the group
is not kept waiting, a member that dies leaves little to do again, and max.poll.interval.ms is far away.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, islice

from kept.consumer.records import Record

MOST = 10_000
MOST_BYTES = 16 * 1024 * 1024
FIRST = 16
"""Even an effect that takes ten seconds a record is back within max.poll.interval.ms."""
SECONDS = 2.0
STEP = 4


class Pace:
    """`most` is how many records to do next."""

    def __init__(self) -> None:
        self.most = FIRST

    def took(self, count: int, seconds: float, *, done: bool) -> None:
        """So many were tried for so many seconds; what failed at once says nothing about how long the whole takes."""
        enough = int(count * SECONDS / max(seconds, 0.001))
        if seconds > SECONDS:
            self.most = max(1, min(self.most, enough))
        elif done and count >= self.most:
            self.most = max(1, min(MOST, enough, self.most * STEP))

    def share(self, records: Sequence[Record]) -> int:
        """How many of these to do next, from the first on: at least one, however large it is."""
        most = min(self.most, len(records))
        sizes = [len(record.value or b"") for record in islice(records, most)]
        if sum(sizes) <= MOST_BYTES:
            return most
        return max(1, sum(1 for so_far in accumulate(sizes) if so_far <= MOST_BYTES))
