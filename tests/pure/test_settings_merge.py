"""An override that weakens the promise is refused by name; every other one passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kept.errors import WeakensGuarantee
from kept.guarantees import (
    AtLeastOnce,
    AtMostOnce,
    ExactlyOnce,
    Guarantee,
    Setting,
    Settings,
    broker_settings,
    carrier_settings,
    consumer_settings,
    merge,
    producer_settings,
    spark_session_settings,
    spark_sink_settings,
    spark_source_settings,
    topic_settings,
)

MOST, LEAST, EXACTLY = AtMostOnce(), AtLeastOnce(), ExactlyOnce("pay")
LEVELS: tuple[Guarantee, ...] = (MOST, LEAST, EXACTLY)


def group_settings(guarantee: Guarantee) -> Settings:
    return consumer_settings(guarantee, "mailer")


SIDES: tuple[Callable[[Guarantee], Settings], ...] = (
    producer_settings,
    group_settings,
    topic_settings,
    broker_settings,
    carrier_settings,
    spark_source_settings,
    spark_sink_settings,
    spark_session_settings,
)
ALL = [derive(level) for derive in SIDES for level in LEVELS]

REFUSED: list[tuple[Settings, str, object]] = [
    (producer_settings(EXACTLY), "acks", 1),
    (producer_settings(EXACTLY), "acks", "4294967295"),
    (producer_settings(EXACTLY), "request.required.acks", "0"),
    (producer_settings(EXACTLY), "topic.acks", "1"),
    (producer_settings(EXACTLY), "acks\0ignored", "1"),
    (producer_settings(EXACTLY), "enable.idempotence", "F"),
    (producer_settings(EXACTLY), "transactional.id", None),
    (producer_settings(EXACTLY), "transactional.id", "kept.payments"),
    (producer_settings(EXACTLY), "max.in.flight", 6),
    (producer_settings(EXACTLY), "delivery.report.only.error", True),
    (producer_settings(LEAST), "message.send.max.retries", 3),
    (producer_settings(LEAST), "retries", 4294967297),
    (producer_settings(LEAST), "message.timeout.ms", 1000),
    (producer_settings(LEAST), "transactional.id", "mine"),
    (producer_settings(LEAST), "test.mock.num.brokers", 3),
    (producer_settings(LEAST), "default.topic.config", {"acks": 1}),
    (producer_settings(LEAST), "default.topic.config", "acks=1"),
    (producer_settings(MOST), "retries", 1),
    (producer_settings(MOST), "enable.idempotence", True),
    (group_settings(LEAST), "enable.auto.commit", "TRUE"),
    (group_settings(LEAST), "auto.commit.enable", True),
    (group_settings(LEAST), "auto.offset.reset", "end"),
    (group_settings(LEAST), "topic.auto.offset.reset", "largest"),
    (group_settings(LEAST), "auto.offset.reset", "earliest"),
    (group_settings(LEAST), "offset.store.method", "none"),
    (group_settings(LEAST), "check.crcs", 0),
    (group_settings(EXACTLY), "auto.offset.reset", "earliest"),
    (group_settings(EXACTLY), "isolation.level", "READ_UNCOMMITTED"),
    (group_settings(MOST), "auto.offset.reset", "Beginning"),
    (group_settings(MOST), "isolation.level", "read_uncommitted"),
    (group_settings(MOST), "group.id", "other"),
    (topic_settings(LEAST), "min.insync.replicas", 1),
    (topic_settings(LEAST), "cleanup.policy", "compact,delete"),
    (topic_settings(LEAST), "retention.ms", 1000),
    (carrier_settings(MOST), "cleanup.policy", "delete"),
    (carrier_settings(EXACTLY), "cleanup.policy", "compact,delete"),
    (broker_settings(MOST), "offsets.topic.replication.factor", 1),
    (broker_settings(EXACTLY), "transaction.state.log.min.isr", "1"),
    (broker_settings(EXACTLY), " unclean.leader.election.enable", "true"),
    (spark_source_settings(LEAST), "FAILONDATALOSS", False),
    (spark_source_settings(EXACTLY), "startingoffsets", "latest"),
    (spark_source_settings(EXACTLY), "startingOffsets", '{"payments":{"0":-1}}'),
    (spark_source_settings(EXACTLY), "startingTimestamp", 0),
    (spark_source_settings(EXACTLY), "Kafka.Isolation.Level", "read_uncommitted"),
    (spark_source_settings(MOST), "minpartitions", 16),
    (spark_source_settings(LEAST), "maxRecordsPerPartition", 16),
    (spark_sink_settings(EXACTLY), "KAFKA.ACKS", 1),
    (spark_sink_settings(EXACTLY), "kafka.topic.request.required.acks", 1),
    (spark_sink_settings(EXACTLY), "kafka.default.topic.config", "{}"),
    (spark_sink_settings(EXACTLY), "asyncProgressTrackingEnabled", "true"),
    (spark_session_settings(LEAST), "spark.sql.streaming.unsupportedOperationCheck", "false"),
]

PASSED: list[tuple[Settings, str, object, str]] = [
    (producer_settings(EXACTLY), "request.required.acks", -1, "acks"),
    (producer_settings(EXACTLY), "acks", "ALL", "acks"),
    (producer_settings(EXACTLY), "enable.idempotence", True, "enable.idempotence"),
    (producer_settings(EXACTLY), "max.in.flight", 1, "max.in.flight.requests.per.connection"),
    (producer_settings(EXACTLY), "transactional.id", "kept.pay/orders/3", "transactional.id"),
    (producer_settings(EXACTLY), "linger.ms", 50, "linger.ms"),
    (producer_settings(LEAST), "enable.idempotence", False, "enable.idempotence"),
    (producer_settings(LEAST), "message.timeout.ms", 0, "delivery.timeout.ms"),
    (producer_settings(MOST), "acks", 0, "acks"),
    (group_settings(LEAST), "topic.auto.offset.reset", "ERROR", "auto.offset.reset"),
    (group_settings(LEAST), "isolation.level", "read_uncommitted", "isolation.level"),
    (group_settings(MOST), "auto.offset.reset", "latest", "auto.offset.reset"),
    (group_settings(MOST), "fetch.wait.max.ms", 20, "fetch.wait.max.ms"),
    (topic_settings(EXACTLY), "retention.ms", -1, "retention.ms"),
    (topic_settings(EXACTLY), "cleanup.policy", "", "cleanup.policy"),
    (broker_settings(EXACTLY), "log.dirs", "/data", "log.dirs"),
    (spark_source_settings(EXACTLY), "KAFKA.FETCH.MAX.WAIT.MS", 100, "kafka.fetch.max.wait.ms"),
    (spark_source_settings(MOST), "failOnDataLoss", "false", "failOnDataLoss"),
    (spark_sink_settings(EXACTLY), "kafka.linger.ms", 5, "kafka.linger.ms"),
    (spark_session_settings(EXACTLY), "spark.speculation", "true", "spark.speculation"),
]


@pytest.mark.parametrize(("settings", "name", "value"), REFUSED, ids=lambda each: repr(each)[:60])
def test_a_weakening_override_is_refused_and_named(settings: Settings, name: str, value: object) -> None:
    with pytest.raises(WeakensGuarantee) as caught:
        merge(settings, {name: value})
    text = str(caught.value)
    inner, inner_value = next(iter(value.items())) if isinstance(value, dict) else (name, value)
    assert f"{inner}={inner_value}" in text
    assert settings.guarantee.word in text
    assert caught.value.because in text
    assert caught.value.way_out
    assert caught.value.each == (caught.value,)


@pytest.mark.parametrize(("settings", "name", "value", "kept_as"), PASSED, ids=lambda each: repr(each)[:60])
def test_a_harmless_override_passes_once_and_untouched(
    settings: Settings, name: str, value: object, kept_as: str
) -> None:
    merged = merge(settings, {name: value})
    assert merged == settings.values() | {kept_as: value}


def test_all_that_weaken_are_named_in_one_error() -> None:
    with pytest.raises(WeakensGuarantee) as caught:
        merge(producer_settings(EXACTLY), {"acks": 1, "linger.ms": 5, "retries": 0, "client.id": "me"})
    error = caught.value
    assert [one.setting for one in error.each] == ["acks", "retries"]
    assert (error.setting, error.value, error.guarantee) == ("acks", 1, "exactly-once")
    for one in error.each:
        assert one.what in str(error)
        assert one.way_out in str(error)


def test_a_nested_topic_configuration_is_looked_into_and_wins_as_it_does_in_the_client() -> None:
    callback = object()
    merged = merge(
        producer_settings(LEAST),
        {"default.topic.config": {"delivery.timeout.ms": 0}, "delivery.timeout.ms": 200_000, "x": callback},
    )
    assert merged["delivery.timeout.ms"] == 0
    assert merged["x"] is callback
    assert "default.topic.config" not in merged


@pytest.mark.parametrize("settings", ALL, ids=lambda each: f"{each.side.value} {each.guarantee.word}")
def test_the_rows_agree_with_themselves(settings: Settings) -> None:
    names = [settings.side.plain(name) for row in settings for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names))
    for row in settings:
        assert row.because
        assert str(row.keeps)
        if row.value is None:
            assert row.setting is None
        else:
            assert row.keeps.accepts(row.value)
            assert row.setting == Setting(row.name, row.value, row.because)
    assert merge(settings, {}) == settings.values()
    assert merge(settings, settings.values()) == settings.values()


def test_arguments_stay_as_they_were() -> None:
    settings = producer_settings(LEAST)
    overrides: dict[str, object] = {"message.timeout.ms": 0, "default.topic.config": {"acks": "all"}}
    merge(settings, overrides)["retries"] = 1
    assert overrides == {"message.timeout.ms": 0, "default.topic.config": {"acks": "all"}}
    assert settings == producer_settings(LEAST)
    assert settings.values()["retries"] == "2147483647"
