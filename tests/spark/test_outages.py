"""A broker and the database are lost in the midst of pipelines: they ride it out, or stop loudly and go on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

import kept
from kept.admin.topics import Topics
from kept.local import Cluster
from kept.pipelines.telling import BatchDone
from kept.spark import KafkaSink, kafka_topics
from kept.spark.kafka_records import Shape
from kept.spark.kafka_sink import KafkaDriver
from kept.verify.proxy import beside
from tests.conftest import Eventually
from tests.spark.drivers import Order, gone_on
from tests.spark.test_upkeep import Piped
from tests.spark.things import OutKafka, each_once, fill

COUNT, PER_BATCH = 3000, 300
BROKER_DIES, DATABASE_DIES = 600, 1800


@pytest.mark.parametrize("word", ["exactly-once", pytest.param("at-least-once", marks=pytest.mark.slow)])
def test_pipelines_outlive_the_leader_of_a_partition_and_the_database(
    mended: Cluster, topic: str, dsn: str, spark: SparkSession, eventually: Eventually, word: str
) -> None:
    """Each broker leads one of the three source partitions, and this one a partition of the sink, too.

    Each pipeline waits before the batch in which something is to happen, and is let go when it happens.
    """
    fill(mended, topic, COUNT)
    topics, out = Topics(mended.bootstrap), f"out-of-{topic}"
    topics.create(out, 2, kept.ExactlyOnce("tests"))
    table = Order(mended.bootstrap, topic, f"to-{topic}", dsn, word=word, per_batch=PER_BATCH)
    orders = [table, replace(table, dsn=None, out_topic=out)]
    seen: Counter[str] = Counter()
    goes_on = {BROKER_DIES: threading.Event(), DATABASE_DIES: threading.Event()}

    def run(order: Order) -> list[kept.KeptError]:
        def hear(batch: BatchDone) -> None:
            seen[order.kind] += batch.rows + batch.dropped
            for count, event in goes_on.items():
                assert seen[order.kind] < count or event.wait(200)

        return gone_on(order, spark, hear)

    def all_at(count: int) -> bool:
        return all(seen[order.kind] >= count for order in orders)

    with ThreadPoolExecutor(len(orders)) as pool:
        try:
            running = [pool.submit(run, order) for order in orders]
            eventually(lambda: all_at(BROKER_DIES), "both have begun", within=90)
            goes_on[BROKER_DIES].set()
            mended.broker(topics.describe(out).partitions[0].leader).kill()
            killed = time.monotonic()
            eventually(lambda: all_at(DATABASE_DIES), "both have gone on without it", within=120)
            print(f"both have gone on {time.monotonic() - killed:.1f} s after a broker's end")
            goes_on[DATABASE_DIES].set()
            if word == "exactly-once":
                mended.postgres.kill()
                mended.postgres.start()
            else:
                mended.postgres.restart()
            print("stopped by", [each.result(120) for each in running])
        finally:
            for event in goes_on.values():
                event.set()
    for order in orders:
        held = order.out.held()
        assert each_once(COUNT) == held if word == "exactly-once" else each_once(COUNT) <= held


def test_a_driver_waits_for_brokers_that_are_away_when_a_batch_begins(
    cluster: Cluster, topic: str, into_kafka: OutKafka, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its tasks do: only the sink's brokers are away, and nobody has begun to write."""
    look, away = kafka_topics.refuse_missing_topic, list[kept.TryAgain]()

    def looked(admin: AdminClient, topic: str) -> None:
        try:
            look(admin, topic)
        except kept.TryAgain as error:
            away.append(error)
            raise

    monkeypatch.setattr(kafka_topics, "CONNECTS_WITHIN", 1.0)
    monkeypatch.setattr(kafka_topics, "refuse_missing_topic", looked)
    with beside(cluster) as proxy:
        piped = Piped(into_kafka.name, cluster, topic, KafkaSink(proxy.bootstrap, into_kafka.topic))
        with piped.driver() as (driver, _), ThreadPoolExecutor(1) as pool:
            assert isinstance(driver, KafkaDriver)
            driver._shape = Shape(("value",), into_kafka.topic)
            proxy.cut()
            waiting = pool.submit(driver.for_tasks)
            eventually(lambda: away, "it has met nobody")
            proxy.mend()
            waiting.result(60)
