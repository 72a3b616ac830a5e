"""From one Kafka into another: rows, progress and staging live in the sink's, and the source's is only read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

import kept
from kept.consumer import Start
from kept.errors import FixConfiguration, SourceChanged
from kept.guarantees import Guarantee
from kept.local import Cluster
from kept.spark import Limits
from kept.spark.kafka_sink import KafkaDriver
from kept.spark.looking import Looking
from tests.spark.batches import PowerCut, both_sides, power_cut, spread_records
from tests.spark.elsewhere import another_cluster, make_topic
from tests.spark.things import Faulty, OutKafka, each_once, fill, pipeline


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with another_cluster(tmp_path_factory.mktemp("elsewhere") / "cluster") as another:
        yield another


@pytest.fixture
def out(elsewhere: Cluster, topic: str) -> OutKafka:
    """A topic that has the name of the source, as a mirror has: only the cluster tells them apart."""
    make_topic(elsewhere, topic, 3)
    return OutKafka(elsewhere.bootstrap, topic, f"to-{topic}")


def topics_of(cluster: Cluster) -> set[str]:
    return set(AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=30).topics)


def test_every_row_arrives_once_though_tasks_and_the_driver_die(
    cluster: Cluster,
    topic: str,
    out: OutKafka,
    elsewhere: Cluster,
    exactly: Guarantee,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task dies in its open transaction; the driver when every task has committed, and no range is closed."""
    fill(cluster, topic, 300, transactions=True)
    dying = Faulty(out.sink, out.between["exactly-once"], tmp_path / "died")
    with monkeypatch.context() as patched:
        patched.setattr(KafkaDriver, "close_ranges", lambda *_: power_cut([]))
        with pytest.raises(PowerCut):
            pipeline(cluster, topic, dying, exactly, spark, limits=Limits(rows=40, patience=5)).run()
    assert (tmp_path / "died").exists()
    assert out.held() == each_once(300)
    assert out.recorded(topic) == {0: 100, 1: 100, 2: 100}, "below the markers of the transaction"
    fill(cluster, topic, 30, 300)
    ran = pipeline(cluster, topic, out.sink, exactly, spark).run()
    assert (ran.rows, ran.dropped) == (30, 0), "it goes on from what the sink's cluster says"
    assert out.held() == each_once(330)
    assert out.recorded(topic) == {0: 111, 1: 111, 2: 111}
    assert f"kept.progress.{topic}" in topics_of(elsewhere)
    assert f"kept.progress.{topic}" not in topics_of(cluster), "nothing of ours was made where it is only read"


def test_a_batch_that_is_repeated_is_found_in_the_cluster_of_its_sink(
    cluster: Cluster, topic: str, out: OutKafka, exactly: Guarantee, spark: SparkSession, tmp_path: Path
) -> None:
    """Batch mode: staging, the record of the batch and progress are where the rows go."""
    fill(cluster, topic, 30)
    checkpoint = tmp_path / "checkpoint"
    more = {"transform": spread_records, "checkpoint": str(checkpoint)}
    pipeline(cluster, topic, out.sink, exactly, spark, **more).run()
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    fill(cluster, topic, 30, 30)
    pipeline(cluster, topic, out.sink, exactly, spark, **more).run()
    assert out.held() == both_sides(60)
    assert out.recorded(topic) == {0: 20, 1: 20, 2: 20}
    assert f"kept.staging.to-{topic}" not in topics_of(cluster)


def test_the_topic_of_the_same_name_in_the_other_cluster_is_not_the_source(
    cluster: Cluster, topic: str, out: OutKafka, elsewhere: Cluster, exactly: Guarantee, spark: SparkSession
) -> None:
    """Rule 3: an address that points at the mirror would be read on from offsets that mean other records."""
    sink = kept.KafkaSink(elsewhere.bootstrap, f"out-of-{topic}")
    make_topic(elsewhere, f"out-of-{topic}", 2)
    born = sink.open(out.name, exactly)
    try:
        born.seed({topic: Looking({"bootstrap.servers": cluster.bootstrap}).seeds(topic, Start.BEGINNING)})
    finally:
        born.close()
    fill(elsewhere, topic, 30)
    with pytest.raises(SourceChanged, match="made anew"):
        pipeline(elsewhere, topic, sink, exactly, spark).run()
    assert out.held() == each_once(30), "what was there before, and nothing else"


def test_a_sink_that_only_the_cluster_of_the_source_has_is_refused(
    cluster: Cluster, topic: str, elsewhere: Cluster, exactly: Guarantee
) -> None:
    opened = kept.KafkaSink(elsewhere.bootstrap, topic).open(f"to-{topic}", exactly)
    seeds = Looking({"bootstrap.servers": cluster.bootstrap}).seeds(topic, Start.BEGINNING)
    try:
        with pytest.raises(FixConfiguration, match=f"the topic {topic} cannot be written"):
            opened.seed({topic: seeds})
    finally:
        opened.close()
    assert f"kept.progress.{topic}" not in topics_of(elsewhere)
