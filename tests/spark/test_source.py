"""Rules 2, 3, 6 and 8 on real servers: a source, or progress, that is not what it was."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import kept
from kept.admin.topics import Topics
from kept.consumer import Start
from kept.errors import FixConfiguration, Gap, ProgressLost, ProgressMoved, SourceChanged
from kept.guarantees import Guarantee
from kept.local import Cluster
from kept.local.ports import ANY_FREE, BROKERS
from kept.local.tether import tethered
from kept.spark import KafkaSource, UntilEnd
from kept.spark.looking import Looking
from tests.conftest import Eventually, Grow
from tests.spark.things import OutKafka, OutPostgres, each_once, fill, pipeline, values


@pytest.fixture
def out(dsn: str) -> OutPostgres:
    return OutPostgres(dsn)


def made_anew(cluster: Cluster, topic: str, eventually: Eventually) -> None:
    before = Looking({"bootstrap.servers": cluster.bootstrap}).partitions(topic)[0]
    Topics(cluster.bootstrap).delete(topic)

    def made() -> bool:
        try:
            Topics(cluster.bootstrap).create(topic, 3, kept.ExactlyOnce("tests"))
        except kept.KeptError:
            return False
        return True

    eventually(made, "the topic is gone, and can be made again")
    looking = Looking({"bootstrap.servers": cluster.bootstrap})

    def another() -> bool:
        try:
            return looking.partitions(topic)[0] != before
        except kept.FixConfiguration:
            return False  # the broker that was asked does not know it yet

    eventually(another, "another topic of the same name")


def test_a_topic_that_was_made_anew_stops_both_sinks(
    cluster: Cluster,
    topic: str,
    out: OutPostgres,
    into_kafka: OutKafka,
    exactly: Guarantee,
    spark: SparkSession,
    eventually: Eventually,
) -> None:
    """Rule 3. Deleting the source also deletes its group offsets: progress is not among them."""
    fill(cluster, topic, 30)
    for sink in (out.sink, into_kafka.sink):
        pipeline(cluster, topic, sink, exactly, spark).run()
    made_anew(cluster, topic, eventually)
    fill(cluster, topic, 60)
    for sink in (out.sink, into_kafka.sink):
        with pytest.raises(SourceChanged, match="made anew"):
            pipeline(cluster, topic, sink, exactly, spark).run()
    assert out.held() == into_kafka.held() == each_once(30)


def test_records_that_were_deleted_before_they_were_read_are_counted(
    cluster: Cluster, topic: str, out: OutPostgres, exactly: Guarantee, spark: SparkSession
) -> None:
    fill(cluster, topic, 30)
    pipeline(cluster, topic, out.sink, exactly, spark).run()
    fill(cluster, topic, 30, 30)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})  # it has to live until the answer is there
    (deleted,) = admin.delete_records([TopicPartition(topic, 1, 15)]).values()
    deleted.result(30)
    with pytest.raises(Gap, match=r"5 offsets from .* were deleted before they were read"):
        pipeline(cluster, topic, out.sink, exactly, spark).run()
    assert out.held() == each_once(30)


def test_progress_beyond_the_end_of_the_log_stops(
    cluster: Cluster, topic: str, out: OutPostgres, exactly: Guarantee, spark: SparkSession
) -> None:
    fill(cluster, topic, 30)
    pipeline(cluster, topic, out.sink, exactly, spark).run()
    with psycopg.connect(out.dsn) as connection:
        connection.execute("UPDATE kept_progress SET next_offset = 11, owner = '' WHERE partition = 2")
    with pytest.raises(SourceChanged, match="the log was cut"):
        pipeline(cluster, topic, out.sink, exactly, spark).run()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """All its brokers may die: with the logs of every other test they would take minutes to come back."""
    with tethered(Cluster(tmp_path / "cluster")) as cluster:
        cluster.up(ports=ANY_FREE)
        yield cluster


@pytest.mark.slow
def test_logs_that_lost_their_tails_and_were_filled_again_stop_both_sinks(
    own_cluster: Cluster, topic: str, out: OutPostgres, exactly: Guarantee, spark: SparkSession
) -> None:
    """Rule 3, as after a power loss that every broker had: what was never written to a disk is gone, of all copies."""
    into_kafka = OutKafka(own_cluster.bootstrap, f"out-of-{topic}", f"to-{topic}")
    for name, partitions in ((topic, 3), (into_kafka.topic, 2)):
        Topics(own_cluster.bootstrap).create(name, partitions, kept.ExactlyOnce("tests"))
    fill(own_cluster, topic, 300)
    for sink in (out.sink, into_kafka.sink):
        pipeline(own_cluster, topic, sink, exactly, spark).run()
    brokers = [own_cluster.broker(number) for number in BROKERS]
    for broker in brokers:
        broker.kill()
    logs = [log for broker in brokers for log in broker.data.glob(f"{topic}-*/*.log")]
    assert len(logs) == 9
    for log in logs:
        os.truncate(log, log.stat().st_size // 2)
    own_cluster.up()
    fill(own_cluster, topic, 600, 1000)  # so that every position is inside again
    for sink in (out.sink, into_kafka.sink):
        with pytest.raises(SourceChanged, match="the log was cut"):
            pipeline(own_cluster, topic, sink, exactly, spark).run()
    assert out.held() == into_kafka.held() == each_once(300)


def test_a_log_that_was_cut_and_filled_again_stops_and_an_election_does_not(
    mended: Cluster, topic: str, out: OutPostgres, exactly: Guarantee, spark: SparkSession, eventually: Eventually
) -> None:
    """Rule 3: progress says that leader epoch e was read up to 20, and the brokers know that e ended at 10."""
    fill(mended, topic, 30)
    pipeline(mended, topic, out.sink, exactly, spark).run()
    admin = AdminClient({"bootstrap.servers": mended.bootstrap})

    def leader() -> int:
        return admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader

    before = leader()
    mended.broker(before).kill()
    eventually(lambda: leader() not in (before, -1), "another leader", within=60)
    fill(mended, topic, 30, 30)
    pipeline(mended, topic, out.sink, exactly, spark).run()
    assert out.held() == each_once(60)
    with psycopg.connect(out.dsn) as connection:
        ((epoch,),) = connection.execute("SELECT leader_epoch FROM kept_progress WHERE partition = 0").fetchall()
        assert epoch >= 1
        connection.execute("UPDATE kept_progress SET leader_epoch = 0 WHERE partition = 0")
    with pytest.raises(SourceChanged, match=r"leader epoch 0\) ends at 10: the log was cut"):
        pipeline(mended, topic, out.sink, exactly, spark).run()


def test_partitions_that_were_added_are_read_from_their_beginning(
    cluster: Cluster,
    topic: str,
    out: OutPostgres,
    into_kafka: OutKafka,
    exactly: Guarantee,
    spark: SparkSession,
    grow: Grow,
) -> None:
    fill(cluster, topic, 30)
    for sink in (out.sink, into_kafka.sink):
        pipeline(cluster, topic, sink, exactly, spark).run()
    grow(topic, 5)
    with kept.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
        for number in range(30, 40):
            producer.send(topic, f"v{number}", key=str(number), partition=3 + number % 2)
    for sink in (out.sink, into_kafka.sink):
        pipeline(cluster, topic, sink, exactly, spark).run()
    assert out.held() == into_kafka.held() == each_once(40)
    assert out.recorded(topic) == {0: 10, 1: 10, 2: 10, 3: 5, 4: 5}


def test_a_pattern_finds_topics_and_those_that_come_later_begin_at_their_beginning(
    cluster: Cluster, topic: str, out: OutPostgres, exactly: Guarantee, spark: SparkSession
) -> None:
    source = KafkaSource(cluster.bootstrap, pattern=f"{topic}.*", start=Start.END)
    fill(cluster, topic, 30)
    pipeline(cluster, topic, out.sink, exactly, spark, source=source).run()
    assert out.held().total() == 0, "it was born at the end"
    later = f"{topic}-later"
    Topics(cluster.bootstrap).create(later, 3, kept.ExactlyOnce("tests"))
    fill(cluster, later, 30)
    pipeline(cluster, topic, out.sink, exactly, spark, source=source).run()
    assert out.held() == each_once(30)
    assert out.recorded(topic) == {0: 10, 1: 10, 2: 10}


def delete_below(cluster: Cluster, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})  # it has to live until the answer is there
    places = [TopicPartition(topic, number, offset) for number in range(3)]
    for deleted in admin.delete_records(places).values():
        deleted.result(30)


def test_a_checkpoint_behind_what_was_deleted_is_no_loss(
    cluster: Cluster, topic: str, out: OutPostgres, exactly: Guarantee, spark: SparkSession, tmp_path: Path
) -> None:
    """The records between are done: progress in the sink is beyond them, and only the checkpoint asks for them."""
    notes, old = tmp_path / "notes", tmp_path / "old"
    fill(cluster, topic, 30)
    pipeline(cluster, topic, out.sink, exactly, spark, checkpoint=str(notes)).run()
    shutil.copytree(notes, old)
    fill(cluster, topic, 30, 30)
    pipeline(cluster, topic, out.sink, exactly, spark, checkpoint=str(notes)).run()
    delete_below(cluster, topic, 15)
    fill(cluster, topic, 30, 60)
    with pytest.raises(FixConfiguration, match="nothing is lost") as stopped:
        pipeline(cluster, topic, out.sink, exactly, spark, checkpoint=str(old)).run()
    assert "move the checkpoint away" in stopped.value.way_out
    pipeline(cluster, topic, out.sink, exactly, spark, checkpoint=str(tmp_path / "new")).run()
    assert out.held() == each_once(90)


def test_a_topic_found_later_that_begins_above_nought_is_no_loss(
    cluster: Cluster, topic: str, out: OutPostgres, exactly: Guarantee, spark: SparkSession, tmp_path: Path
) -> None:
    source = KafkaSource(cluster.bootstrap, pattern=f"{topic}.*")
    fill(cluster, topic, 30)
    pipeline(cluster, topic, out.sink, exactly, spark, source=source, checkpoint=str(tmp_path / "notes")).run()
    later = f"{topic}-later"
    Topics(cluster.bootstrap).create(later, 3, kept.ExactlyOnce("tests"))
    fill(cluster, later, 30)
    delete_below(cluster, later, 10)
    fill(cluster, later, 30, 30)
    for _ in range(2):
        with pytest.raises(FixConfiguration, match="nothing is lost"):
            pipeline(cluster, topic, out.sink, exactly, spark, source=source, checkpoint=str(tmp_path / "notes")).run()
    pipeline(cluster, topic, out.sink, exactly, spark, source=source, checkpoint=str(tmp_path / "new")).run()
    assert out.held() == each_once(60)


def test_a_pipeline_may_be_born_at_a_time(
    cluster: Cluster, topic: str, out: OutPostgres, exactly: Guarantee, spark: SparkSession
) -> None:
    fill(cluster, topic, 30)
    time.sleep(0.05)
    born = datetime.now(tz=timezone.utc)
    time.sleep(0.05)
    fill(cluster, topic, 30, 30)
    source = KafkaSource(cluster.bootstrap, topic, start=born)
    pipeline(cluster, topic, out.sink, exactly, spark, source=source).run()
    assert out.held() == each_once(60) - each_once(30)


def broken_at(offset: int) -> object:
    def transform(frame: DataFrame) -> DataFrame:
        poison = (F.col("_kept_partition") == 0) & (F.col("_kept_offset") == offset)
        return values(frame).withColumn("v", F.when(poison, F.raise_error(F.lit("cut short"))).otherwise(F.col("v")))

    return transform


def test_input_that_was_cut_short_is_read_again_from_there(
    cluster: Cluster, topic: str, out: OutPostgres, exactly: Guarantee, spark: SparkSession
) -> None:
    """Rule 8: the task of partition 0 sees a normal end after some rows; its batch's end would lose the others."""
    fill(cluster, topic, 1500)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        with pytest.raises(Exception, match="cut short"):
            pipeline(cluster, topic, out.sink, exactly, spark, transform=broken_at(250)).run()
        assert out.recorded(topic)[0] <= 250
        pipeline(cluster, topic, out.sink, exactly, spark).run()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert out.held() == each_once(1500)
    assert out.recorded(topic) == {0: 500, 1: 500, 2: 500}


def test_rows_that_are_filtered_out_do_not_hold_progress_back(
    cluster: Cluster, topic: str, into_kafka: OutKafka, exactly: Guarantee, spark: SparkSession
) -> None:
    fill(cluster, topic, 30)
    few = pipeline(
        cluster,
        topic,
        into_kafka.sink,
        exactly,
        spark,
        transform=lambda frame: frame.select("value", *kept.spark.POSITION).where("value = 'v0'"),
    )
    assert few.run().rows == 1
    assert into_kafka.recorded(topic) == {0: 10, 1: 10, 2: 10}


def test_a_stranger_in_the_group_is_noticed(
    cluster: Cluster, topic: str, into_kafka: OutKafka, exactly: Guarantee, spark: SparkSession
) -> None:
    """Rule 6: an offset without our signature stops the pipeline, one that is gone comes back from its copy."""
    fill(cluster, topic, 30)
    pipeline(cluster, topic, into_kafka.sink, exactly, spark).run()
    group = f"kept.to-{topic}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_consumer_groups([group])[group].result(30)
    fill(cluster, topic, 30, 30)
    assert pipeline(cluster, topic, into_kafka.sink, exactly, spark).run().rows == 30
    assert into_kafka.held() == each_once(60)
    stranger = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    stranger.commit(offsets=[TopicPartition(f"kept.progress.{topic}", 1, 0)], asynchronous=False)
    stranger.close()
    with pytest.raises(ProgressMoved, match="lacks the signature"):
        pipeline(cluster, topic, into_kafka.sink, exactly, spark).run()
    assert into_kafka.held() == each_once(60)


def test_progress_that_is_gone_with_its_copy_is_not_taken_for_a_new_beginning(
    cluster: Cluster, topic: str, into_kafka: OutKafka, exactly: Guarantee, spark: SparkSession, eventually: Eventually
) -> None:
    fill(cluster, topic, 30)
    pipeline(cluster, topic, into_kafka.sink, exactly, spark).run()
    Topics(cluster.bootstrap).delete(f"kept.progress.{topic}")
    eventually(lambda: into_kafka.recorded(topic)[0] < 0, "its offsets are deleted, too")
    with pytest.raises(ProgressLost):
        pipeline(cluster, topic, into_kafka.sink, exactly, spark).run()
    assert into_kafka.held() == each_once(30)


def test_lag_tools_see_the_progress(
    cluster: Cluster, topic: str, out: OutPostgres, exactly: Guarantee, spark: SparkSession, eventually: Eventually
) -> None:
    fill(cluster, topic, 30)
    pipeline(cluster, topic, out.sink, exactly, spark, trigger=UntilEnd()).run()
    client = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": f"kept.to-{topic}"})

    def shown() -> bool:
        places = client.committed([TopicPartition(topic, number) for number in range(3)], timeout=30)
        return [place.offset for place in places] == [10, 10, 10]

    try:
        eventually(shown, "the group shows where the pipeline stands")
    finally:
        client.close()
