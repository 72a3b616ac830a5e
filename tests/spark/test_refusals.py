"""A record that a broker refuses, where no dead letters are kept: told at once, with its way out, and that is one."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from pyspark.sql import DataFrame, SparkSession

import kept
from kept.errors import NotPersisted
from kept.local import Cluster
from kept.producer.clients import make_client
from kept.spark import POSITION, DeadLetterTopic, Limits
from tests.brokers.pipes import new_topic
from tests.spark.letters import others, pay, promised
from tests.spark.things import Transform, pipeline, read_all, records

PATIENCE = 200.0
LARGE = {30: "x" * 5000}


def shuffled(frame: DataFrame) -> DataFrame:
    return frame.select("key", "value").repartition(2)


@pytest.mark.parametrize(
    ("word", "transform"),
    [("at-least-once", records), ("exactly-once", records), ("exactly-once", shuffled)],
    ids=["at-least-once", "exactly-once", "exactly-once, batch mode"],
)
def test_a_refused_record_stops_the_pipeline_at_once(
    cluster: Cluster, topic: str, spark: SparkSession, word: str, transform: Transform
) -> None:
    """Patience is for brokers that are away. When the topic takes the record it goes on, and nothing is missing."""
    out = new_topic(cluster.bootstrap, max_message_bytes=4000)
    pay(cluster, topic, LARGE)
    running = pipeline(
        cluster,
        topic,
        kept.KafkaSink(cluster.bootstrap, out),
        promised(word, topic),
        spark,
        transform=transform,
        limits=Limits(patience=PATIENCE),
    )
    began = time.monotonic()
    with pytest.raises(NotPersisted, match=rf"{out} did not take the record: .*large") as told:
        running.run()
    took = time.monotonic() - began
    print(f"{word}: told after {took:.1f} s")
    assert took < PATIENCE, "whoever waits for it takes longer"
    assert "raise max.message.bytes" in told.value.way_out
    _take_more(cluster.bootstrap, out)
    running.run()
    held = Counter(value.decode() for value in read_all(cluster.bootstrap, out))
    whole = others(LARGE) + Counter(LARGE.values())
    assert whole == held if word == "exactly-once" else whole <= held


def _take_more(bootstrap: str, topic: str) -> None:
    entry = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(30)


TOGETHER = Counter(f"{number:02}" * 500 for number in range(20))


def side_by_side(frame: DataFrame) -> DataFrame:
    """All for one partition, so that they travel together."""
    return frame.selectExpr("value", "0 as partition", *POSITION)


def side_by_side_shuffled(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("value", "0 as partition").repartition(1)


@pytest.mark.parametrize(
    ("word", "transform", "letters"),
    [
        ("at-most-once", side_by_side, False),
        ("at-most-once", side_by_side, True),
        ("at-least-once", side_by_side, False),
        ("exactly-once", side_by_side, False),
        ("exactly-once", side_by_side_shuffled, False),
    ],
    ids=["at-most-once", "at-most-once, dead letters", "at-least-once", "exactly-once", "exactly-once, batch mode"],
)
def test_records_that_are_too_large_only_together_are_written(
    cluster: Cluster, topic: str, spark: SparkSession, word: str, transform: Transform, letters: bool
) -> None:
    """Rule 14: each of them is legal, and max.message.bytes limits a batch."""
    out, dead = new_topic(cluster.bootstrap, max_message_bytes=4000), new_topic(cluster.bootstrap)
    with kept.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
        for value in TOGETHER:
            producer.send(topic, value, partition=0)
    sink = kept.KafkaSink(cluster.bootstrap, out)
    more = {"transform": transform, "dead_letters": DeadLetterTopic(dead) if letters else None}
    ran = pipeline(cluster, topic, sink, promised(word, topic), spark, **more).run()
    assert (ran.rows, ran.buried) == (20, 0)
    assert Counter(value.decode() for value in read_all(cluster.bootstrap, out)) == TOGETHER


def test_a_client_of_its_own_would_have_them_refused(cluster: Cluster) -> None:
    """The control: the topic does refuse the same records, when a client puts them into one batch."""
    out = new_topic(cluster.bootstrap, max_message_bytes=4000)
    refused: list[KafkaError | None] = []
    client = make_client({"bootstrap.servers": cluster.bootstrap, "linger.ms": 500})
    for value in TOGETHER:
        client.produce(out, value, partition=0, on_delivery=lambda error, _message: refused.append(error))
    assert client.flush(30) == 0
    assert [error and error.code() for error in refused] == [KafkaError.MSG_SIZE_TOO_LARGE] * 20
