"""What the options of the drop-in formats mean, and which are refused; nothing is connected."""

from __future__ import annotations

from pathlib import Path

import pytest

import kept
from kept.consumer import Start
from kept.spark.drop_in_options import KAFKA, POSTGRES, asked_for, source_of

COMMON = {"pipeline": "copies", "guarantee": "exactly-once"}
TO_KAFKA = {**COMMON, "kafka.bootstrap.servers": "a:1", "topic": "out"}
TO_POSTGRES = {**COMMON, "dsn": "postgresql://somebody:secret@localhost:1/none", "table": "out"}
READ = {"kafka.bootstrap.servers": "b:1", "subscribe": "x, y"}


def test_a_kafka_sink() -> None:
    asked = asked_for(KAFKA, {**TO_KAFKA, "kafka.compression.type": "lz4", "queryname": "q"})
    assert (asked.name, asked.guarantee) == ("copies", kept.ExactlyOnce("copies"))
    assert isinstance(asked.sink, kept.KafkaSink)
    assert (asked.sink.bootstrap, asked.sink.topic) == ("a:1", "out")
    assert asked.sink.producer_settings(asked.guarantee)["compression.type"] == "lz4"
    assert asked.for_spark == {"queryname": "q"}
    assert asked.first_batch is None


def test_a_postgres_sink() -> None:
    more = {"key": "id, at", "mode": "upsert", "guarantee": "at-least-once", "start": "batch 42"}
    asked = asked_for(POSTGRES, {**TO_POSTGRES, **more})
    assert (asked.name, asked.guarantee) == ("copies", kept.AtLeastOnce())
    assert asked.sink == kept.PostgresSink(TO_POSTGRES["dsn"], "out", ("id", "at"), upsert=True)
    assert asked.first_batch == 42
    assert "secret" not in repr(asked)


def test_secrets_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DSN", TO_POSTGRES["dsn"])
    (tmp_path / "password").write_text("hush\n")
    password = f"file:{tmp_path / 'password'}"
    asked = asked_for(POSTGRES, {**TO_POSTGRES, "dsn": "env:SHOP_DSN", "source.sasl.password": password})
    assert asked.sink == kept.PostgresSink(TO_POSTGRES["dsn"], "out")
    assert asked.client == {"sasl.password": "hush"}
    asked = asked_for(KAFKA, {**TO_KAFKA, "kafka.sasl.password": password})
    assert isinstance(asked.sink, kept.KafkaSink)
    assert asked.sink.producer_settings(asked.guarantee)["sasl.password"] == "hush"
    assert "hush" not in repr(asked)
    with pytest.raises(kept.FixConfiguration, match="the option dsn: the environment variable NOT_SET is not set"):
        asked_for(POSTGRES, {**TO_POSTGRES, "dsn": "env:NOT_SET"})
    with pytest.raises(kept.FixConfiguration, match=r"the option kafka.sasl.password: .* cannot be read"):
        asked_for(KAFKA, {**TO_KAFKA, "kafka.sasl.password": "file:nowhere"})


def test_a_setting_from_elsewhere_weakens_no_guarantee_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKS", "1")
    with pytest.raises(kept.WeakensGuarantee, match=r"kafka.acks=1 "):
        asked_for(KAFKA, {**TO_KAFKA, "kafka.acks": "env:ACKS"})
    monkeypatch.setenv("ACKS", "all")
    asked_for(KAFKA, {**TO_KAFKA, "kafka.acks": "env:ACKS"})


@pytest.mark.parametrize("missing", ["pipeline", "guarantee", "kafka.bootstrap.servers"])
def test_what_a_kafka_sink_needs(missing: str) -> None:
    options = {name: value for name, value in TO_KAFKA.items() if name != missing}
    with pytest.raises(kept.FixConfiguration, match=f"needs the option {missing}"):
        asked_for(KAFKA, options)


@pytest.mark.parametrize("missing", ["pipeline", "guarantee", "dsn", "table"])
def test_what_a_postgres_sink_needs(missing: str) -> None:
    options = {name: value for name, value in TO_POSTGRES.items() if name != missing}
    with pytest.raises(kept.FixConfiguration, match=f"needs the option {missing}"):
        asked_for(POSTGRES, options)


@pytest.mark.parametrize(
    ("kind", "more", "told"),
    [
        (KAFKA, {"topics": "out"}, "does not know the option topics"),
        (KAFKA, {"path": "out"}, "does not know the option path"),
        (POSTGRES, {"kafka.acks": "all"}, "does not know the option kafka.acks"),
        (KAFKA, {"asyncprogresstrackingenabled": "true"}, "does not know"),
        (KAFKA, {"guarantee": "exactly_once"}, "is not a guarantee"),
        (KAFKA, {"pipeline": "a/b"}, "cannot name"),
        (KAFKA, {"start": "earliest"}, "start=earliest is not known"),
        (KAFKA, {"start": "batch -1"}, "start=batch -1 is not known"),
        (KAFKA, {"kafka.sasl.jaas.config": "..."}, "kafka.sasl.jaas.config is for Java"),
        (POSTGRES, {"source.ssl.truststore.location": "..."}, "source.ssl.truststore.location is for Java"),
        (POSTGRES, {"mode": "overwrite"}, "mode=overwrite is not known"),
        (POSTGRES, {"mode": "upsert"}, "upsert needs a key"),
    ],
)
def test_options_that_are_refused(kind: str, more: dict[str, str], told: str) -> None:
    with pytest.raises(kept.FixConfiguration, match=told):
        asked_for(kind, {**(TO_KAFKA if kind == KAFKA else TO_POSTGRES), **more})


@pytest.mark.parametrize(("name", "value"), [("kafka.acks", "1"), ("kafka.enable.idempotence", "false")])
def test_settings_of_producers_that_weaken_the_guarantee(name: str, value: str) -> None:
    with pytest.raises(kept.WeakensGuarantee, match=name):
        asked_for(KAFKA, {**TO_KAFKA, name: value})


def test_a_source() -> None:
    options = {**READ, "startingOffsets": " Earliest", "maxOffsetsPerTrigger": "500", "kafka.client.id": "mine"}
    source = source_of(options, {})
    assert (source.bootstrap, source.topics, source.start) == ("b:1", ("x", "y"), Start.BEGINNING)
    settings = source.from_there(kept.ExactlyOnce("copies"), {"x": {0: 7}})
    expected = {
        "subscribe": "x,y",
        "startingOffsets": '{"x": {"0": 7}}',
        "maxOffsetsPerTrigger": "500",
        "kafka.client.id": "mine",
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
    }
    assert expected.items() <= settings.items()
    assert len({name.lower() for name in settings}) == len(settings), "no option is there twice"


def test_a_source_begins_at_its_end_as_with_spark() -> None:
    assert source_of(READ, {}).start is Start.END


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"assign": '{"x": [0]}'}, "has the option assign"),
        ({"subscribePattern": "x.*"}, "has the option subscribepattern"),
        ({"startingTimestamp": "1"}, "has the option startingtimestamp"),
        ({"topics": "x"}, "has the option topics"),
        ({"startingOffsets": '{"x": {"0": 5}}'}, "names offsets of its own"),
        ({"maxOffsetsPerTrigger": "many"}, "is no number"),
        ({"kafka.security.protocol": "SASL_SSL"}, "needs SASL_SSL"),
    ],
)
def test_sources_that_are_refused(more: dict[str, str], told: str) -> None:
    with pytest.raises(kept.FixConfiguration, match=told):
        source_of({**READ, **more}, {})


def test_a_source_that_says_no_topic() -> None:
    with pytest.raises(kept.FixConfiguration, match="the reading end needs the option subscribe"):
        source_of({"kafka.bootstrap.servers": "b:1"}, {})


def test_how_the_source_is_reached() -> None:
    asked = asked_for(POSTGRES, {**TO_POSTGRES, "source.security.protocol": "SSL", "source.ssl.ca.location": "ca.pem"})
    source = source_of({**READ, "kafka.security.protocol": "SSL"}, asked.client)
    assert (source.client["security.protocol"], source.client["ssl.ca.location"]) == ("SSL", "ca.pem")


@pytest.mark.parametrize(
    ("name", "value"),
    [("failOnDataLoss", "false"), ("kafka.isolation.level", "read_uncommitted"), ("minPartitions", "9")],
)
def test_settings_of_a_source_that_weaken_the_guarantee(name: str, value: str) -> None:
    with pytest.raises(kept.WeakensGuarantee, match=name):
        source_of({**READ, name: value}, {}).settings(kept.ExactlyOnce("copies"))
