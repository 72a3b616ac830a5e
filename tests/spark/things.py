"""What the tests of pipelines share: sources that are filled, transforms, audits by other readers, faults."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import DataFrame, SparkSession

import kept
from kept.consumer.dead_letters import DeadLetter
from kept.guarantees import Guarantee
from kept.local import Cluster
from kept.producer.clients import fenced_client, make_client
from kept.progress import Batch, BatchRecord, Progress, Range
from kept.spark import POSITION, Limits, UntilEnd
from kept.spark.dead_letters import DeadLetterPlace
from kept.spark.kafka_moves import Moves
from kept.spark.sinks import Assignment, Done, DriverSink, PartWriter, Rows, Sink, TaskSink, Written
from kept.spark.staging import Staged, StageWriter, Staging
from kept.stores import Birth, Part, Seed
from tests.spark.fates import Act, die_there

Transform: TypeAlias = Callable[[DataFrame], DataFrame]
MOVING = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


def fill(cluster: Cluster, topic: str, count: int, start: int = 0, *, transactions: bool = False) -> None:
    """Records v0, v1, ... round all three partitions, each with its number as key; all of them in one transaction."""
    settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 5}
    if transactions:
        client = fenced_client({**settings, "transactional.id": f"filler-{uuid.uuid4().hex[:8]}"}, 30)
        client.begin_transaction()
    else:
        client = make_client(settings)
    lost: list[object] = []

    def hear(error: object, _message: object) -> None:
        if error is not None:
            lost.append(error)

    for number in range(start, start + count):
        value, key = f"v{number}", str(number)
        client.produce(topic, value, key, number % 3, on_delivery=hear)
    if transactions:
        client.commit_transaction(30)
    assert client.flush(30) == 0
    assert lost == []


def values(frame: DataFrame) -> DataFrame:
    """The value as text, and the place."""
    return frame.selectExpr("cast(value as string) as v", "_kept_topic", "_kept_partition", "_kept_offset")


def records(frame: DataFrame) -> DataFrame:
    """Key and value as they are, and the place."""
    return frame.select("key", "value", *POSITION)


def dealt_anew(transform: Transform) -> Transform:
    """The same rows without their places, shuffled: such a plan needs batch mode."""
    return lambda frame: transform(frame).drop(*POSITION).repartition(3)


def pipeline(
    cluster: Cluster, topic: str, sink: Sink, guarantee: Guarantee, spark: SparkSession, **more: object
) -> kept.Pipeline:
    """From the topic to the sink, until the end of what is there."""
    given: dict[str, object] = {
        "source": kept.KafkaSource(cluster.bootstrap, topic),
        "transform": records if isinstance(getattr(sink, "inner", sink), kept.KafkaSink) else values,
        "trigger": UntilEnd(),
        "name": None if isinstance(guarantee, kept.ExactlyOnce) else f"to-{topic}",
        "limits": Limits(patience=5),
        **more,
    }
    return kept.Pipeline(sink=sink, guarantee=guarantee, spark=spark, **given)  # type: ignore[arg-type]


def each_once(count: int) -> Counter[str]:
    return Counter({f"v{number}": 1 for number in range(count)})


class Out(Protocol):
    """Where a pipeline writes, and what an audit finds there."""

    @property
    def between(self) -> Mapping[str, str]:
        """At which step of a task the first of the two moves is over and the second has not begun."""

    @property
    def sink(self) -> Sink: ...

    def held(self) -> Counter[str]:
        """What is there, counted."""

    def recorded(self, topic: str) -> dict[int, int]:
        """The progress, partition by partition."""


@dataclass(frozen=True)
class OutPostgres:
    dsn: str
    between: ClassVar[Mapping[str, str]] = {
        "at-most-once": "step 3",
        "at-least-once": "step 4",
        "exactly-once": "step 2",
    }

    @property
    def sink(self) -> Sink:
        return kept.PostgresSink(self.dsn, "out")

    def held(self) -> Counter[str]:
        with psycopg.connect(self.dsn) as connection:
            try:
                return Counter(row[0] for row in connection.execute("SELECT v FROM out").fetchall())
            except psycopg.errors.UndefinedTable:
                return Counter()

    def recorded(self, topic: str) -> dict[int, int]:
        statement = "SELECT partition, next_offset FROM kept_progress WHERE topic = %s"
        with psycopg.connect(self.dsn) as connection:
            return dict(connection.execute(statement, (topic,)).fetchall())


@dataclass(frozen=True)
class OutKafka:
    bootstrap: str
    topic: str
    name: str
    between: ClassVar[Mapping[str, str]] = {
        "at-most-once": "step 4",
        "at-least-once": "step 4",
        "exactly-once": "step 6",
    }

    @property
    def sink(self) -> Sink:
        return kept.KafkaSink(self.bootstrap, self.topic)

    def held(self) -> Counter[str]:
        return Counter(value.decode() for value in read_all(self.bootstrap, self.topic))

    def recorded(self, topic: str) -> dict[int, int]:
        client = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"kept.{self.name}"})
        try:
            places = [TopicPartition(f"kept.progress.{topic}", number) for number in range(3)]
            return {place.partition: place.offset for place in committed(client, places)}
        finally:
            client.close()


def committed(client: Consumer, places: list[TopicPartition], within: float = 30.0) -> list[TopicPartition]:
    """What a group has committed; a coordinator that has just moved, as after another test's faults, is asked again."""
    deadline = time.monotonic() + within
    while True:
        try:
            return client.committed(places, timeout=within)
        except KafkaException as failure:
            if failure.args[0].code() not in MOVING or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def read_all(bootstrap: str, topic: str) -> list[bytes]:
    """Every committed record, by a reader that knows nothing of kept."""
    settings = {"group.id": "audit", "auto.offset.reset": "earliest", "enable.partition.eof": True}
    quick = {"fetch.wait.max.ms": 10, "enable.auto.commit": False}
    client = Consumer({"bootstrap.servers": bootstrap, **settings, **quick})
    found: list[bytes] = []
    try:
        numbers = client.list_topics(topic, timeout=30).topics[topic].partitions
        places = [TopicPartition(topic, number, 0) for number in numbers]
        ends = {place.partition: client.get_watermark_offsets(place, 30)[1] for place in places}
        client.assign(places)
        unread = set(ends)
        deadline = time.monotonic() + 60
        while unread:
            assert time.monotonic() < deadline, f"{topic} cannot be read to its end"
            for message in client.consume(5000, 1.0):
                error = message.error()
                if error is None:
                    found.append(message.value() or b"")
                elif (
                    error.code() == KafkaError._PARTITION_EOF
                    and (message.offset() or 0) >= ends[message.partition() or 0]
                ):
                    unread.discard(message.partition() or 0)
    finally:
        client.close()
    return found


NOWHERE = "nowhere"


@dataclass(frozen=True)
class Faulty:
    """A sink around another: a task that comes to `at`, with a chunk that ends beyond an offset, meets its fate.

    By default the first one dies there, once; the file says that it did. In batch mode rows are put aside there, and
    `beyond` is a number of batches that are let pass.
    """

    inner: Sink
    at: str
    once: Path
    act: Act = die_there
    beyond: int = 0

    @property
    def buries_in(self) -> type[DeadLetterPlace]:
        return self.inner.buries_in

    def open(self, pipeline: str, guarantee: Guarantee, dead_letters: DeadLetterPlace | None = None) -> DriverSink:
        return FaultyDriver(self.inner.open(pipeline, guarantee, dead_letters), self)


@dataclass
class AroundDriver:
    """Everything as the inner one."""

    inner: DriverSink

    def shaped(self, frame: DataFrame) -> DataFrame:
        return self.inner.shaped(frame)

    def born(self, topic: str) -> Birth | None:
        return self.inner.born(topic)

    def topics(self) -> Collection[str]:
        return self.inner.topics()

    def seed(self, seeds: Mapping[str, Sequence[Seed]]) -> Mapping[str, Mapping[int, Progress]]:
        return self.inner.seed(seeds)

    def take_over(self, parts: Sequence[Part]) -> Mapping[Part, Progress]:
        return self.inner.take_over(parts)

    def for_tasks(self) -> TaskSink:
        return self.inner.for_tasks()

    def close_ranges(self, done: Sequence[Done]) -> Mapping[Part, Progress]:
        return self.inner.close_ranges(done)

    def last_batch(self) -> BatchRecord | None:
        return self.inner.last_batch()

    def staging(self) -> Staging:
        return self.inner.staging()

    def move(
        self,
        batch: Batch,
        assignments: Sequence[Assignment],
        staged: Sequence[Staged],
        letters: Sequence[DeadLetter] = (),
    ) -> Mapping[Part, Progress]:
        return self.inner.move(batch, assignments, staged, letters)

    def close(self) -> None:
        self.inner.close()


@dataclass
class FaultyDriver(AroundDriver):
    """What travels to the tasks is faulty."""

    fault: Faulty
    batches: int = 0

    def for_tasks(self) -> TaskSink:
        return FaultyTasks(
            self.inner.for_tasks(), self.fault.at, str(self.fault.once), self.fault.act, self.fault.beyond
        )

    def staging(self) -> Staging:
        self.batches += 1
        at = self.fault.at if self.batches > self.fault.beyond else NOWHERE
        return FaultyStaging(self.inner.staging(), at, str(self.fault.once), self.fault.act)


@dataclass(frozen=True)
class FaultyTasks:
    inner: TaskSink
    at: str
    once: str
    act: Act
    beyond: int

    def open(self, assignment: Assignment) -> PartWriter:
        return FaultyPart(self.inner.open(assignment), self)


@dataclass(frozen=True)
class FaultyPart:
    inner: PartWriter
    fault: FaultyTasks

    def write(self, rows: Rows, wanted: Range) -> Written:
        if wanted.end <= self.fault.beyond:
            self.fault.act(self.fault.once, False)
            return self.inner.write(rows, wanted)
        self._come_to("before")
        with self._counting() if self.fault.at.startswith("step") else nullcontext():
            written = self.inner.write(rows, wanted)
        self._come_to("after")
        return written

    def close(self) -> None:
        self.inner.close()

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Die at the n-th step: of Moves, or of the store (chunk, its commit, a transaction apart, next chunk)."""
        steps = iter(range(1, 100))
        store: Any = getattr(self.inner, "_store", None)
        names = ("_carry_out",) if store is None else ("chunk", "_record_and_commit", "apart")
        where: Any = Moves if store is None else store
        before = {name: getattr(where, name) for name in names}
        for name, step in before.items():
            setattr(where, name, self._counted(step, steps))
        try:
            yield
        finally:
            for name, step in before.items():
                setattr(where, name, step)

    def _counted(self, step: Callable[..., object], steps: Iterator[int]) -> Callable[..., object]:
        def counted(*arguments: object, **named: object) -> object:
            self._come_to(f"step {next(steps)}")
            return step(*arguments, **named)

        return counted

    def _come_to(self, here: str) -> None:
        self.fault.act(self.fault.once, here == self.fault.at)


@dataclass(frozen=True)
class FaultyStaging:
    inner: Staging
    at: str
    once: str
    act: Act

    def open(self, task: int) -> StageWriter:
        return FaultyStageWriter(self.inner.open(task), self)


@dataclass(frozen=True)
class FaultyStageWriter:
    inner: StageWriter
    fault: FaultyStaging

    def write(self, name: str, first: int, rows: pa.Table) -> object:
        self._come_to("before")
        place = self.inner.write(name, first, rows)
        self._come_to("after")
        return place

    def close(self) -> None:
        self.inner.close()

    def _come_to(self, here: str) -> None:
        self.fault.act(self.fault.once, here == self.fault.at)


def out_of(request: pytest.FixtureRequest, kind: str) -> Out:
    """A sink of this kind, "postgres" or "kafka", and its audit."""
    if kind == "postgres":
        return OutPostgres(request.getfixturevalue("dsn"))
    found: OutKafka = request.getfixturevalue("into_kafka")
    return found


@contextmanager
def beside(running: kept.Pipeline) -> Iterator[list[kept.KeptError]]:
    """A pipeline that runs beside the test, and is stopped after it; what ended it before comes into the list."""
    ended: list[kept.KeptError] = []

    def run() -> None:
        try:
            running.run()
        except kept.KeptError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ended
    finally:
        running.stop()
        thread.join(30)
