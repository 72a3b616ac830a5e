"""Sinks without Spark: drivers and tasks over a source that is told, not read, and an audit of what they wrote.

The sinks are real servers; of the source they only ever hear what their driver has seen there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

import kept
from kept.errors import OutcomeUnknown, TryAgain
from kept.guarantees import Guarantee
from kept.progress import Batch, Identity, Range, Source
from kept.spark import KafkaSink
from kept.spark.dead_letters import DeadLetterTable
from kept.spark.kafka_records import Shape
from kept.spark.kafka_sink import KafkaDriver
from kept.spark.kafka_tasks import KafkaPart
from kept.spark.postgres_sink import PostgresDriver, PostgresPart
from kept.spark.sinks import Assignment, DriverSink, PartWriter, Rows
from kept.spark.staging import Staged
from kept.stores import Seed
from tests.spark.things import read_all

IDENTITY = Identity("cluster", "topic-id", 3)
SOURCE = Source(IDENTITY, log_start=0, log_end=1000, epoch_end=1000)


def values(start: int, end: int) -> list[str]:
    return [f"v{number:02}" for number in range(start, end)]


def table(start: int, end: int) -> pa.Table:
    return pa.table({"value": values(start, end)})


def rows(start: int, end: int) -> Rows:
    return Rows(np.arange(start, end), table(start, end))


@dataclass
class Scene:
    """One pipeline with one source partition, and all the drivers that it ever has."""

    name: str
    stack: ExitStack = field(repr=False)

    @property
    def part(self) -> tuple[str, int]:
        return f"of-{self.name}", 0

    def range(self, start: int, end: int) -> Range:
        return Range(*self.part, start, end, IDENTITY.leader_epoch)

    def assigned(self, start: int, end: int, source: Source = SOURCE) -> Assignment:
        return Assignment(self.range(start, end), source)

    def batch(self, number: int, start: int, end: int) -> Batch:
        return Batch("query", number, (self.range(start, end),), stateful=False)

    def begun(self, opened: DriverSink) -> None:
        self.stack.callback(opened.close)
        opened.seed({self.part[0]: [Seed(0, 0, 0, IDENTITY)]})
        opened.take_over([self.part])


@dataclass
class InKafka(Scene):
    """Rows are records of a topic with one partition."""

    bootstrap: str
    topic: str

    def driver(self, guarantee: Guarantee | None = None) -> KafkaDriver:
        """One that has taken over."""
        opened = KafkaSink(self.bootstrap, self.topic).open(self.name, guarantee or kept.ExactlyOnce(self.name))
        opened._shape = Shape(("value",), self.topic)
        self.begun(opened)
        return opened

    def after_its_look(self, part: KafkaPart, meanwhile: Callable[[], None]) -> None:
        """The next time that it has read progress, this happens before it goes on."""
        part._progress = _Interrupted(part._progress, meanwhile)  # type: ignore[assignment]

    def held(self) -> list[str]:
        return sorted(value.decode() for value in read_all(self.bootstrap, self.topic))


@dataclass
class InPostgres(Scene):
    """Rows are those of a table without a key: one that comes twice is there twice."""

    dsn: str

    def driver(self, guarantee: Guarantee | None = None, dead_letters: DeadLetterTable | None = None) -> PostgresDriver:
        """One that has taken over."""
        guarantee = guarantee or kept.ExactlyOnce(self.name)
        opened = kept.PostgresSink(self.dsn, "out").open(self.name, guarantee, dead_letters)
        opened._columns = ("value",)
        self.begun(opened)
        return opened

    def after_its_look(self, part: PostgresPart, meanwhile: Callable[[], None]) -> None:
        """The next time that it has read progress, this happens before it goes on."""
        look = part._store._accept

        def interrupted(*given: Any) -> Any:
            part._store._accept = look  # type: ignore[method-assign]
            seen = look(*given)
            meanwhile()
            return seen

        part._store._accept = interrupted  # type: ignore[method-assign, assignment]

    def held(self) -> list[str]:
        with psycopg.connect(self.dsn) as connection:
            return sorted(value for (value,) in connection.execute("SELECT value FROM out").fetchall())


class _Interrupted:
    """Progress of a Kafka sink, between whose first answer and what is made of it something happens."""

    def __init__(self, inner: Any, meanwhile: Callable[[], None]) -> None:
        self._inner = inner
        self._meanwhile: Callable[[], None] | None = meanwhile

    def recorded(self, topic: str, partitions: Sequence[int]) -> Any:
        found = self._inner.recorded(topic, partitions)
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def written(scene: Scene, driver: DriverSink, start: int, end: int) -> None:
    """A task that does its work, and ends."""
    part = driver.for_tasks().open(scene.assigned(start, end))
    try:
        write(scene, part, start, end)
    finally:
        part.close()


def write(scene: Scene, part: PartWriter, start: int, end: int) -> None:
    part.write(rows(start, end), scene.range(start, end))


def tried(attempt: Callable[[], object]) -> BaseException | None:
    """An attempt that may have to end: what it ended with."""
    try:
        attempt()
    except (TryAgain, OutcomeUnknown) as error:
        return error
    return None


def put_aside(driver: DriverSink, start: int, end: int, name: str) -> Staged:
    """A set of rows, as a task of batch mode leaves it."""
    writer = driver.staging().open(0)
    try:
        return Staged(name, end - start, writer.write(name, 0, table(start, end)))
    finally:
        writer.close()
