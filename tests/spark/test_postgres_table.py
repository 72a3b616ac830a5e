"""The table and the frame: made when it is missing, refused when it does not fit, every type to the last byte."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

import kept
from kept.errors import Refused, SinkChanged
from kept.local import Cluster
from kept.spark import Every, Limits
from tests.conftest import Eventually
from tests.spark.things import OutPostgres, fill, pipeline

EXACTLY = kept.ExactlyOnce("tested")
PLACE = ("_kept_topic", "_kept_partition", "_kept_offset")
TYPES = {
    "a_text": "cast(value as string)",
    "a_binary": "value",
    "a_bool": "_kept_partition = 0",
    "a_tiny": "cast(_kept_partition as tinyint)",
    "a_small": "cast(_kept_partition as smallint)",
    "an_int": "_kept_partition",
    "a_long": "_kept_offset - 5000000000",
    "a_float": "cast(1.5 as float)",
    "a_double": "cast(-0.1 as double)",
    "a_decimal": "cast(concat('-12345678901234567890.0', _kept_offset) as decimal(24, 4))",
    "a_date": "date'1969-12-31'",
    "a_time": "timestamp'2026-11-16 01:02:03.456789 UTC'",
    "a_local_time": "timestamp_ntz'1999-01-02 03:04:05.000001'",
}


def of_types(frame: DataFrame) -> DataFrame:
    """Every type, and NULL in every other row."""
    some = [f"if(_kept_offset % 2 = 1, {source}, null) as {name}" for name, source in TYPES.items()]
    return frame.selectExpr(*some, *PLACE)


def test_every_type_arrives_as_it_is_in_a_table_that_was_missing(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession
) -> None:
    fill(cluster, topic, 6)
    pipeline(cluster, topic, kept.PostgresSink(dsn, "out"), EXACTLY, spark, transform=of_types).run()
    with psycopg.connect(dsn) as connection:
        connection.execute("SET timezone TO UTC")
        rows = connection.execute("SELECT * FROM out ORDER BY a_text").fetchall()
        kinds = connection.execute(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'out'::regclass AND attnum > 0"
        ).fetchall()
    assert [kind for (kind,) in kinds] == [
        "text", "bytea", "boolean", "smallint", "smallint", "integer", "bigint", "real", "double precision",
        "numeric(24,4)", "date", "timestamp with time zone", "timestamp without time zone",
    ]  # fmt: skip
    assert rows[3:] == [(None,) * len(TYPES)] * 3
    first = rows[0]
    assert repr(tuple(bytes(one) if isinstance(one, memoryview) else one for one in first[:11])) == (
        "('v3', b'v3', True, 0, 0, 0, -4999999999, 1.5, -0.1, Decimal('-12345678901234567890.0100'), "
        "datetime.date(1969, 12, 31))"
    )
    assert first[11].isoformat() == "2026-11-16T01:02:03.456789+00:00"
    assert first[12].isoformat() == "1999-01-02T03:04:05.000001"


def stamped(frame: DataFrame) -> DataFrame:
    return frame.selectExpr(
        "concat('00000000-0000-4000-8000-', lpad(cast(key as string), 12, '0')) as idempotency_key",
        "to_json(named_struct('v', cast(value as string))) as message",
        "_kept_offset as amount",
        *PLACE,
    )


def test_a_table_of_the_users_with_uuid_json_and_numeric(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE TABLE messages (id bigint GENERATED ALWAYS AS IDENTITY, idempotency_key uuid NOT NULL UNIQUE, "
            "message jsonb, amount numeric, at timestamptz DEFAULT now())"
        )
    fill(cluster, topic, 9)
    sink = kept.PostgresSink(dsn, "public.messages", key="idempotency_key")
    pipeline(cluster, topic, sink, EXACTLY, spark, transform=stamped).run()
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT idempotency_key::text, message->>'v', amount FROM messages ORDER BY 1"
        ).fetchall()
    assert found == [(f"00000000-0000-4000-8000-{n:012d}", f"v{n}", n // 3) for n in range(9)]


def test_a_text_that_is_no_uuid_is_refused_not_emptied(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE out (v uuid)")
    fill(cluster, topic, 3)
    with pytest.raises(Refused, match=r"incorrect binary data format.*column v"):
        pipeline(cluster, topic, kept.PostgresSink(dsn, "out"), EXACTLY, spark).run()
    assert OutPostgres(dsn).recorded(topic) == {0: 0, 1: 0, 2: 0}


def keyed(frame: DataFrame) -> DataFrame:
    """Ten keys, each again and again."""
    return frame.selectExpr("cast(cast(key as string) as int) % 10 as k", "cast(value as string) as v", *PLACE)


@pytest.mark.parametrize(("upsert", "expected"), [(False, "v0"), (True, "v87")], ids=["the first", "the last"])
def test_of_rows_with_the_same_key_stays(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, upsert: bool, expected: str
) -> None:
    with kept.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:  # one partition: an order to speak of
        for number in range(30):
            producer.send(topic, f"v{3 * number}", key=str(number), partition=0)
    sink = kept.PostgresSink(dsn, "out", key="k", upsert=upsert)
    ran = pipeline(cluster, topic, sink, EXACTLY, spark, transform=keyed, limits=Limits(rows=7)).run()
    assert ran.rows == 30
    wanted = range(20, 30) if upsert else range(10)
    assert sorted(OutPostgres(dsn).held()) == sorted(f"v{3 * number}" for number in wanted)
    assert (expected in OutPostgres(dsn).held()) is True


REFUSED: dict[str, tuple[str, Callable[[DataFrame], DataFrame], str]] = {
    "a column is missing": ("CREATE TABLE out (w text)", lambda f: f.selectExpr("'a' as v", *PLACE), "no column v"),
    "another type": ("CREATE TABLE out (v int)", lambda f: f.selectExpr("'a' as v", *PLACE), "string in the frame and"),
    "too narrow": ("CREATE TABLE out (v int)", lambda f: f.selectExpr("offset as v", *PLACE), "bigint in the frame"),
    "rounding": (
        "CREATE TABLE out (v numeric(10,2))",
        lambda f: f.selectExpr("cast(1 as decimal(10,4)) as v", *PLACE),
        r"numeric\(10,2\) would round it",
    ),
    "not null": (
        "CREATE TABLE out (v text, w text NOT NULL)",
        lambda f: f.selectExpr("'a' as v", *PLACE),
        "w may not be NULL",
    ),
    "generated": (
        "CREATE TABLE out (v text GENERATED ALWAYS AS ('a') STORED)",
        lambda f: f.selectExpr("'a' as v", *PLACE),
        "v is generated",
    ),
    "a view": ("CREATE VIEW out AS SELECT 'a' AS v", lambda f: f.selectExpr("'a' as v", *PLACE), "it is no table"),
    "no unique index": (
        "CREATE TABLE out (v text NOT NULL)",
        lambda f: f.selectExpr("'a' as v", *PLACE),
        r"no unique index on \(v\)",
    ),
    "a partial index": (
        "CREATE TABLE out (v text NOT NULL); CREATE UNIQUE INDEX ON out (v) WHERE v > 'b'",
        lambda f: f.selectExpr("'a' as v", *PLACE),
        r"no unique index on \(v\)",
    ),
    "a nested type": ("SELECT", lambda f: f.selectExpr("array(1) as v", *PLACE), "to_json"),
    "no key": ("SELECT", lambda f: f.selectExpr("'a' as w", *PLACE), "the key v is not among the columns"),
    "unlogged": (
        "CREATE UNLOGGED TABLE out (v text PRIMARY KEY)",
        lambda f: f.selectExpr("'a' as v", *PLACE),
        "empty after a crash",
    ),
}


@pytest.mark.parametrize(("made", "transform", "told"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_before_anything_starts(
    cluster: Cluster,
    topic: str,
    dsn: str,
    spark: SparkSession,
    made: str,
    transform: Callable[[DataFrame], DataFrame],
    told: str,
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(made.encode())
    sink = kept.PostgresSink(dsn, "out", key=() if "VIEW" in made else "v")
    with pytest.raises(kept.FixConfiguration, match=told):
        pipeline(cluster, topic, sink, EXACTLY, spark, transform=transform).run()


def test_a_failing_start_does_not_disturb_the_one_that_runs(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, eventually: Eventually
) -> None:
    sink = kept.PostgresSink(dsn, "out")
    running = pipeline(cluster, topic, sink, EXACTLY, spark, trigger=Every())
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        eventually(lambda: recorded_or_none(dsn), "it has begun")
        with pytest.raises(kept.FixConfiguration, match="no column w"):
            pipeline(cluster, topic, sink, EXACTLY, spark, transform=lambda f: f.selectExpr("'a' as w", *PLACE)).run()
        with pytest.raises(SinkChanged, match=r"what is in public\.out; public\.elsewhere would never get"):
            pipeline(cluster, topic, kept.PostgresSink(dsn, "elsewhere"), EXACTLY, spark).run()
        fill(cluster, topic, 30)
        eventually(lambda: OutPostgres(dsn).held().total() == 30, "it goes on")
    finally:
        running.stop()
        thread.join(30)


def recorded_or_none(dsn: str) -> bool:
    with psycopg.connect(dsn) as connection:
        try:
            rows = connection.execute("SELECT generation FROM kept_progress").fetchall()
        except psycopg.errors.UndefinedTable:
            return False
    return len(rows) == 3 and all(generation == 1 for (generation,) in rows)
