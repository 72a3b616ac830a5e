"""Kafka as a sink: records by librdkafka, progress as signed offsets, in the guarantee's order.

exactly once     records and progress in one transaction
at least once    records, all acknowledged, then a transaction of progress
at most once     a transaction of progress, then records, sent once

Each transaction has a fresh client whose id names pipeline, topic and partition: it fences every other attempt before
progress is read (rules 1, 7, 11). This is partition mode; batch mode is in kafka_batches.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ClassVar, TypeVar

from confluent_kafka.admin import AdminClient

from kept.consumer.births import Births
from kept.consumer.dead_letters import DeadLetter
from kept.consumer.outgoing import PREPARED_WITHIN
from kept.errors import SinkChanged, SourceChanged, TryAgain
from kept.guarantees import ExactlyOnce, Guarantee, connection, merge, only_asks, producer_settings
from kept.producer.carrier import make_carrier
from kept.producer.clients import IN_LARGE_PIECES, QUICK, fenced_client
from kept.progress import (
    Batch,
    BatchRecord,
    Move,
    Owner,
    Position,
    Progress,
    Recorded,
    Seen,
    Step,
    Steps,
    Stop,
    close_range,
    follow,
    take_over,
    trust,
)
from kept.progress import seed as first_progress
from kept.progress.positions import not_succeeded
from kept.spark.dead_letters import DeadLetterPlace, DeadLetterTopic, refuse_elsewhere
from kept.spark.kafka_batches import KafkaBatches, Means, batch_id_of
from kept.spark.kafka_moves import LONGEST_PAUSE, Moves, as_recorded
from kept.spark.kafka_progress import KafkaProgress, carrier_of
from kept.spark.kafka_records import Shape
from kept.spark.kafka_staging import KafkaStaging
from kept.spark.kafka_tasks import KafkaTasks, identified
from kept.spark.kafka_topics import SourceTopics, refuse_missing_topic, sink_now, with_fitting_batches
from kept.spark.position import OURS
from kept.spark.sinks import Assignment, Done, Part
from kept.spark.staging import Staged
from kept.spark.subscriptions import refuse_feeding_itself
from kept.stores import Birth, Seed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AT_ONCE = 8
CLAIMED_WITHIN = 60.0
LAST_GENERATION = 2**63 - 1
T = TypeVar("T")


class KafkaSink:
    """A topic; or, for a frame with a column `topic`, several. Other columns: value, key, headers, partition.

    `producer` has librdkafka's settings for the producers that send the records; those by which the cluster is reached
    serve every other client, too.
    """

    buries_in: ClassVar[type[DeadLetterTopic]] = DeadLetterTopic

    def __init__(self, bootstrap: str, topic: str | None = None, **producer: object) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.client = {**QUICK, **connection(producer), "bootstrap.servers": bootstrap}
        self._producer = producer

    def __str__(self) -> str:
        return f"topic {self.topic} of Kafka" if self.topic else "topics of Kafka"

    def open(self, pipeline: str, guarantee: Guarantee, dead_letters: DeadLetterPlace | None = None) -> KafkaDriver:
        if dead_letters is not None:
            refuse_elsewhere(self, self.buries_in, dead_letters)
        letters = dead_letters if isinstance(dead_letters, DeadLetterTopic) else None
        return KafkaDriver(self, pipeline, guarantee, letters)

    def refuse_feeding_itself(self, read: Sequence[str], cluster_id: str) -> None:
        """What is read in this cluster may not be what is written."""
        if self.topic in read and SourceTopics(self.client).cluster_id() == cluster_id:
            refuse_feeding_itself(self.topic, read)

    def producer_settings(self, guarantee: Guarantee) -> dict[str, object]:
        """What producers are given; what would weaken the guarantee is refused."""
        return {**IN_LARGE_PIECES, **merge(producer_settings(guarantee), self._producer), **self.client}

    def progress_settings(self, pipeline: str) -> dict[str, object]:
        """What the clients that record progress are given: a transaction under every guarantee."""
        return {**IN_LARGE_PIECES, **merge(producer_settings(ExactlyOnce(pipeline)), {}), **self.client}


class KafkaDriver:
    """The driver's part: births, ownership, the ends of ranges."""

    def __init__(
        self, sink: KafkaSink, pipeline: str, guarantee: Guarantee, dead_letters: DeadLetterTopic | None = None
    ) -> None:
        self._sink = sink
        self._pipeline = pipeline
        self._guarantee = guarantee
        self._dead_letters = dead_letters
        self._producer = sink.producer_settings(guarantee)
        self._settings = sink.progress_settings(pipeline)
        self._admin = AdminClient(only_asks(sink.client))
        self._topics = SourceTopics(sink.client)
        self._births = Births(sink.client, ExactlyOnce(pipeline).group, self._topics)
        self._progress = KafkaProgress(sink.client, pipeline)
        self._seen = KafkaProgress(sink.client, pipeline, glance=True)
        self._generation = 0
        self._bound: str | None = None
        self._shape: Shape | None = None
        self._in_batches: KafkaBatches | None = None

    def shaped(self, frame: DataFrame) -> DataFrame:
        types = {each.name: each.dataType.simpleString() for each in frame.schema if each.name not in OURS}
        self._shape = Shape.fitting(types, self._sink.topic)
        written = [self._sink.topic, None if self._dead_letters is None else self._dead_letters.topic]
        named = [topic for topic in written if topic is not None]
        for topic in named:
            refuse_missing_topic(self._admin, topic)
        self._producer = with_fitting_batches(self._admin, named, self._producer)
        return frame.select(*self._shape.columns, *(name for name in OURS if name in frame.columns))

    def born(self, topic: str) -> Birth | None:
        known = self._births.known(topic)
        return Birth(*list(known.items())[-1]) if known else None

    def topics(self) -> set[str]:
        return {topic for group, topic, _, _ in self._births.everyones() if group == self._births.group}

    def seed(self, seeds: Mapping[str, Sequence[Seed]]) -> Mapping[str, Mapping[int, Progress]]:
        """Partitions that are known have progress, or it was lost. New ones get theirs behind a fence, once.

        A crash inside leaves some of them seeded: the next one finds them, and goes on. Births come last: a topic
        without one, beside one that has it, is taken for a topic that came later, and would begin elsewhere.
        """
        new = [one for topic, each in seeds.items() for one in self._unseeded(topic, each)]
        sink = self._bound_to()

        def begin(one: tuple[str, Seed, int]) -> None:
            topic, seed, start = one
            first = first_progress(Position(topic, seed.partition, start), seed.identity, self._pipeline, sink)
            # Two drivers at one birth fence each other, each elsewhere: the next try finds what the other one has left.
            _patiently(lambda: self._moves((topic, seed.partition)).carry_out(_seeding(first)))

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(begin, new))  # whatever one of them raised is raised here
        for topic in dict.fromkeys(topic for topic, _, _ in new):
            self._topics.ids[topic] = seeds[topic][0].identity.topic_id
            self._births.write(topic, len(seeds[topic]))
        return {topic: self._glance(topic, [seed.partition for seed in each]) for topic, each in seeds.items()}

    def _unseeded(self, topic: str, seeds: Sequence[Seed]) -> list[tuple[str, Seed, int]]:
        """The partitions that were never begun, and where each begins; what stops this pipeline stops it before it
        leaves anything behind."""
        topic_id = seeds[0].identity.topic_id
        known = self._births.known(topic)
        if known and topic_id not in known:
            raise SourceChanged(
                f"{self._pipeline!r} was born on topic id {[*known][-1]} of {topic}; the topic is now {topic_id}: "
                "it was made anew",
                way_out="point this one at the old topic, start a new pipeline, or choose: "
                f"`kept pipelines repair {self._pipeline}`",
            )
        self._bound_to()
        make_carrier(self._admin)
        make_carrier(self._admin, carrier_of(topic), len(seeds))
        begun = known.get(topic_id, 0)
        new = [seed for seed in seeds if seed.partition >= begun]
        if begun and new:
            self._glance(topic, range(begun))
        return [(topic, seed, seed.beginning if known else seed.at_birth) for seed in new]

    def take_over(self, parts: Sequence[Part]) -> Mapping[Part, Progress]:
        """One generation for all partitions, above every one that is recorded; a lower one would let a zombie in.

        Rule 7: the first partition decides. Of two drivers that start together the one that comes to it later wins the
        higher generation there, and everywhere; the other one meets that, and ends. Would each claim all at once, they
        could cross, and each would take the other one for its successor.

        A driver in batch mode commits under an id of its own. It is fenced first, since what a dead one has left open
        hides progress until its time-out; and last: one that was at work may have committed over our claims in between,
        and they are read again.
        """
        lower = sorted(parts)
        if lower and not self._generation:
            seen = [each for topic, there in _by_topic(parts).items() for each in self._glance(topic, there).values()]
            highest = max(each.owner.generation for each in seen)
            _patiently(self._fence_batches)
            self._generation = self._decided(lower.pop(0), highest + 1)
        while True:
            self._follow(lower)
            _patiently(self._fence_batches)
            taken = self._standing(parts)
            lower = [part for part, each in taken.items() if each.owner.generation < self._generation]
            if not lower:
                return taken

    def for_tasks(self) -> KafkaTasks:
        _patiently(self._refuse_made_anew)  # as its tasks are: brokers may be away just when a batch begins
        return KafkaTasks(
            self._owner(),
            self._guarantee,
            self._fitting(),
            self._dead_letters,
            self._settings,
            self._producer,
            self._sink.client,
        )

    def close_ranges(self, done: Sequence[Done]) -> Mapping[Part, Progress]:
        """Each behind its own fence, several at once; a range without holes at its end is closed already."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            closed = list(pool.map(self._closed, done))
        return {(each.position.topic, each.position.partition): each for each in closed}

    def last_batch(self) -> BatchRecord | None:
        """Before the take-over as far as it shows without a fence; it is asked for again with the first batch."""
        batches = self._batches()
        return batches.last() if self._generation else self._seen.last_batch()

    def staging(self) -> KafkaStaging:
        return self._batches().staging()

    def move(
        self,
        batch: Batch,
        assignments: Sequence[Assignment],
        staged: Sequence[Staged],
        letters: Sequence[DeadLetter] = (),
    ) -> Mapping[Part, Progress]:
        self._refuse_made_anew()
        return self._batches().move(batch, assignments, staged, letters, self._owner())

    def close(self) -> None:
        self._progress.close()
        self._seen.close()

    def _batches(self) -> KafkaBatches:
        if self._in_batches is None:
            means = Means(
                self._pipeline,
                self._guarantee,
                self._fitting(),
                self._dead_letters,
                self._settings,
                self._producer,
                self._sink.client,
            )
            self._in_batches = KafkaBatches(means, self._progress, self._admin)
        return self._in_batches

    def _fitting(self) -> Shape:
        if self._shape is None:
            raise TypeError("the frame was not looked at")
        return self._shape

    def _owner(self) -> Owner:
        return Owner(self._pipeline, self._generation, self._bound_to())

    def _bound_to(self) -> str:
        """The sink that progress is recorded for; asked once, so that another one of its name shows."""
        if self._bound is None:
            self._bound = sink_now(self._topics, self._sink.topic)
        return self._bound

    def _refuse_made_anew(self) -> None:
        """A topic that was deleted takes what was written with it; progress is that of the deleted one."""
        then, now = self._bound_to(), sink_now(self._topics, self._sink.topic)
        if then != now:
            raise SinkChanged(
                f"{self._sink} was deleted and made again while {self._pipeline!r} wrote to it: it was {then} and is "
                f"{now}",
                way_out=f"give the pipeline another name, or choose: `kept pipelines repair {self._pipeline}`",
            )

    def _closed(self, done: Done) -> Progress:
        wanted, source, owner = done.assignment.range, done.assignment.source, self._owner()
        part = (wanted.topic, wanted.partition)
        if done.reached >= wanted.end:
            return Progress(Position(*part, done.reached), source.identity, owner)
        moves = Moves(self._identified(part), self._progress, part, source)
        return _patiently(lambda: moves.carry_out(close_range(wanted, done.reached, owner)))

    def _decided(self, part: Part, at_least: int) -> int:
        """The generation won on this partition. A claim that was fenced is tried again after a random wait: two that
        answer at once starve each other."""
        sink = self._bound_to()
        won = _patiently(lambda: self._moves(part).carry_out(take_over(self._pipeline, at_least, sink)))
        return won.owner.generation

    def _follow(self, parts: Sequence[Part]) -> None:
        """Whatever else is ours, under the generation that was won; somebody else's higher one ends us."""
        owner = self._owner()

        def claim(part: Part) -> None:
            tried = False

            def attempt() -> None:
                nonlocal tried
                before, tried = tried, True
                self._moves(part).carry_out(follow(owner, tried=before))

            _patiently(attempt)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(claim, parts))  # whatever one of them raised is raised here

    def _standing(self, parts: Sequence[Part]) -> dict[Part, Progress]:
        """Where these partitions stand; a successor's generation stops us."""
        found: dict[Part, Progress] = {}
        for topic, there in _by_topic(parts).items():
            for number, progress in self._trusted(self._progress.recorded(topic, there)).items():
                stop = not_succeeded(progress, self._owner())
                if stop is not None:
                    raise stop.error()
                found[topic, number] = progress
        return found

    def _fence_batches(self) -> None:
        fenced_client({**self._settings, "transactional.id": batch_id_of(self._pipeline)}, PREPARED_WITHIN)

    def _glance(self, topic: str, partitions: Sequence[int]) -> dict[int, Progress]:
        """What is recorded, as far as it shows without a fence.

        Whoever was before us may have left a transaction open; only its time-out or our fence ends that.
        """
        return self._trusted(self._seen.recorded(topic, partitions))

    def _trusted(self, found: Mapping[int, Recorded]) -> dict[int, Progress]:
        """Progress to go on from; gone, a stranger's, or for another sink, it stops us.

        Whose turn it is shows at the fence.
        """
        anybody = Owner(self._pipeline, LAST_GENERATION, self._bound_to())
        trusted = {}
        for partition, recorded in found.items():
            answer = trust(recorded, as_recorded(recorded), anybody)
            if isinstance(answer, Stop):
                raise answer.error()
            trusted[partition] = answer.progress
        return trusted

    def _moves(self, part: Part) -> Moves:
        return Moves(self._identified(part), self._progress, part)

    def _identified(self, part: Part) -> dict[str, object]:
        return identified(self._settings, self._pipeline, part)


def _by_topic(parts: Sequence[Part]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in parts:
        found.setdefault(topic, []).append(number)
    return found


def _seeding(first: Progress) -> Steps:
    """Fence, look, and record the first progress if there is none."""
    yield Step(Move.FENCE)
    seen = yield Step(Move.READ_PROGRESS)
    if isinstance(seen, Seen) and seen.recorded is not None:
        return first  # not ours to write: what is there is looked at right after
    yield Step(Move.RECORD_PROGRESS, new=first)
    return first


def _patiently(attempt: Callable[[], T]) -> T:
    """Again, after a random wait, while it may help."""
    deadline = time.monotonic() + CLAIMED_WITHIN
    while True:
        try:
            return attempt()
        except TryAgain:
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0, LONGEST_PAUSE))  # noqa: S311 - not a secret
