"""Which topics a pipeline reads: Kafka's own are not among them, none of its own is gone, and none is its sink."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import kept
from kept.admin.topics import Topics
from kept.errors import FixConfiguration, SourceChanged
from kept.guarantees import Guarantee
from kept.local import Cluster
from kept.spark import KafkaSource
from kept.spark.looking import Looking
from tests.conftest import Eventually
from tests.spark.things import OutKafka, OutPostgres, each_once, fill, out_of, pipeline


@pytest.fixture
def out(dsn: str) -> OutPostgres:
    return OutPostgres(dsn)


def another(cluster: Cluster, name: str) -> str:
    Topics(cluster.bootstrap).create(name, 3, kept.ExactlyOnce("tests"))
    return name


def test_a_pattern_leaves_kafkas_own_topics_out(
    cluster: Cluster, topic: str, out: OutPostgres, exactly: Guarantee, spark: SparkSession
) -> None:
    another(cluster, f"__{topic}")  # a user's own, whatever it is called
    fill(cluster, topic, 30)
    fill(cluster, f"__{topic}", 30, 30)
    source = KafkaSource(cluster.bootstrap, pattern=f"{topic}|__{topic}|__consumer_offsets|__transaction_state")
    ran = pipeline(cluster, topic, out.sink, exactly, spark, source=source).run()
    stands = {each: out.recorded(each) for each in (topic, f"__{topic}", "__consumer_offsets")}
    whole = {0: 10, 1: 10, 2: 10}
    assert stands == {topic: whole, f"__{topic}": whole, "__consumer_offsets": {}}, ran
    assert out.held() == each_once(60)


@pytest.mark.parametrize("into", ["postgres", "kafka"])
def test_a_topic_of_a_pattern_that_was_deleted_while_it_was_down_stops_it(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    topic: str,
    exactly: Guarantee,
    spark: SparkSession,
    eventually: Eventually,
    into: str,
) -> None:
    out = out_of(request, into)
    gone = another(cluster, f"{topic}-gone")
    for each, start in ((topic, 0), (gone, 30)):
        fill(cluster, each, 30, start)
    both = KafkaSource(cluster.bootstrap, pattern=f"{topic}(-gone)?")
    pipeline(cluster, topic, out.sink, exactly, spark, source=both).run()
    Topics(cluster.bootstrap).delete(gone)
    looking = Looking({"bootstrap.servers": cluster.bootstrap})
    eventually(lambda: gone not in looking.topics(), "the topic is gone")
    fill(cluster, topic, 30, 60)
    with pytest.raises(SourceChanged, match=f"{gone} was read by") as stopped:
        pipeline(cluster, topic, out.sink, exactly, spark, source=both).run()
    assert out.held() == each_once(60)
    narrower = KafkaSource(cluster.bootstrap, pattern=stopped.value.way_out.rpartition("the pattern: ")[2])
    pipeline(cluster, topic, out.sink, exactly, spark, source=narrower).run()
    assert out.held() == each_once(90)


def test_a_sink_that_is_read_is_refused(
    cluster: Cluster, topic: str, into_kafka: OutKafka, exactly: Guarantee, spark: SparkSession
) -> None:
    fill(cluster, topic, 30)
    with pytest.raises(FixConfiguration, match="writes to it"):
        pipeline(cluster, topic, kept.KafkaSink(cluster.bootstrap, topic), exactly, spark)
    elsewhere = ",".join(reversed(cluster.bootstrap.split(",")))
    sources = {
        "by another address": KafkaSource(elsewhere, [topic, into_kafka.topic]),
        "by a pattern": KafkaSource(cluster.bootstrap, pattern=f".*{topic}"),
    }
    for source in sources.values():
        with pytest.raises(FixConfiguration, match=f"reads {into_kafka.topic}, and writes to it"):
            pipeline(cluster, topic, into_kafka.sink, exactly, spark, source=source).run()
    assert into_kafka.held().total() == 0
