"""Spark's own writer with a format of kept: the promises of a pipeline, kept for a query that a user starts."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.readwriter import DataStreamWriter

import kept
from kept.local import Cluster
from kept.spark import POSITION, register, with_position
from tests.conftest import Eventually
from tests.spark.things import Out, OutKafka, OutPostgres, each_once, fill, out_of, records, values

ADAPTIVE = "spark.sql.adaptive.enabled"
WORDS = ["at-most-once", "at-least-once", "exactly-once"]


@pytest.fixture(params=["postgres", "kafka"])
def out(request: pytest.FixtureRequest) -> Out:
    """Each of the sinks: the same must hold for all."""
    return out_of(request, request.param)


@pytest.fixture
def rows(spark: SparkSession, cluster: Cluster, topic: str) -> DataFrame:
    """The topic from its beginning, as a user of Spark reads it, with one call more."""
    register(spark)
    return read(spark, cluster, topic)


def read(spark: SparkSession, cluster: Cluster, topic: str, **options: str) -> DataFrame:
    told = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, "startingOffsets": "earliest", **options}
    return with_position(spark.readStream.format("kafka").options(**told).load())


def writer(rows: DataFrame, out: Out, topic: str, word: str = "exactly-once", **options: str) -> DataStreamWriter:
    """Everything that is there now, into the sink."""
    if isinstance(out, OutPostgres):
        frame, name, told = values(rows), "kept_postgres", {"dsn": out.dsn, "table": "out"}
    else:
        assert isinstance(out, OutKafka)
        frame, name = records(rows), "kept_kafka"
        told = {"kafka.bootstrap.servers": out.bootstrap, "topic": out.topic}
    told |= {"pipeline": f"to-{topic}", "guarantee": word, **options}
    return frame.writeStream.format(name).options(**told).trigger(availableNow=True)


def run(begun: DataStreamWriter) -> None:
    query = begun.start()
    try:
        assert query.awaitTermination(120), "it has not ended"
    finally:
        query.stop()


@pytest.mark.parametrize("word", WORDS)
def test_every_row_arrives_and_progress_says_so(
    cluster: Cluster, topic: str, out: Out, rows: DataFrame, word: str
) -> None:
    fill(cluster, topic, 300, transactions=True)
    run(writer(rows, out, topic, word))
    assert out.held() == each_once(300)
    # Behind a transaction's records stands its marker: progress has moved over it, which no task could do.
    assert out.recorded(topic) == {0: 101, 1: 101, 2: 101}


def test_a_topic_that_is_read_is_not_written(topic: str, into_kafka: OutKafka, rows: DataFrame) -> None:
    with pytest.raises(kept.FixConfiguration, match=f"reads {topic}, and writes to it"):
        writer(rows, into_kafka, topic).option("topic", topic).start()


def test_rows_that_a_filter_left_out_are_no_gap(cluster: Cluster, topic: str, dsn: str, rows: DataFrame) -> None:
    """The last rows of each range are filtered away: who only sees rows could not tell them from rows that are lost."""
    out = OutPostgres(dsn)
    fill(cluster, topic, 90)
    below = rows.where("cast(cast(key as string) as int) < 45")
    run(writer(below, out, topic))
    assert out.held() == each_once(45)
    assert out.recorded(topic) == {0: 30, 1: 30, 2: 30}
    fill(cluster, topic, 45)
    run(writer(below, out, topic))
    assert out.held() == each_once(45) + each_once(45)


def test_a_batch_that_spark_did_not_write_down_is_repeated_without_effect(
    cluster: Cluster, topic: str, out: Out, rows: DataFrame, tmp_path: Path
) -> None:
    """What a driver leaves that died after the sink wrote: offsets/N without commits/N."""
    fill(cluster, topic, 300)
    checkpoint = tmp_path / "checkpoint"
    run(writer(rows, out, topic, checkpointLocation=str(checkpoint)))
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink()
    fill(cluster, topic, 30, 300)
    run(writer(rows, out, topic, checkpointLocation=str(checkpoint)))
    assert out.held() == each_once(330)


def test_without_its_checkpoint_it_goes_on_where_it_was_even_from_the_latest(
    cluster: Cluster, topic: str, out: Out, rows: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    """Rule 2: Spark alone would begin at the end of the log, and skip what has come meanwhile."""
    fill(cluster, topic, 90)
    checkpoint = tmp_path / "checkpoint"
    run(writer(rows, out, topic, checkpointLocation=str(checkpoint)))
    shutil.rmtree(checkpoint)
    fill(cluster, topic, 30, 90)
    latest = read(spark, cluster, topic, startingOffsets="latest")
    run(writer(latest, out, topic, checkpointLocation=str(checkpoint)))
    assert out.held() == each_once(120)


def test_the_latest_is_where_the_log_ended_at_birth(
    cluster: Cluster, topic: str, dsn: str, rows: DataFrame, spark: SparkSession
) -> None:
    out = OutPostgres(dsn)
    fill(cluster, topic, 30)
    latest = read(spark, cluster, topic, startingOffsets="latest")
    run(writer(latest, out, topic))
    assert out.held() == Counter()
    fill(cluster, topic, 30, 30)
    run(writer(latest, out, topic))
    assert out.held() == each_once(60) - each_once(30)


def test_a_checkpoint_of_another_query_is_gone_on_from_only_when_that_is_said(
    cluster: Cluster, topic: str, dsn: str, rows: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    """A user changes the format of a query that has run before: from the latest on, its backlog would be lost."""
    out, checkpoint = OutPostgres(dsn), str(tmp_path / "checkpoint")
    fill(cluster, topic, 30)
    before = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
    run(before.trigger(availableNow=True))
    fill(cluster, topic, 30, 30)
    latest = read(spark, cluster, topic, startingOffsets="latest")
    with pytest.raises(kept.FixConfiguration, match=r"is new to the pipeline .* has been used before") as caught:
        writer(latest, out, topic, checkpointLocation=checkpoint).start()
    assert '.option("start", "batch 1")' in caught.value.way_out
    run(writer(latest, out, topic, checkpointLocation=checkpoint, start="batch 1"))
    assert out.held() == each_once(60) - each_once(30)
    fill(cluster, topic, 30, 60)
    run(writer(latest, out, topic, checkpointLocation=checkpoint, start="batch 1"))  # left in the code, it says no more
    assert out.held() == each_once(90) - each_once(30)
    with psycopg.connect(dsn) as connection:
        connection.execute("DROP TABLE out, kept_progress, kept_pipelines")
    with pytest.raises(kept.FixConfiguration, match=r"its next batch is 3") as caught:
        writer(latest, out, topic, checkpointLocation=checkpoint, start="batch 1").start()
    assert "restore the sink" in caught.value.way_out
    with pytest.raises(kept.FixConfiguration, match=r"nowhere has no batch to go on with"):
        writer(latest, out, topic, checkpointLocation=str(tmp_path / "nowhere"), start="batch 1").start()
    assert out.held() == Counter()


def test_a_checkpoint_that_is_ahead_of_the_sink_stops_the_query(
    cluster: Cluster, topic: str, dsn: str, rows: DataFrame, tmp_path: Path
) -> None:
    """Rule 2: the sink went back in time, and the checkpoint did not."""
    out, checkpoint = OutPostgres(dsn), str(tmp_path / "checkpoint")
    fill(cluster, topic, 90)
    run(writer(rows, out, topic, checkpointLocation=checkpoint))
    with psycopg.connect(dsn) as connection:
        connection.execute("DELETE FROM out")
        connection.execute("UPDATE kept_progress SET next_offset = 0, owner = ''")
    fill(cluster, topic, 30, 90)
    with pytest.raises(StreamingQueryException, match=r"the input starts at 30, progress is .*@0"):
        run(writer(rows, out, topic, checkpointLocation=checkpoint))
    assert out.held() == Counter()


def test_of_two_queries_of_one_pipeline_the_older_ends(
    cluster: Cluster, topic: str, out: Out, rows: DataFrame, eventually: Eventually
) -> None:
    fill(cluster, topic, 90)
    older = writer(rows, out, topic).trigger(processingTime="0 seconds").start()
    try:
        eventually(lambda: out.held().total() == 90, "the older one has written")
        run(writer(rows, out, topic))
        fill(cluster, topic, 90, 90)
        eventually(lambda: not older.isActive, "the older one has met its successor")
        assert "Fenced" in str(older.exception())
        assert out.held() == each_once(90)
        run(writer(rows, out, topic))
        assert out.held() == each_once(180)
    finally:
        older.stop()


def test_a_writer_starts_as_often_as_it_is_told_and_leaves_nothing_open(
    cluster: Cluster, topic: str, dsn: str, rows: DataFrame, eventually: Eventually
) -> None:
    out = OutPostgres(dsn)
    again = writer(rows, out, topic)
    for count in (30, 60):
        fill(cluster, topic, 30, count - 30)
        run(again)
        assert out.held() == each_once(count)

    def nobody_else() -> bool:
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        with psycopg.connect(dsn) as connection:
            return connection.execute(others).fetchall() == [(0,)]

    eventually(nobody_else, "no connection is left")


def test_all_said_in_start(
    cluster: Cluster, topic: str, dsn: str, rows: DataFrame, request: pytest.FixtureRequest, spark: SparkSession
) -> None:
    """In a session as a user has it: ours makes no adaptive plans, Spark's own does."""
    before = str(spark.conf.get(ADAPTIVE))
    request.addfinalizer(lambda: spark.conf.set(ADAPTIVE, before))
    spark.conf.set(ADAPTIVE, "true")
    fill(cluster, topic, 30)
    told = {"dsn": dsn, "table": "out", "pipeline": f"to-{topic}", "guarantee": "exactly-once"}
    bare = values(rows).writeStream.trigger(availableNow=True)
    query = bare.start(format="kept_postgres", outputMode="append", queryName=f"named-{topic}", **told)
    try:
        assert query.name == f"named-{topic}"
        assert query.awaitTermination(120)
    finally:
        query.stop()
    assert OutPostgres(dsn).held() == each_once(30)


def test_other_formats_are_spark_s_own(cluster: Cluster, topic: str, spark: SparkSession, rows: DataFrame) -> None:
    fill(cluster, topic, 30)
    ours = DataStreamWriter.start
    register(spark)
    assert DataStreamWriter.start is ours, "once is enough"
    name = f"seen_{topic.replace('-', '_')}"
    run(values(rows).writeStream.format("memory").queryName(name).trigger(availableNow=True))
    assert spark.table(name).count() == 30


def by_view(frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView("to_drop_in")
    place = "_kept_topic, _kept_partition, _kept_offset"
    made = frame.sparkSession.sql(f"SELECT value, {place} FROM (SELECT * FROM to_drop_in WHERE key IS NOT NULL) q")
    frame.sparkSession.catalog.dropTempView("to_drop_in")
    return made


def test_a_frame_by_sql_and_by_other_names(cluster: Cluster, topic: str, dsn: str, rows: DataFrame) -> None:
    """The place of each row may have had another name in between: it is told by Spark's own ids."""
    fill(cluster, topic, 30)
    renamed = by_view(rows).withColumnRenamed("_kept_offset", "o").withColumn("_kept_offset", F.col("o")).drop("o")
    run(writer(renamed, OutPostgres(dsn), topic))
    assert OutPostgres(dsn).held() == each_once(30)


REFUSED: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "shuffled": (lambda frame: frame.repartition(3), "because of Repartition"),
    "united with itself": (lambda frame: frame.union(frame), "because of Union"),
    "one row becomes more": (lambda frame: frame.select("*", F.explode(F.array("value"))), "because of Generate"),
    "without its place": (lambda frame: frame.drop("_kept_offset"), "the frame lacks _kept_offset"),
    "another place": (
        lambda frame: frame.withColumn("_kept_offset", F.col("offset") + 1),
        "something else than the place in the source is in _kept_offset",
    ),
    "places exchanged": (
        lambda frame: frame.withColumn("_kept_offset", F.col("partition").cast("long")),
        "something else than the place in the source is in _kept_offset",
    ),
    "not from Kafka": (
        lambda frame: frame.sparkSession.readStream.format("rate").load().selectExpr("*", "1 as _kept_offset"),
        "is read from rate, not from Kafka",
    ),
}


@pytest.mark.parametrize(("changed", "told"), REFUSED.values(), ids=REFUSED)
def test_frames_that_cannot_be_kept_are_refused_before_anything_is_made(
    dsn: str, rows: DataFrame, changed: Callable[[DataFrame], DataFrame], told: str
) -> None:
    options = {"dsn": dsn, "table": "out", "pipeline": "never", "guarantee": "exactly-once"}
    with pytest.raises(kept.FixConfiguration, match=told):
        changed(rows).writeStream.format("kept_postgres").options(**options).start()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT to_regclass('kept_progress')").fetchall() == [(None,)]


def test_ends_that_contradict_the_guarantee_are_refused(
    cluster: Cluster, topic: str, dsn: str, rows: DataFrame, spark: SparkSession
) -> None:
    out = OutPostgres(dsn)
    for name, value in {"failOnDataLoss": "false", "kafka.isolation.level": "read_uncommitted"}.items():
        with pytest.raises(kept.WeakensGuarantee, match=name):
            writer(read(spark, cluster, topic, **{name: value}), out, topic).start()
    with pytest.raises(kept.FixConfiguration, match="does not know the option batchsize"):
        writer(rows, out, topic, batchSize="9").start()
    with pytest.raises(kept.FixConfiguration, match="lays out no files"):
        writer(rows, out, topic).partitionBy("v").start()
    with pytest.raises(kept.FixConfiguration, match="this trigger makes none"):
        writer(rows, out, topic).trigger(continuous="1 second").start()
    with pytest.raises(kept.FixConfiguration, match="no complete result"):
        writer(rows, out, topic).outputMode("complete").start()
    with pytest.raises(kept.FixConfiguration, match="does not come straight from Kafka"):
        with_position(rows.select("value", *POSITION))
