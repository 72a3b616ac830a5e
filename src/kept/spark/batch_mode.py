"""Batch mode around a micro-batch: rows are put aside by the tasks, and moved by the driver, all at once.

1. A batch that is recorded, with the same offsets, is not written again (rule 4). With state it is still computed: the
   state in the checkpoint has to go along, and comes out the same from the same rows.
2. Tasks put rows aside. Spark computes the batch once, here, whole (rule 10).
3. After Spark accepted every task and the source is still the same: rows, the batch's record and progress move, in the
   guarantee's order.
A crash before 3 leaves rows that nobody asks for, and the batch is computed again; after 3, see 1.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kept.consumer.dead_letters import DeadLetter
from kept.errors import OutcomeUnknown, TransactionAborted, TryAgain
from kept.progress import Accept, Batch, Owner, Progress, Range, Source, Stop, Verdict, check_batch, trust
from kept.spark.dead_letters import Unreadable
from kept.spark.plans import Planned, planned_whole
from kept.spark.sinks import Assignment, Carried, DriverSink, InHand, Part
from kept.spark.staging import REPORT, Staged, StageTask, StagingLost, accounted
from kept.spark.tasks import PAUSE, Limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("kept.spark")


class BatchMode:
    """The whole micro-batch at once. Every partition takes part in every batch: those without new rows only stay."""

    def __init__(
        self, sink: DriverSink, limits: Limits, unreadable: Unreadable | None = None, *, stateful: bool
    ) -> None:
        self.stateful = stateful
        self._sink = sink
        self._limits = limits
        self._unreadable = unreadable
        self._told_of = -1

    def planned(self, query: StreamingQuery) -> Sequence[Planned] | None:
        """With state, a batch without new rows has a meaning: windows that have closed come out."""
        self.ended(query)
        plan = planned_whole(query)
        return plan if plan or self.stateful else None

    def ended(self, query: StreamingQuery) -> None:
        """Of the batch before: rows that came later than the watermark allows are dropped by Spark, and told here."""
        progress = query.lastProgress if self.stateful else None
        if progress is None or progress["batchId"] <= self._told_of:
            return
        self._told_of = progress["batchId"]
        late = sum(each["numRowsDroppedByWatermark"] for each in progress["stateOperators"])
        if late:
            log.warning("batch %d: %d rows were later than the watermark, and left out", self._told_of, late)

    def ranges(self, plan: Sequence[Planned], recorded: Mapping[Part, Progress]) -> dict[Part, Planned]:
        given = {(each.topic, each.partition): each for each in plan}
        return {part: given.get(part) or _nothing(part, each) for part, each in recorded.items()}

    def check(self, wanted: Range, recorded: Progress, source: Source, owner: Owner) -> Accept | Stop:  # noqa: ARG002
        """Whether the batch fits progress is asked of all its ranges together."""
        return trust(recorded, source, owner)

    def carry(self, given: InHand) -> Carried:
        batch, parts = given.batch, list(given.assignments.values())
        verdict = check_batch(batch, self._sink.last_batch() if batch.stateful else None, given.progress)
        if isinstance(verdict, Stop):
            raise verdict.error()
        if verdict is Verdict.SKIP:
            self._only_compute(given.frame, batch)
            return Carried({}, 0)
        letters = [] if self._unreadable is None else self._unreadable.letters(batch.ranges)
        task = StageTask(self._sink.staging(), self._limits)
        staged = accounted(given.frame.mapInArrow(task, REPORT).collect())
        given.look_again()
        recorded = self._moved(batch, parts, staged, letters)
        return Carried(recorded, sum(each.rows for each in staged), buried=len(letters))

    def _only_compute(self, frame: DataFrame, batch: Batch) -> None:
        """The state goes along; nothing is written."""
        log.info("batch %d is recorded already: it is computed for its state only, or left out", batch.batch_id)
        if batch.stateful:
            frame.write.format("noop").mode("overwrite").save()

    def _moved(
        self, batch: Batch, parts: Sequence[Assignment], staged: Sequence[Staged], letters: Sequence[DeadLetter]
    ) -> Mapping[Part, Progress]:
        """A store that is away for a while is tried again: what got through after all is recorded, and not repeated."""
        deadline = time.monotonic() + self._limits.patience
        while True:
            try:
                return self._sink.move(batch, parts, staged, letters)
            except StagingLost:
                raise
            except (TryAgain, OutcomeUnknown, TransactionAborted):
                if time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE * random.uniform(0.5, 1.5))  # noqa: S311 - not a secret


def _nothing(part: Part, recorded: Progress) -> Planned:
    return Planned(*part, recorded.position.next_offset, recorded.position.next_offset)
