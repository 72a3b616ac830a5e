"""What contradicts a guarantee is refused when a pipeline is described, before anything is connected."""

from __future__ import annotations

import os
import sys
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import kept
from kept.guarantees import Guarantee
from kept.spark import Every, Limits
from kept.spark.sessions import refuse_weakened, session, usable

EXACTLY = kept.ExactlyOnce("tested")
SINK = kept.PostgresSink("postgresql://nobody:secret@localhost:1/none", "out")


def described(guarantee: Guarantee = EXACTLY, name: str | None = None, **options: Any) -> kept.Pipeline:
    source = kept.KafkaSource("localhost:1", "payments", **options)
    return kept.Pipeline(source=source, sink=SINK, guarantee=guarantee, name=name)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("failOnDataLoss", "false"),
        ("FAILONDATALOSS", False),
        ("kafka.isolation.level", "read_uncommitted"),
        ("minPartitions", 10),
        ("maxRecordsPerPartition", 10),
        ("kafka.check.crcs", "false"),
    ],
)
def test_options_that_weaken_the_guarantee(option: str, value: Any) -> None:
    with pytest.raises(kept.WeakensGuarantee, match=option):
        described(**{option: value})


@pytest.mark.parametrize("option", ["startingOffsets", "subscribe", "assign", "kafka.bootstrap.servers"])
def test_options_that_kept_sets(option: str) -> None:
    with pytest.raises(kept.FixConfiguration, match="is set by kept"):
        described(**{option: cast(Any, "latest")})


def test_what_the_source_is_given() -> None:
    settings = kept.KafkaSource("a:1", ["x", "y"], max_per_batch=5, **{"kafka.client.id": "mine"}).settings(EXACTLY)  # type: ignore[arg-type]
    expected = {
        "kafka.bootstrap.servers": "a:1",
        "subscribe": "x,y",
        "maxOffsetsPerTrigger": "5",
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
        "kafka.fetch.max.wait.ms": "20",
        "kafka.default.api.timeout.ms": "10000",
        "kafka.request.timeout.ms": "10000",
        "kafka.client.id": "mine",
    }
    assert expected.items() <= settings.items()


def test_times_that_would_not_fit_what_a_person_says_are_left_to_kafka() -> None:
    settings = kept.KafkaSource("a:1", "x", **{"kafka.Request.timeout.ms": "20000"}).settings(EXACTLY)  # type: ignore[arg-type]
    assert [each for each in settings if "timeout" in each] == ["kafka.request.timeout.ms"]


@pytest.mark.parametrize(
    "topics", [{}, {"topics": ""}, {"topics": "a", "pattern": "b"}, {"topics": "a", "max_per_batch": 0}]
)
def test_sources_that_are_none(topics: dict[str, Any]) -> None:
    with pytest.raises(kept.FixConfiguration):
        kept.KafkaSource("localhost:1", **topics)


def test_names() -> None:
    with pytest.raises(kept.FixConfiguration, match="needs a name"):
        described(kept.AtLeastOnce())
    with pytest.raises(kept.FixConfiguration, match="leave name out"):
        described(EXACTLY, name="other")
    with pytest.raises(kept.FixConfiguration, match="cannot name"):
        described(kept.AtMostOnce(), name="a/b")
    assert described(kept.AtMostOnce(), name="hints").name == "hints"


@pytest.mark.parametrize("wrong", [{"upsert": True}, {"table": "a..b"}, {"table": ""}, {"dsn": "nonsense="}])
def test_sinks_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(kept.FixConfiguration):
        kept.PostgresSink(**{"dsn": "postgresql://localhost/none", "table": "out", **wrong})


def test_a_password_is_not_shown() -> None:
    assert "secret" not in f"{SINK!r} {SINK}"


def test_limits_and_paces_that_are_none() -> None:
    with pytest.raises(kept.FixConfiguration):
        Limits(rows=0)
    with pytest.raises(kept.FixConfiguration):
        Every(-1)


def test_a_session_that_weakens_the_guarantee(spark: SparkSession) -> None:
    name = "spark.sql.streaming.unsupportedOperationCheck"
    spark.conf.set(name, "false")
    try:
        with pytest.raises(kept.WeakensGuarantee, match=name):
            refuse_weakened(spark, EXACTLY)
    finally:
        spark.conf.unset(name)
    refuse_weakened(spark, EXACTLY)


def test_the_session_of_this_process_is_used_again(spark: SparkSession) -> None:
    assert session() is spark
    cores = os.cpu_count() or 1
    assert spark.sparkContext.master == f"local[{cores + 2},4]"
    assert spark.sparkContext.pythonExec == sys.executable


def test_a_session_that_cannot_read_kafka_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(kept.FixConfiguration, match="Spark Connect"):
        usable(object())  # type: ignore[arg-type]
    monkeypatch.setattr("kept.spark.sessions.CONNECTOR", "org.apache.spark.sql.kafka010.NotThere")
    with pytest.raises(kept.FixConfiguration, match="lacks the Kafka connector"):
        usable(spark)


def test_a_missing_package_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    from kept.spark.sessions import refuse_without_pyspark

    monkeypatch.setattr("kept.spark.sessions.find_spec", lambda _name: None)
    with pytest.raises(kept.FixMachine, match="pyspark and pyarrow and pgpq cannot be imported"):
        refuse_without_pyspark()
