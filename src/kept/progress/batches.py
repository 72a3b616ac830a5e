"""Whether a whole batch was recorded before, and whether its staged rows are all there: pure decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from kept.errors import ProgressMoved
from kept.progress.positions import Range, Stop


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: its numbers come back for other rows after a restored checkpoint, its ranges tell."""

    query_id: str
    batch_id: int
    ranges: tuple[Range, ...]


class Verdict(Enum):
    """What to do with a batch that is in order."""

    WRITE = "it is new"
    SKIP = "it is recorded, with the same offsets"


def check_batch(batch: Batch, last: Batch | None) -> Verdict | Stop:
    """Rule 4: skip only what is equal in everything; write only the very next; else stop."""
    if last is None:
        return Verdict.WRITE
    if batch == last:
        return Verdict.SKIP
    if (batch.query_id, batch.batch_id) == (last.query_id, last.batch_id + 1) and _follows(batch, last):
        return Verdict.WRITE
    return Stop(
        ProgressMoved,
        f"batch {batch.batch_id} of query {batch.query_id} does not follow the recorded "
        f"batch {last.batch_id} of query {last.query_id}, or has other offsets",
        "a checkpoint was restored, copied or deleted: compare it with the sink before going on",
    )


def _follows(batch: Batch, last: Batch) -> bool:
    ends = {(was.topic, was.partition): was.end for was in last.ranges}
    return all(ends.get((now.topic, now.partition), now.start) == now.start for now in batch.ranges)


Name = TypeVar("Name", bound=Hashable)


def staging_is_whole(promised: Mapping[Name, int], found: Sequence[Name]) -> bool:
    """Rule 9: every staged set must still be there, whole, or nothing is merged and the batch runs again.

    `promised` is what the tasks returned: the rows of each set they staged. `found` names the set of each
    row that is there now; rows of sets that nobody promised (an abandoned attempt's) do not count.
    """
    counted = Counter(name for name in found if name in promised)
    return counted == Counter(promised)
