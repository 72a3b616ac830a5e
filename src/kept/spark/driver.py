"""The driver's part: births, ownership, and around a micro-batch the checks that no task can make.

1. What each task was given is read from Spark's plan.
2. The source is looked at: after the ends were planned, before a row is read.
3. Ranges are compared with progress; then the mode carries the batch: partition by partition, or as a whole.
4. After Spark accepted every task the source is looked at again.
5. Progress moves over the holes at the end of each range (partition mode), or with all rows at once (batch mode).
Spark's own record of the batch follows: a crash before it repeats the batch, which is then below progress.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kept.consumer import Start
from kept.pipelines.telling import BatchDone, PartitionDone
from kept.progress import Batch, Progress, Range, Stop, trust
from kept.spark.looking import Beginning, Looking
from kept.spark.mirror import Mirror
from kept.spark.partition_mode import PartitionMode
from kept.spark.plans import Planned
from kept.spark.sinks import Assignment, DriverSink, InHand, Part, Way
from kept.spark.tasks import Limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("kept.spark")


@dataclass
class Ran:
    """What a run of a pipeline has done."""

    batches: int = 0
    rows: int = 0
    dropped: int = 0
    buried: int = 0


class Driver:
    """Knows where every partition stands, and moves a pipeline from batch to batch."""

    def __init__(
        self,
        looking: Looking,
        sink: DriverSink,
        mirror: Mirror,
        limits: Limits,
        on_batch: Callable[[BatchDone], None] | None = None,
    ) -> None:
        self._looking = looking
        self._sink = sink
        self._mirror = mirror
        self._on_batch = on_batch
        self._way: Way = PartitionMode(sink, limits)
        self._parts: list[Part] = []
        self._recorded: dict[Part, Progress] = {}
        self.ran = Ran()

    def be_born(
        self, topics: Sequence[str], start: Beginning, *, later: Beginning | None = None
    ) -> Mapping[str, Mapping[int, int]]:
        """Every partition has progress from now on (rule 2); returns where each stands. Nobody is disturbed yet.

        `later` is where topics begin that were not there when the pipeline was born, if it is elsewhere.
        """
        if later is not None and any(self._sink.born(topic) is not None for topic in topics):
            start = later
        seeded = self._seed(topics, start)
        positions = {
            topic: {partition: each.position.next_offset for partition, each in seeded[topic].items()}
            for topic in topics
        }
        self._parts = [(topic, partition) for topic, there in positions.items() for partition in there]
        return positions

    def take_over(self, way: Way | None = None) -> None:
        """Own every partition; the driver before this one stops for good. Then see that the source is the same."""
        self._way = way or self._way
        self._own(self._parts)
        _accepted(self.missing())

    def batch(self, frame: DataFrame, batch_id: int, query: StreamingQuery) -> None:
        """Carry one micro-batch from the source to the sink."""
        begun = time.monotonic()
        plan = self._way.planned(query)
        if plan is None:
            return  # Spark has found nothing new
        self._adopt_new(plan)
        ranges = self._way.ranges(plan, self._recorded)
        sources = self._looking.now({part: self._recorded[part] for part in ranges})
        assignments = {}
        for number, (part, each) in enumerate(ranges.items()):
            source, recorded = sources[part], self._recorded[part]
            wanted = Range(*part, each.start, each.end, source.identity.leader_epoch)
            _accepted(self._way.check(wanted, recorded, source, recorded.owner))
            assignments[number] = Assignment(wanted, source)
        # Rule 4: a batch is its offsets; its number is used again by a restored checkpoint.
        given = tuple(each.range for each in assignments.values() if each.range.start < each.range.end)
        identity = Batch(str(query.id), batch_id, given, self._way.stateful)
        log.info("%s", identity)
        progress = {part: self._recorded[part].position.next_offset for part in ranges}
        look_again = partial(self._looking.refuse_changed, sources)
        carried = self._way.carry(InHand(frame, identity, assignments, progress, look_again))
        self.ran.batches += 1
        self.ran.rows += carried.rows
        self.ran.dropped += carried.dropped
        self.ran.buried += carried.buried
        if carried.buried:
            log.warning("batch %d: %d records were buried: `kept dead-letters list`", batch_id, carried.buried)
        self._recorded |= carried.recorded
        self._mirror.show(self._recorded.values())
        if self._on_batch is not None:
            parts = tuple(self._told(each) for each in assignments.values())
            seconds = time.monotonic() - begun
            self._on_batch(BatchDone(batch_id, carried.rows, carried.dropped, seconds, parts, carried.buried))

    def missing(self) -> Stop | None:
        """What keeps this pipeline from reading on, as its source is now; None: all that was not read is there."""
        sources = self._looking.now(self._recorded)
        answers = (trust(each, sources[part], each.owner) for part, each in self._recorded.items())
        return next((answer for answer in answers if isinstance(answer, Stop)), None)

    def _told(self, each: Assignment) -> PartitionDone:
        here = each.range
        reached = self._recorded[here.topic, here.partition].position.next_offset
        return PartitionDone(here.topic, here.partition, here.start, reached, each.source.log_end)

    def ended(self, query: StreamingQuery) -> None:
        self._way.ended(query)

    def close(self) -> None:
        self._mirror.close()
        self._sink.close()

    def _seed(self, topics: Iterable[str], start: Beginning) -> Mapping[str, Mapping[int, Progress]]:
        return self._sink.seed({topic: self._looking.seeds(topic, start) for topic in topics})

    def _own(self, parts: Sequence[Part]) -> None:
        self._recorded |= self._sink.take_over(parts)

    def _adopt_new(self, plan: Sequence[Planned]) -> None:
        """Partitions that were added, and topics that a pattern has found since, begin at their beginning."""
        new = dict.fromkeys(each.topic for each in plan if (each.topic, each.partition) not in self._recorded)
        for topic, seeded in self._seed(new, Start.BEGINNING).items() if new else ():
            self._own([(topic, partition) for partition in seeded if (topic, partition) not in self._recorded])


def _accepted(answer: object) -> None:
    if isinstance(answer, Stop):
        raise answer.error()
