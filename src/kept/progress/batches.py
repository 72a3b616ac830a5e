"""Whether a whole batch was recorded before, and whether its staged rows are all there: pure decisions.

Two kinds of plans differ in what a checkpoint is to them. One that keeps no state needs progress only: it may begin
anew wherever progress stands. One with state needs the very checkpoint that its recorded batches were computed with.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from kept.errors import ProgressMoved
from kept.progress.positions import Range, Stop


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What a sink keeps of the last batch: its numbers, a digest of its offsets, and whether its plan had state."""

    query_id: str
    batch_id: int
    digest: str
    stateful: bool = True


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: its numbers come back for other rows after a restored checkpoint, its ranges tell."""

    query_id: str
    batch_id: int
    ranges: tuple[Range, ...]
    stateful: bool = True

    @property
    def record(self) -> BatchRecord:
        """Ranges count without their leader epochs: an election between two attempts changes no row."""
        offsets = sorted((each.topic, each.partition, each.start, each.end) for each in self.ranges)
        digest = hashlib.sha256(repr(offsets).encode()).hexdigest()
        return BatchRecord(self.query_id, self.batch_id, digest, self.stateful)


class Verdict(Enum):
    """What to do with a batch that is in order."""

    WRITE = "it is new"
    SKIP = "it is recorded, with the same offsets"


def check_batch(batch: Batch, last: BatchRecord | None, progress: Mapping[tuple[str, int], int]) -> Verdict | Stop:
    """Rule 4: skip only what is done; write only what begins where progress stands; else stop."""
    return _check_stateful(batch, last, progress) if batch.stateful else _check_stateless(batch, progress)


def _check_stateful(batch: Batch, last: BatchRecord | None, progress: Mapping[tuple[str, int], int]) -> Verdict | Stop:
    """Skipped only when all are equal; written only as the very next one, or as the first of all."""
    if last is not None and not last.stateful:
        last = None
    if batch.record == last and _is_done(batch, progress):
        return Verdict.SKIP
    expected = (batch.query_id, 0) if last is None else (last.query_id, last.batch_id + 1)
    if (batch.query_id, batch.batch_id) == expected and _starts_there(batch, progress):
        return Verdict.WRITE
    before = "none" if last is None else f"batch {last.batch_id} of query {last.query_id}"
    return Stop(
        ProgressMoved,
        f"batch {batch.batch_id} of query {batch.query_id} does not follow what is recorded ({before}), or has other "
        "offsets: its checkpoint was restored, copied or deleted, or the sink was, and the state in the one does not "
        "fit the progress in the other",
        "restore the checkpoint and the sink of the same time; or start anew under another name, into another table "
        "or topic, which computes the state from the beginning",
    )


def _check_stateless(batch: Batch, progress: Mapping[tuple[str, int], int]) -> Verdict | Stop:
    """Rows below progress are done; a batch that is only partly done cannot be taken apart."""
    if _starts_there(batch, progress):
        return Verdict.WRITE
    if _is_done(batch, progress):
        return Verdict.SKIP
    return Stop(
        ProgressMoved,
        f"batch {batch.batch_id} of query {batch.query_id} neither begins where progress stands nor is it done: its "
        "checkpoint, or the sink, was restored from a backup",
        "run it without this checkpoint: the plan keeps no state, and goes on from the progress in the sink",
    )


def check_move(batch: Batch, last: BatchRecord | None, progress: Mapping[tuple[str, int], int]) -> Verdict | Stop:
    """Behind the fence: was it moved by a try before this one, of which nobody has told how it ended?

    Its record and progress were written together, so only both of them say that it was. A record alone is left of what
    a person has moved progress back over, to have it read again: without state those rows are written again.
    """
    recorded = batch.record == last
    if recorded and _is_done(batch, progress):
        return Verdict.SKIP
    if _starts_there(batch, progress) and not (recorded and batch.stateful):
        return Verdict.WRITE
    return Stop(
        ProgressMoved,
        f"batch {batch.batch_id} of query {batch.query_id} is {'' if recorded else 'not '}recorded, and progress is "
        f"not where it {'ends' if recorded else 'begins'}: somebody else has moved it",
        "find who else writes the progress of this pipeline, then start it again",
    )


def _starts_there(batch: Batch, progress: Mapping[tuple[str, int], int]) -> bool:
    return all(progress.get((each.topic, each.partition), each.start) == each.start for each in batch.ranges)


def _is_done(batch: Batch, progress: Mapping[tuple[str, int], int]) -> bool:
    return all(each.end <= progress.get((each.topic, each.partition), each.start) for each in batch.ranges)


Name = TypeVar("Name", bound=Hashable)


def staging_is_whole(promised: Mapping[Name, int], found: Mapping[Name, int]) -> bool:
    """Rule 9: every staged set must still be there, whole, or nothing is merged and the batch runs again.

    `promised` is what the tasks returned: the rows of each set they staged. `found` counts the rows that are there
    now; sets that nobody promised (an abandoned attempt's) do not count.
    """
    counted = Counter({name: rows for name, rows in found.items() if name in promised})
    return counted == Counter(promised)
