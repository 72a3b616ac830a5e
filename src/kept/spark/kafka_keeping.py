"""The progress of pipelines in a Kafka, for a person: listed, looked at, and moved on purpose.

A move fences every task and driver of the partition, reads again, compares with what the person was shown, and records
the new position under the next generation: a driver that nobody saw is Fenced at its next batch. Each partition is a
transaction of its own; a move that is cut short is said again, and goes on with what is left, unless it was told as a
distance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from kept.consumer.births import Births
from kept.consumer.outgoing import PREPARED_WITHIN
from kept.errors import ProgressMoved, TryAgain
from kept.guarantees import BATCHES, ExactlyOnce, only_asks
from kept.producer.carrier import make_carrier
from kept.producer.clients import fenced_client
from kept.progress import Move, Progress, Recorded, Seen, Step, Steps, Unsigned
from kept.spark.kafka_batches import batch_id_of
from kept.spark.kafka_moves import Moves
from kept.spark.kafka_progress import ANSWER_WITHIN, KafkaProgress, carrier_of
from kept.spark.kafka_sink import KafkaSink
from kept.spark.kafka_tasks import identified
from kept.spark.kafka_topics import NAMED_BY_ROWS, SourceTopics, sink_now
from kept.stores import Birth

PREFIX = "kept."
SETTLED_WITHIN = 3.0
"""The brokers finish a commit in a moment, after they have answered it."""


class Listed(NamedTuple):
    """A pipeline and one of its topics."""

    pipeline: str
    topic: str
    partitions: int
    generation: int


def listed(sink: KafkaSink) -> list[Listed]:
    """Every pipeline that keeps progress here: groups that were born, and have progress on our own topics."""
    born: dict[tuple[str, str], int] = {}
    for group, topic, _, partitions in Births(sink.client, "", SourceTopics(sink.client)).everyones():
        if group.startswith(PREFIX):
            born[group.removeprefix(PREFIX), topic] = partitions
    carriers = _topics_of(sink)
    found = []
    for (pipeline, topic), partitions in sorted(born.items()):
        if carrier_of(topic) not in carriers:
            continue  # a consumer's birth: its progress is elsewhere
        progress = KafkaProgress(sink.client, pipeline, glance=True)
        try:
            recorded = [each for each in progress.recorded(topic, range(partitions)).values() if each is not None]
        finally:
            progress.close()
        if recorded:
            generations = [each.owner.generation for each in recorded if isinstance(each, Progress)]
            found.append(Listed(pipeline, topic, partitions, max(generations, default=0)))
    return found


class KafkaKeeping:
    """The progress of one pipeline. `into` is the topic that it writes to, "*" where rows name it, if that is known."""

    knows_who_is_at_work = False

    def __init__(self, sink: KafkaSink, pipeline: str, into: str | None = None) -> None:
        self._sink = sink
        self._into = into
        self._sinks: dict[str, str | None] = {NAMED_BY_ROWS: NAMED_BY_ROWS}
        self.pipeline = pipeline
        self._settings = sink.progress_settings(pipeline)
        self._topics = SourceTopics(sink.client)
        self._births = Births(sink.client, ExactlyOnce(pipeline).group, self._topics)
        self._seen = KafkaProgress(sink.client, pipeline, glance=True)
        self._progress = KafkaProgress(sink.client, pipeline)

    def close(self) -> None:
        self._progress.close()
        self._seen.close()

    def births(self) -> dict[str, Birth]:
        """The topics that it was born on; of one that was made anew, the last it was told to take."""
        found: dict[str, Birth] = {}
        for group, topic, topic_id, partitions in self._births.everyones():
            if group == ExactlyOnce(self.pipeline).group:
                found[topic] = Birth(topic_id, partitions)
        return found

    def recorded(self, topic: str, partitions: Collection[int]) -> dict[int, Recorded]:
        """What was committed last, or the copy of it where the offset is gone.

        A commit that is under way is waited for: a pipeline that has just ended is shown where it ended. Of one that
        is always at work, or left a transaction open, it is told as it was.
        """
        try:
            return self._progress.recorded(topic, sorted(partitions), SETTLED_WITHIN)
        except TryAgain:
            return self._seen.recorded(topic, sorted(partitions))

    def copies(self, topic: str, partitions: Collection[int]) -> dict[int, Progress]:
        """The copies that bear our signature."""
        found = self._seen.copies(topic, sorted(partitions))
        return {number: each for number, each in found.items() if isinstance(each, Progress)}

    def sink_now(self, recorded: Recorded) -> str | None:
        """The sink as it is now; where nobody has named it, the one of the name that was recorded, if it is there."""
        bound = recorded.owner.sink if isinstance(recorded, Progress) else None
        topic = self._into or (bound and bound.partition("@")[0])
        if topic is None:
            return None
        if topic not in self._sinks:
            there = topic == self._into or topic in _topics_of(self._sink)
            self._sinks[topic] = sink_now(self._topics, topic) if there else None
        return self._sinks[topic]

    def has_state(self) -> bool:
        """Whether the last batch was of a plan that keeps state, in its checkpoint; for who is about to move progress.

        Behind a fence: a batch that a dead driver has left open would hide it, until its time-out.
        """
        if BATCHES not in _topics_of(self._sink):
            return False
        self._fence_batches()
        last = self._progress.last_batch()
        return last is not None and last.stateful

    def at_work(self) -> list[str]:
        """Nobody can be seen from here: a driver between two batches leaves no trace in a Kafka."""
        return []

    def move(self, changes: Sequence[tuple[Recorded, Progress]], births: Mapping[str, Birth]) -> None:
        """Partition by partition, the births last: until then the pipeline does not start on a new topic.

        Rule 7: batch mode commits under an id of its own. It is fenced first, since what a dead driver has left open
        hides progress; and last, when it commits no more: what it committed over our moves in between is told.
        """
        self._fence_batches()
        admin = AdminClient(only_asks(self._sink.client))
        for topic, birth in births.items():
            make_carrier(admin, carrier_of(topic), birth.partitions)
        for shown, new in changes:
            part = (new.position.topic, new.position.partition)
            moves = Moves(identified(self._settings, self.pipeline, part), self._progress, part)
            moves.carry_out(_replaced(shown, new))
        self._fence_batches()
        self._refuse_moved([new for _, new in changes])
        for topic, birth in births.items():
            self._topics.ids[topic] = birth.topic_id
            self._births.write(topic, birth.partitions)

    def _fence_batches(self) -> None:
        fenced_client({**self._settings, "transactional.id": batch_id_of(self.pipeline)}, PREPARED_WITHIN)

    def _refuse_moved(self, moved: Sequence[Progress]) -> None:
        for new in moved:
            where = new.position
            if self._progress.recorded(where.topic, [where.partition])[where.partition] != new:
                raise _somebody(where.topic, where.partition)


def _topics_of(sink: KafkaSink) -> set[str]:
    return set(AdminClient(only_asks(sink.client)).list_topics(timeout=ANSWER_WITHIN).topics)


def _somebody(topic: str, partition: int) -> ProgressMoved:
    return ProgressMoved(
        f"the progress in {topic}[{partition}] has moved since it was looked at: somebody is at work",
        way_out="stop the pipeline first, then look again",
    )


def _replaced(shown: Recorded, new: Progress) -> Steps:
    """Fence, look, compare with what a person was shown, and record."""
    yield Step(Move.FENCE)
    seen = yield Step(Move.READ_PROGRESS)
    now = seen.recorded if isinstance(seen, Seen) else None
    if not _alike(now, shown):
        raise _somebody(new.position.topic, new.position.partition)
    yield Step(Move.RECORD_PROGRESS, new=new)
    return new


def _alike(now: Recorded, shown: Recorded) -> bool:
    if isinstance(now, Unsigned) and isinstance(shown, Unsigned):
        return now.position == shown.position
    return now == shown
