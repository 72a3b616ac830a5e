"""Dead letters of pipelines: whole, with reason and place, in the transaction of the good rows; and it goes on."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import kept
from kept.consumer.outgoing import ENDED_WITHIN, Output, Transaction
from kept.consumer.outgoing import Refused as OutgoingRefused
from kept.errors import NotPersisted, Refused
from kept.local import Cluster
from kept.producer.clients import fenced_client
from kept.spark import POSITION, DeadLetterTable, DeadLetterTopic, Limits
from kept.spark.kafka_records import sent_and_judged
from tests.brokers.pipes import new_topic
from tests.conftest import Kept
from tests.spark.letters import (
    BAD,
    FILE,
    INTO_TABLE,
    INTO_TOPIC,
    UNREADABLE,
    Bad,
    bad_values,
    from_file,
    in_table,
    in_topic,
    make,
    others,
    pay,
    payments,
    promised,
    refuse_unwhole,
)
from tests.spark.things import Faulty, OutPostgres, pipeline, read_all

WORDS = ["at-most-once", "at-least-once", "exactly-once"]
NO_TEXT = b"bad\xff"
TABLE = b"CREATE TABLE out (v text CHECK (v NOT LIKE 'bad%'))"


@pytest.mark.parametrize("word", WORDS)
def test_rows_that_the_table_refuses_are_buried_and_the_others_arrive(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, word: str
) -> None:
    make(dsn, TABLE)
    bad = {**bad_values(), 7: NO_TEXT}
    pay(cluster, topic, bad)
    sink, out = kept.PostgresSink(dsn, "out"), OutPostgres(dsn)
    ran = pipeline(cluster, topic, sink, promised(word, topic), spark, dead_letters=DeadLetterTable()).run()
    assert (ran.rows, ran.dropped, ran.buried) == (90 - len(bad), 0, len(bad))
    assert out.held() == others(bad)
    assert out.recorded(topic) == {0: 30, 1: 30, 2: 30}
    letters = in_table(dsn, f"to-{topic}")
    refuse_unwhole(letters, topic, bad)
    told = {each.value: each.reason for each in letters}
    assert "SQLSTATE 22021" in told.pop(NO_TEXT)
    assert all("out_v_check" in each and "23514" in each for each in told.values())


REFUSALS: dict[str, tuple[list[bytes], str, str]] = {
    "a type": ([b"CREATE TABLE out (v uuid)"], "00000000-0000-4000-8000-{:012d}", "incorrect binary data format"),
    "a deferred constraint": (
        [
            b"CREATE TABLE known (v text PRIMARY KEY)",
            b"INSERT INTO known SELECT 'v' || n FROM generate_series(0, 89) AS n",
            b"CREATE TABLE out (v text REFERENCES known DEFERRABLE INITIALLY DEFERRED)",
        ],
        "v{}",
        "foreign key",
    ),
}


@pytest.mark.parametrize(("made", "good", "told"), REFUSALS.values(), ids=REFUSALS)
def test_a_row_may_be_refused_for_many_reasons(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, made: list[bytes], good: str, told: str
) -> None:
    make(dsn, *made)
    bad = bad_values()
    pay(cluster, topic, {number: bad.get(number) or good.format(number) for number in range(90)})
    guarantee = promised("exactly-once", topic)
    sink = kept.PostgresSink(dsn, "out")
    ran = pipeline(cluster, topic, sink, guarantee, spark, dead_letters=DeadLetterTable()).run()
    assert (ran.rows, ran.buried) == (90 - len(bad), len(bad))
    letters = in_table(dsn, f"to-{topic}")
    refuse_unwhole(letters, topic, bad)
    assert all(told in each.reason for each in letters)


def test_what_is_not_about_a_row_buries_none(cluster: Cluster, topic: str, dsn: str, spark: SparkSession) -> None:
    """A trigger that lacks a right is a stop for every row, and no row's own fault."""
    make(
        dsn,
        b"CREATE TABLE out (v text)",
        b"CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS "
        b"$$ BEGIN RAISE insufficient_privilege USING MESSAGE = 'not yours'; END $$",
        b"CREATE TRIGGER no BEFORE INSERT ON out FOR EACH ROW EXECUTE FUNCTION no()",
    )
    pay(cluster, topic, {}, 3)
    guarantee = promised("exactly-once", topic)
    with pytest.raises(kept.FixConfiguration, match="not yours"):
        pipeline(cluster, topic, kept.PostgresSink(dsn, "out"), guarantee, spark, dead_letters=DeadLetterTable()).run()
    assert in_table(dsn, f"to-{topic}") == []
    assert OutPostgres(dsn).recorded(topic) == {0: 0, 1: 0, 2: 0}


def keyed(frame: DataFrame) -> DataFrame:
    """Ten keys, each again and again: the way through the temporary table, in every half."""
    return frame.selectExpr("_kept_offset % 10 as k", "cast(value as string) as v", *POSITION)


@pytest.mark.parametrize("upsert", [False, True], ids=["the first", "the last"])
def test_repeated_keys_and_refused_rows_in_one_chunk(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, upsert: bool
) -> None:
    make(dsn, b"CREATE TABLE out (k bigint PRIMARY KEY, v text CHECK (v NOT LIKE 'bad%'))")
    with kept.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
        for number in range(30):
            producer.send(topic, f"bad{number}" if number in (3, 24) else f"v{number}", partition=0)
    sink = kept.PostgresSink(dsn, "out", key="k", upsert=upsert)
    guarantee = promised("exactly-once", topic)
    ran = pipeline(cluster, topic, sink, guarantee, spark, transform=keyed, dead_letters=DeadLetterTable()).run()
    assert ran.buried == 2
    if upsert:
        expected = {f"v{number}" for number in range(20, 30) if number != 24} | {"v14"}
    else:
        expected = {f"v{number}" for number in range(10) if number != 3} | {"v13"}
    assert set(OutPostgres(dsn).held()) == expected


@pytest.mark.parametrize("at", ["step 2", "after"])
def test_a_task_that_dies_around_its_commit_leaves_every_row_and_every_letter_once(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, tmp_path: Path, at: str
) -> None:
    make(dsn, TABLE)
    bad = bad_values()
    pay(cluster, topic, bad)
    sink = Faulty(kept.PostgresSink(dsn, "out"), at, tmp_path / "died")
    guarantee, limits = promised("exactly-once", topic), Limits(rows=10)
    pipeline(cluster, topic, sink, guarantee, spark, dead_letters=DeadLetterTable(), limits=limits).run()
    assert (tmp_path / "died").exists()
    assert OutPostgres(dsn).held() == others(bad)
    refuse_unwhole(in_table(dsn, f"to-{topic}"), topic, bad)


@pytest.mark.parametrize("at", ["step 48", "step 49"], ids=["before", "after"])
def test_a_task_that_dies_around_the_commit_of_a_letter_in_kafka(
    cluster: Cluster, topic: str, spark: SparkSession, tmp_path: Path, at: str
) -> None:
    """Six steps write a half, four are done when it is refused: of 30 rows, the 21st is found and buried by step 48."""
    out, dead = new_topic(cluster.bootstrap, max_message_bytes=4000), new_topic(cluster.bootstrap)
    bad: Bad = {60: "x" * 5000}
    pay(cluster, topic, bad)
    sink = Faulty(kept.KafkaSink(cluster.bootstrap, out), at, tmp_path / "died")
    guarantee = promised("exactly-once", topic)
    pipeline(cluster, topic, sink, guarantee, spark, dead_letters=DeadLetterTopic(dead)).run()
    assert (tmp_path / "died").exists()
    assert Counter(value.decode() for value in read_all(cluster.bootstrap, out)) == others(bad)
    refuse_unwhole(in_topic(cluster, dead), topic, bad)


def on_purpose(frame: DataFrame) -> DataFrame:
    text = F.col("value").cast("string")
    reason = F.when(text.startswith("bad"), F.concat(F.lit("I do not like "), text))
    return frame.select(text.alias("v"), reason.alias("_kept_refused"), *POSITION)


def test_a_transform_may_bury_a_row_on_purpose(cluster: Cluster, topic: str, dsn: str, spark: SparkSession) -> None:
    bad = {**bad_values(), 7: NO_TEXT}
    pay(cluster, topic, bad)
    sink, guarantee = kept.PostgresSink(dsn, "out"), promised("exactly-once", topic)
    ran = pipeline(cluster, topic, sink, guarantee, spark, transform=on_purpose, dead_letters=DeadLetterTable()).run()
    assert (ran.rows, ran.buried) == (90 - len(bad), len(bad))
    assert OutPostgres(dsn).held() == others(bad)
    letters = in_table(dsn, f"to-{topic}")
    refuse_unwhole(letters, topic, bad)
    assert {each.reason for each in letters} == {f"I do not like bad{number}" for number in BAD} | {
        "I do not like bad\ufffd"
    }
    with psycopg.connect(dsn) as connection:
        columns = connection.execute("SELECT * FROM out LIMIT 0").description or []
    assert [column.name for column in columns] == ["v"], "nothing of kept's own is written"


@pytest.mark.usefixtures("said")
def test_records_that_do_not_fit_the_schema_are_buried_though_a_filter_would_drop_them(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, on_cluster: Kept
) -> None:
    """To the filter they are rows without a value; dropped there, they would be gone without a word."""
    pay(cluster, topic, payments(UNREADABLE))
    with kept.Producer(cluster.bootstrap, kept.AtLeastOnce()) as producer:
        producer.send(topic, None, key="tombstone", partition=0)  # readable: there is nothing to read
    ran = from_file(FILE.replace("TOPIC", topic) + INTO_TABLE).pipeline(spark).run()
    assert (ran.rows, ran.buried) == (90 - len(UNREADABLE) - 1, len(UNREADABLE)), "n = 0 and the tombstone are filtered"
    letters = in_table(dsn, f"to-{topic}")
    refuse_unwhole(letters, topic, UNREADABLE)
    assert {each.reason for each in letters} == {
        "the value does not fit the schema: it is not one JSON object, or a field cannot hold exactly what it is given"
    }
    listed = json.loads(on_cluster("dead-letters", "list", f"to-{topic}", "--dsn", dsn, "--json").stdout)
    assert sorted(each["from"] for each in listed) == sorted(f"{topic}[{n % 3}]@{n // 3}" for n in UNREADABLE)
    on_cluster("dead-letters", "redrive", f"to-{topic}", "--dsn", dsn, "--yes")
    assert Counter(read_all(cluster.bootstrap, topic))[b"no json"] == 2


@pytest.mark.usefixtures("said")
def test_in_kafka_they_go_to_the_topic_of_letters_and_can_be_redriven(
    cluster: Cluster, topic: str, spark: SparkSession, on_cluster: Kept
) -> None:
    out, dead = new_topic(cluster.bootstrap), new_topic(cluster.bootstrap)
    pay(cluster, topic, payments(UNREADABLE))
    text = FILE.replace("TOPIC", topic) + INTO_TOPIC.replace("OUT", out).replace("DEAD", dead)
    ran = from_file(text).pipeline(spark).run()
    assert (ran.rows, ran.buried) == (90 - len(UNREADABLE) - 1, len(UNREADABLE))
    entries = [json.loads(value) for value in read_all(cluster.bootstrap, out)]
    assert sorted(entry["n"] for entry in entries) == [n for n in range(1, 90) if n not in UNREADABLE]
    assert {tuple(entry) for entry in entries} == {("id", "n")}, "nothing of kept's own is sent"
    letters = in_topic(cluster, dead)
    refuse_unwhole(letters, topic, UNREADABLE)
    assert {letter.group for letter in letters} == {f"kept.to-{topic}"}
    assert all(letter.timestamp > 0 for letter in letters)
    listed = json.loads(on_cluster("dead-letters", "list", dead, "--json").stdout)
    assert sorted(each["from"] for each in listed) == sorted(f"{topic}[{n % 3}]@{n // 3}" for n in UNREADABLE)
    on_cluster("dead-letters", "redrive", dead, "--yes")
    assert Counter(read_all(cluster.bootstrap, topic))[b"no json"] == 2


@pytest.mark.parametrize(
    ("word", "limit"),
    [("at-least-once", "the broker"), ("exactly-once", "the broker"), ("exactly-once", "the client")],
)
def test_records_that_kafka_refuses_are_found_by_halves(
    cluster: Cluster, topic: str, spark: SparkSession, word: str, limit: str
) -> None:
    """The broker refuses whole batches: what travelled with a large one is not buried."""
    by_broker = limit == "the broker"
    out = new_topic(cluster.bootstrap, max_message_bytes=4000) if by_broker else new_topic(cluster.bootstrap)
    dead = new_topic(cluster.bootstrap)
    bad = {number: f"{number}".ljust(5000 if by_broker else 3000, "x") for number in (5, 45)}
    pay(cluster, topic, bad)

    def doubled(frame: DataFrame) -> DataFrame:
        """What the client refuses is twice the record, so that its letter still fits."""
        value = "value" if by_broker else "if(length(value) > 1000, concat(value, value), value) as value"
        return frame.selectExpr("key", value, *POSITION)

    sink = kept.KafkaSink(cluster.bootstrap, out, **({} if by_broker else {"message.max.bytes": 4500}))
    ran = pipeline(
        cluster, topic, sink, promised(word, topic), spark, transform=doubled, dead_letters=DeadLetterTopic(dead)
    ).run()
    assert ran.buried == len(bad)
    held = Counter(value.decode() for value in read_all(cluster.bootstrap, out))
    assert set(held) == set(others(bad))
    assert held == others(bad) or word == "at-least-once"
    letters = in_topic(cluster, dead)
    refuse_unwhole(letters, topic, bad)
    assert all("large" in letter.reason.lower() for letter in letters)


def test_a_refusal_that_comes_while_rows_are_still_being_sent_is_told_as_that(cluster: Cluster) -> None:
    """It ends the transaction: rows behind it are not taken any more, and those that wait are never sent."""
    out = new_topic(cluster.bootstrap, max_message_bytes=4000)
    sink = kept.KafkaSink(cluster.bootstrap, out, **{"batch.size": 2000})
    guarantee = kept.ExactlyOnce(f"to-{out}")
    settings = {**sink.producer_settings(guarantee), "transactional.id": guarantee.transactional_id("t", "0")}
    fence = partial(fenced_client, settings, ENDED_WITHIN)
    rows = [Output(out, "x" * 5000), *(Output(out, f"v{number}") for number in range(3000))]
    for some, is_refused in ((rows, True), (rows[1:], False)):
        transaction = Transaction(settings, set(), fence)
        transaction.begin()
        began = time.monotonic()
        with pytest.raises(OutgoingRefused, match="large") if is_refused else nullcontext():
            sent_and_judged(transaction, some)
        transaction.abort()
        assert time.monotonic() - began < ENDED_WITHIN, "nobody waits for what will not be sent"


def test_a_letter_that_is_refused_as_well_stops_the_pipeline_before_its_record(
    cluster: Cluster, topic: str, spark: SparkSession
) -> None:
    out, dead = (new_topic(cluster.bootstrap, max_message_bytes=4000) for _ in range(2))
    pay(cluster, topic, {30: "x" * 5000})
    sink = kept.KafkaSink(cluster.bootstrap, out)
    guarantee = promised("exactly-once", topic)
    with pytest.raises(NotPersisted, match=rf"the dead letter of {topic}\[0\]@10 was refused as well: .*large"):
        pipeline(cluster, topic, sink, guarantee, spark, dead_letters=DeadLetterTopic(dead)).run()
    assert in_topic(cluster, dead) == []
    assert b"v27" in read_all(cluster.bootstrap, out), "what stands before it in its partition is written"
    assert b"v33" not in read_all(cluster.bootstrap, out), "and what stands behind it is not"


def test_without_dead_letters_a_refused_row_stops_the_pipeline(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession
) -> None:
    """The control: nothing of the chunk is written, and progress stays."""
    make(dsn, TABLE)
    pay(cluster, topic, bad_values())
    with pytest.raises(Refused, match="out_v_check"):
        pipeline(cluster, topic, kept.PostgresSink(dsn, "out"), promised("exactly-once", topic), spark).run()


def number(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("cast(value as string) as v", "1 as _kept_refused", *POSITION)


NOT_KEPT: dict[str, tuple[Callable[[DataFrame], DataFrame], DeadLetterTable | None, str]] = {
    "batch mode": (
        lambda frame: frame.selectExpr("cast(value as string) as v").repartition(2),
        DeadLetterTable(),
        "each row comes from one record; after Repartition",
    ),
    "nobody heeds it": (on_purpose, None, "makes _kept_refused, and the pipeline keeps no dead letters"),
    "a name of kept's own": (
        lambda frame: frame.selectExpr("cast(value as string) as v", "1 as _kept_original", *POSITION),
        None,
        "makes _kept_original, and",
    ),
    "no text": (number, DeadLetterTable(), "_kept_refused is int"),
    "another record": (
        lambda frame: frame.selectExpr("cast(value as string) as v", "1 as _kept_original", *POSITION),
        DeadLetterTable(),
        "something else into _kept_original",
    ),
}


def test_what_cannot_be_kept_is_refused_before_anybody_is_disturbed(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession
) -> None:
    sink = kept.PostgresSink(dsn, "out")
    guarantee = promised("exactly-once", topic)
    for transform, letters, told in NOT_KEPT.values():
        with pytest.raises(kept.FixConfiguration, match=told):
            pipeline(cluster, topic, sink, guarantee, spark, transform=transform, dead_letters=letters).run()
    with psycopg.connect(dsn) as connection:
        assert set(connection.execute("SELECT generation FROM kept_progress").fetchall()) == {(0,)}


def test_a_dead_letter_topic_that_is_missing_or_that_the_pipeline_reads_is_refused(
    cluster: Cluster, topic: str, spark: SparkSession
) -> None:
    sink = kept.KafkaSink(cluster.bootstrap, new_topic(cluster.bootstrap))
    guarantee = promised("exactly-once", topic)
    for name, told in (("no-such-topic", "cannot be written"), (topic, "the pipeline reads it")):
        with pytest.raises(kept.FixConfiguration, match=told):
            pipeline(cluster, topic, sink, guarantee, spark, dead_letters=DeadLetterTopic(name)).run()
