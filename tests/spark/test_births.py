"""The birth of a pipeline that reads several topics, cut short anywhere: without Spark, into each kind of sink."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import kept
from kept.admin.topics import Topics
from kept.consumer import Start
from kept.consumer.births import Births
from kept.local import Cluster
from kept.producer.clients import fenced_client
from kept.progress import Move, Seen, Step
from kept.spark import KafkaSink, Limits, PostgresSink
from kept.spark.driver import Driver
from kept.spark.kafka_moves import Apply, Moves
from kept.spark.looking import Looking
from kept.spark.mirror import Mirror
from kept.stores import births
from tests.spark.things import OutKafka, fill

BORN = Mapping[str, Mapping[int, int]]


class PowerCut(Exception):
    """Nothing more is done by this driver."""


class Family:
    """A pipeline that begins at the end of each topic; ten records are in every partition."""

    def __init__(self, cluster: Cluster, sink: PostgresSink | KafkaSink) -> None:
        self.cluster, self.sink = cluster, sink
        self.prefix = f"family-{uuid.uuid4().hex[:8]}"
        self.topics = [self.another(name) for name in ("a", "b")]

    def another(self, name: str) -> str:
        topic = f"{self.prefix}-{name}"
        Topics(self.cluster.bootstrap).create(topic, 3, kept.ExactlyOnce("tests"))
        fill(self.cluster, topic, 30)
        return topic

    def be_born(self, topics: Sequence[str]) -> BORN:
        """As a start does that has found these by a pattern."""
        client = kept.KafkaSource(self.cluster.bootstrap, pattern=f"{self.prefix}-.*").client
        with self._driver(client) as driver:
            return driver.be_born(topics, Start.END, later=Start.BEGINNING)

    @contextmanager
    def _driver(self, client: Mapping[str, object]) -> Iterator[Driver]:
        opened = self.sink.open(self.prefix, kept.ExactlyOnce(self.prefix))
        driver = Driver(Looking(client), opened, Mirror(client, f"kept.{self.prefix}"), Limits())
        try:
            yield driver
        finally:
            driver.close()


def a_sink(request: pytest.FixtureRequest, kind: str) -> PostgresSink | KafkaSink:
    if kind == "postgres":
        return PostgresSink(request.getfixturevalue("dsn"), "out")
    into: OutKafka = request.getfixturevalue("into_kafka")
    return KafkaSink(into.bootstrap, into.topic)


def after(monkeypatch: pytest.MonkeyPatch, where: object, name: str, count: int) -> None:
    """The power is cut in place of the call that would come after so many."""
    real, calls = getattr(where, name), iter(range(100))

    def called(*given: Any, **named: Any) -> Any:
        if next(calls) >= count:
            raise PowerCut
        return real(*given, **named)

    monkeypatch.setattr(where, name, called)


MOMENTS: Mapping[str, Mapping[str, tuple[object, str, int]]] = {
    "postgres": {
        "in the first topic": (births, "read_topic", 0),
        "between the topics": (births, "read_topic", 1),
    },
    "kafka": {
        "in the first topic": (Moves, "carry_out", 1),
        "between the topics": (Moves, "carry_out", 3),
        "between their births": (Births, "write", 1),
    },
}


@pytest.mark.parametrize(("into", "moment"), [(into, moment) for into, cuts in MOMENTS.items() for moment in cuts])
def test_a_topic_that_was_there_at_the_birth_begins_where_a_person_said(
    request: pytest.FixtureRequest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, into: str, moment: str
) -> None:
    family = Family(cluster, a_sink(request, into))
    a, b = family.topics
    with monkeypatch.context() as patched:
        after(patched, *MOMENTS[into][moment])
        with pytest.raises(PowerCut):
            family.be_born([a, b])
    fill(cluster, b, 3, 30)
    positions = family.be_born([a, b])
    assert set(positions[a].values()) == {10}
    assert set(positions[b].values()) <= {10, 11}, "and nothing that was there before"
    later = family.another("c")
    assert set(family.be_born([a, b, later])[later].values()) == {0}


def test_another_driver_at_the_same_birth_costs_a_second_try_and_not_the_start(
    cluster: Cluster, into_kafka: OutKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fences the other one somewhere: would both end by that, nobody goes on."""
    family = Family(cluster, KafkaSink(into_kafka.bootstrap, into_kafka.topic))
    real, fences = Moves._carry_out, [1, 2, 3]

    def crossed(self: Moves, step: Step, apply: Apply) -> Seen | None:
        if step.move is Move.RECORD_PROGRESS and fences:
            fences.pop()
            fenced_client(self._settings, 30)
        return real(self, step, apply)

    monkeypatch.setattr(Moves, "_carry_out", crossed)
    positions = family.be_born(family.topics)
    assert fences == []
    assert [set(there.values()) for there in positions.values()] == [{10}, {10}]
