"""A batch that its driver has moved and Spark has not written down comes again; a person may have been there first.

Batch mode of a plan without state, driven without Spark, into each kind of sink.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest

import kept
from kept.consumer import Start
from kept.errors import ProgressMoved
from kept.guarantees import Guarantee
from kept.local import Cluster
from kept.progress import Batch, Range, Stop, Verdict, check_batch
from kept.spark import KafkaSink, PostgresSink
from kept.spark.kafka_records import Shape
from kept.spark.kafka_sink import KafkaDriver
from kept.spark.postgres_sink import PostgresDriver
from kept.spark.sinks import Assignment
from tests.conftest import Eventually
from tests.spark.scenes import put_aside, values
from tests.spark.test_upkeep import Piped, said
from tests.spark.things import fill, read_all

Drivers = KafkaDriver | PostgresDriver


@dataclass(frozen=True)
class Batched(Piped):
    """A pipeline whose rows are dealt anew: five of them from every batch."""

    guarantee: Guarantee

    @contextmanager
    def opened(self) -> Iterator[Drivers]:
        opened = self.sink.open(self.name, self.guarantee)
        if isinstance(opened, KafkaDriver):
            opened._shape = Shape(("value",), opened._sink.topic)
        else:
            opened._columns = ("value",)
        try:
            opened.seed({self.topic: self.looking.seeds(self.topic, Start.BEGINNING)})
            yield opened
        finally:
            opened.close()

    def carry(self, upto: int) -> Verdict:
        """A start on the same checkpoint: its only batch is planned from the beginning up to here."""
        with self.opened() as driver:
            recorded = driver.take_over([(self.topic, number) for number in range(3)])
            given = [
                Assignment(Range(*part, 0, upto, source.identity.leader_epoch), source)
                for part, source in self.looking.now(recorded).items()
            ]
            batch = Batch("query", 0, tuple(each.range for each in given), stateful=False)
            progress = {part: each.position.next_offset for part, each in recorded.items()}
            verdict = check_batch(batch, None, progress)
            if isinstance(verdict, Stop):
                raise verdict.error()
            if verdict is Verdict.WRITE:
                staged = put_aside(driver, 0, 5, str(uuid.uuid4()))
                moved = driver.move(batch, given, [staged])
                assert {each.position.next_offset for each in moved.values()} == {upto}
            return verdict

    def held(self) -> list[str]:
        if isinstance(self.sink, KafkaSink):
            return sorted(value.decode() for value in read_all(self.sink.bootstrap, str(self.sink.topic)))
        with psycopg.connect(self.sink.dsn) as connection:
            return sorted(value for (value,) in connection.execute("SELECT value FROM out").fetchall())


@pytest.fixture(params=["exactly-once", "at-least-once", "at-most-once"])
def guarantee(request: pytest.FixtureRequest, topic: str) -> Guarantee:
    return kept.guarantees.parse(request.param, f"to-{topic}" if request.param == "exactly-once" else None)


@pytest.fixture(params=["postgres", "kafka"])
def batched(request: pytest.FixtureRequest, cluster: Cluster, topic: str, guarantee: Guarantee) -> Batched:
    """Thirty records, ten in each partition; none is done."""
    sink: PostgresSink | KafkaSink
    if request.param == "postgres":
        sink = PostgresSink(request.getfixturevalue("dsn"), "out")
        with psycopg.connect(sink.dsn) as connection:
            connection.execute("CREATE TABLE out (value text)")
    else:
        sink = KafkaSink(cluster.bootstrap, request.getfixturevalue("into_kafka").topic)
    fill(cluster, topic, 30)
    return Batched(f"to-{topic}", cluster, topic, sink, guarantee)


def test_what_a_person_has_read_again_is_written_again(batched: Batched, eventually: Eventually) -> None:
    """Progress goes back to where the batch begins: its record is still there, and its rows count no more."""
    assert batched.carry(6) is Verdict.WRITE
    assert batched.carry(6) is Verdict.SKIP
    assert batched.positions() == [6, 6, 6]
    said("replay", batched.name, *batched.options, "--from", "beginning", "--yes")
    assert batched.positions() == [0, 0, 0]
    assert batched.carry(6) is Verdict.WRITE
    assert batched.positions() == [6, 6, 6]
    eventually(lambda: len(batched.held()) >= 10, "they are there a second time")
    assert batched.held() == sorted(values(0, 5) * 2)


def test_a_batch_of_which_a_part_is_to_be_read_again_stops(batched: Batched) -> None:
    batched.carry(6)
    said("replay", batched.name, *batched.options, "--from", "2", "--partition", "1", "--yes")
    with pytest.raises(ProgressMoved, match="run it without this checkpoint"):
        batched.carry(6)
    assert batched.positions() == [6, 2, 6]
    assert batched.held() == values(0, 5)
