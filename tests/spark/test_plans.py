"""Rule 12: partition mode only for projections, filters and one scan; and the place of each row stays with it."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import kept
from kept.progress import Mode
from kept.spark import POSITION, KafkaSource
from kept.spark.plans import carrying, inlined, refuse_other_streams, refuse_without_position, shape
from kept.spark.position import CARRIED

SOURCE = KafkaSource("localhost:1", "payments")
EXACTLY = kept.ExactlyOnce("tested")


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """A source that is never read: only its plan is looked at."""
    return SOURCE.frame(spark, EXACTLY, {"payments": {0: 0}})


def by_sql(frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView("payments")
    statement = "SELECT v.* FROM (SELECT upper(cast(value AS string)) AS v, _kept_topic, _kept_partition, _kept_offset "
    return frame.sparkSession.sql(statement + "FROM payments WHERE key IS NOT NULL) v")


def by_udf(frame: DataFrame) -> DataFrame:
    return frame.select(F.udf(lambda value: value)("value").alias("v"), *POSITION)


def with_a_query(frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView("payments")
    frame.sparkSession.range(3).createOrReplaceTempView("numbers")
    return frame.sparkSession.sql("SELECT *, (SELECT max(id) FROM numbers) AS most FROM payments")


ROW_BY_ROW: dict[str, Callable[[DataFrame], DataFrame]] = {
    "nothing": lambda frame: frame,
    "select and where": lambda frame: frame.select("value", *POSITION).where("value IS NOT NULL"),
    "columns": lambda frame: frame.withColumn("v", F.lit(1)).drop("key").withColumnRenamed("value", "w"),
    "alias": lambda frame: frame.alias("q").select("q.*"),
    "sql and a view": by_sql,
    "a Python function": by_udf,
}
WITHOUT_STATE: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "union": (lambda frame: frame.union(frame), "Union"),
    "explode": (lambda frame: frame.select(F.explode(F.array("value")), *POSITION), "Generate"),
    "repartition": (lambda frame: frame.repartition(3), "Repartition"),
    "join": (lambda frame: frame.join(frame.sparkSession.range(3), F.col("partition") == F.col("id")), "Join"),
    "map in batches": (lambda frame: frame.mapInArrow(lambda batches: batches, frame.schema), "MapInArrow"),
    "a query in a column": (with_a_query, "Project"),
}
WITH_STATE: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "count": (lambda frame: frame.groupBy("key").count(), "Aggregate"),
    "distinct": (lambda frame: frame.dropDuplicates(["key"]), "Deduplicate"),
    "limit": (lambda frame: frame.limit(3), "GlobalLimit"),
    "join of streams": (lambda frame: frame.join(frame.select("key").alias("other"), "key"), "Join"),
}


@pytest.mark.parametrize("transform", ROW_BY_ROW.values(), ids=ROW_BY_ROW)
def test_row_by_row(rows: DataFrame, transform: Callable[[DataFrame], DataFrame]) -> None:
    frame = transform(rows)
    assert shape(frame).mode is Mode.PARTITION
    refuse_without_position(frame, rows)


@pytest.mark.parametrize(("transform", "culprit"), WITHOUT_STATE.values(), ids=WITHOUT_STATE)
def test_not_row_by_row(rows: DataFrame, transform: Callable[[DataFrame], DataFrame], culprit: str) -> None:
    found = shape(transform(rows))
    assert (found.mode, found.stateful) == (Mode.BATCH, False)
    assert culprit in found.in_the_way


@pytest.mark.parametrize(("transform", "culprit"), WITH_STATE.values(), ids=WITH_STATE)
def test_with_state(rows: DataFrame, transform: Callable[[DataFrame], DataFrame], culprit: str) -> None:
    found = shape(transform(rows))
    assert (found.mode, found.stateful) == (Mode.BATCH, True)
    assert culprit in found.in_the_way


PLACED = "_kept_topic, _kept_partition, _kept_offset"


def by_with(frame: DataFrame, statement: str) -> DataFrame:
    frame.createOrReplaceTempView("payments")
    frame.sparkSession.range(3).createOrReplaceTempView("numbers")
    return inlined(frame.sparkSession.sql(statement))


def test_a_select_from_a_with_is_row_by_row(rows: DataFrame, whole: DataFrame) -> None:
    statement = f"""WITH u AS (SELECT upper(cast(value AS string)) AS v, {PLACED} FROM payments WHERE key IS NOT NULL),
        w AS (SELECT concat(v, '!') AS v, {PLACED} FROM u) SELECT * FROM w WHERE v <> 'A!'"""
    frame = by_with(rows, statement)
    assert shape(frame).mode is Mode.PARTITION
    refuse_without_position(frame, rows)
    assert set(CARRIED) <= set(carrying(by_with(whole, statement)).columns)


def test_a_with_is_judged_by_what_its_queries_do(rows: DataFrame) -> None:
    counted = by_with(rows, "WITH k AS (SELECT key FROM payments) SELECT key, count(*) FROM k GROUP BY key")
    assert (shape(counted).stateful, "WithCTE" in shape(counted).in_the_way) == (True, False)
    joined = by_with(rows, "WITH k AS (SELECT id FROM numbers) SELECT p.* FROM payments p JOIN k ON p.partition = k.id")
    assert (shape(joined).mode, shape(joined).stateful) == (Mode.BATCH, False)
    for frame in (counted, joined):
        refuse_other_streams(frame, rows)
    with pytest.raises(kept.FixConfiguration, match="used twice, and does not always come to the same result"):
        by_with(rows, "WITH c AS (SELECT key, rand() AS r FROM payments) SELECT * FROM c UNION ALL SELECT * FROM c")


def test_a_frame_without_a_source_is_not_row_by_row(spark: SparkSession) -> None:
    assert shape(spark.range(3)).mode is Mode.BATCH


def test_a_select_that_drops_the_place_is_told_the_line_to_add(rows: DataFrame) -> None:
    with pytest.raises(kept.FixConfiguration) as caught:
        refuse_without_position(rows.select("value", "_kept_topic"), rows)
    assert caught.value.what.startswith("the transform drops _kept_partition, _kept_offset")
    assert 'select(..., "_kept_topic", "_kept_partition", "_kept_offset")' in caught.value.way_out


def test_another_column_under_the_name_is_refused(rows: DataFrame) -> None:
    with pytest.raises(kept.FixConfiguration, match="something else into _kept_offset"):
        refuse_without_position(rows.withColumn("_kept_offset", F.col("offset") + 1), rows)


@pytest.fixture
def whole(spark: SparkSession) -> DataFrame:
    """A source whose rows carry their records, and say why one could not be read."""
    rows = SOURCE.frame(spark, EXACTLY, {"payments": {0: 0}}, whole=True)
    return rows.withColumn("_kept_misfit", F.when(F.col("value").isNull(), F.lit("unreadable")))


@pytest.mark.parametrize("transform", ROW_BY_ROW.values(), ids=ROW_BY_ROW)
def test_records_are_carried_through_every_plan_of_partition_mode(
    whole: DataFrame, transform: Callable[[DataFrame], DataFrame]
) -> None:
    frame = transform(whole)
    carried = carrying(frame)
    assert {"_kept_original", "_kept_misfit"} <= set(carried.columns)
    others = [name for name in frame.columns if name not in CARRIED]
    assert [name for name in carried.columns if name not in CARRIED] == others, "and nothing else has changed"
    assert shape(carried).mode is Mode.PARTITION
    refuse_without_position(carried, whole)


def test_no_filter_drops_a_record_that_could_not_be_read(whole: DataFrame) -> None:
    carried = carrying(whole.where("key > 'a'").select("key", *POSITION).where("length(key) = 3"))
    plan = carried._jdf.queryExecution().analyzed().toString()
    filters = [line for line in plan.splitlines() if "Filter" in line]
    assert len(filters) == 2
    assert all("isnotnull(_kept_misfit" in line and " OR " in line for line in filters)


def test_a_transform_sees_headers_only_if_it_asked_for_them(spark: SparkSession, whole: DataFrame) -> None:
    assert "headers" not in whole.columns
    asked = KafkaSource("localhost:1", "payments", includeHeaders=True)
    for each in (True, False):
        assert "headers" in asked.frame(spark, EXACTLY, {"payments": {0: 0}}, whole=each).columns


def test_another_record_under_the_name_is_refused(whole: DataFrame) -> None:
    for name in CARRIED:
        with pytest.raises(kept.FixConfiguration, match=f"something else into {name}"):
            carrying(whole.withColumn(name, F.lit("mine")))


def with_another_stream(frame: DataFrame) -> DataFrame:
    rates = frame.sparkSession.readStream.format("rate").load()
    return frame.select("timestamp").union(rates.select("timestamp"))


REFUSED: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "another stream": (with_another_stream, "brings a stream of its own"),
    "joined with itself": (
        lambda frame: frame.join(frame.select("key").alias("other"), "key"),
        "joins the source with",
    ),
    "no stream": (lambda frame: frame.sparkSession.range(3), "without the source"),
    "never let out": (lambda frame: frame.groupBy("topic").count(), "cannot run this transform as a stream"),
    "no checkpoint": (lambda frame: frame.dropDuplicates(["topic"]).select("topic"), "its state lives in a checkpoint"),
    "by chance": (
        lambda frame: frame.select(F.rand().alias("chance")).dropDuplicates(["chance"]),
        "does not always come to the same result",
    ),
}


def test_a_pipeline_refuses_what_it_cannot_keep_before_anybody_is_disturbed(
    spark: SparkSession, cluster: kept.Cluster, topic: str, dsn: str
) -> None:
    from tests.spark.things import OutPostgres, pipeline

    for transform, told in REFUSED.values():
        with pytest.raises(kept.FixConfiguration, match=told):
            pipeline(cluster, topic, kept.PostgresSink(dsn, "out"), EXACTLY, spark, transform=transform).run()
    assert OutPostgres(dsn).recorded(topic) == {0: 0, 1: 0, 2: 0}
    with psycopg.connect(dsn) as connection:
        assert set(connection.execute("SELECT generation FROM kept_progress").fetchall()) == {(0,)}
