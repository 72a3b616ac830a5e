"""A record that a broker refuses, where no dead letters are kept: told at once, with its way out, and that is one."""

from __future__ import annotations

import time
from collections import Counter

import pytest
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
from kept.spark import Limits
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
