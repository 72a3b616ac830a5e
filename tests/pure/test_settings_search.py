"""No override found by search both passes and weakens, where Java or Spark reads the settings.

The rules here are written by hand from what those readers do: they trim, they fold case, they let one
option win over another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kept.errors import WeakensGuarantee
from kept.guarantees import (
    AtLeastOnce,
    AtMostOnce,
    ExactlyOnce,
    Guarantee,
    broker_settings,
    merge,
    producer_settings,
    spark_session_settings,
    spark_sink_settings,
    spark_source_settings,
    topic_settings,
)

LEVELS: tuple[Guarantee, ...] = (AtMostOnce(), AtLeastOnce(), ExactlyOnce("pay"))
DAY = 86_400_000


class ReaderSaysNo(Exception):
    """The reader itself refuses the value: nothing runs, nothing is weakened."""


def flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ReaderSaysNo
    return word == "true"


def number(text: str, largest: int = 2**31 - 1) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ReaderSaysNo from None
    if "_" in text or not -largest - 1 <= value <= largest:
        raise ReaderSaysNo
    return value


def java(merged: Mapping[str, object]) -> dict[str, str]:
    """As a properties file is read: white space around a name is not part of it, the last line wins."""
    return {name.strip(): str(value) for name, value in merged.items()}


def spark(merged: Mapping[str, object]) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in merged.items()}


def topic_breaks(guarantee: Guarantee, merged: Mapping[str, object]) -> str | None:
    get = java(merged)
    if isinstance(guarantee, AtMostOnce):
        return None
    if number(get["replication.factor"], 2**15 - 1) < 3 or number(get["min.insync.replicas"]) < 2:
        return "one copy"
    if flag(get["unclean.leader.election.enable"]):
        return "acknowledged records cut off"
    if "compact" in get["cleanup.policy"]:
        return "overwritten before read"
    retention = number(get["retention.ms"], 2**63 - 1)
    if retention != -1 and retention < DAY:
        return "deleted before read"
    return "deleted by size" if number(get["retention.bytes"], 2**63 - 1) != -1 else None


def broker_breaks(guarantee: Guarantee, merged: Mapping[str, object]) -> str | None:
    get = java(merged)
    copies = ["offsets.topic.replication.factor"]
    if not isinstance(guarantee, AtMostOnce):
        copies.append("default.replication.factor")
    if isinstance(guarantee, ExactlyOnce):
        copies.append("transaction.state.log.replication.factor")
    if any(number(get[name], 2**15 - 1) < 3 for name in copies):
        return "one copy"
    if number(get["min.insync.replicas"]) < 2 or flag(get["unclean.leader.election.enable"]):
        return "progress goes back"
    if number(get["offsets.retention.minutes"]) < 7 * 24 * 60:
        return "progress is forgotten"
    if not isinstance(guarantee, AtMostOnce) and flag(get["auto.create.topics.enable"]):
        return "a topic by accident"
    return transactions_break(get) if isinstance(guarantee, ExactlyOnce) else None


def transactions_break(get: Mapping[str, str]) -> str | None:
    if number(get["transaction.state.log.min.isr"]) < 2:
        return "a commit is forgotten"
    if not flag(get["transaction.partition.verification.enable"]):
        return "late records fall into the next transaction"
    if number(get["transactional.id.expiration.ms"]) < 7 * DAY or number(get["producer.id.expiration.ms"]) < DAY:
        return "fences or sequence numbers are forgotten"
    return None


def source_breaks(guarantee: Guarantee, merged: Mapping[str, object]) -> str | None:
    get = spark(merged)
    if "minpartitions" in get or "maxrecordsperpartition" in get:
        return "a partition over several tasks"
    if not isinstance(guarantee, AtLeastOnce) and get["kafka.isolation.level"].strip() != "read_committed":
        return "aborted and sent again: seen twice"
    if isinstance(guarantee, AtMostOnce):
        return None
    by_time = "startingtimestamp" in get or "startingoffsetsbytimestamp" in get
    if by_time or get["startingoffsets"].strip().lower() != "earliest":
        return "starts late"
    if not flag(get["failondataloss"]) or not flag(get["kafka.check.crcs"]):
        return "loss or damage passes"
    return "a topic by accident" if flag(get["kafka.allow.auto.create.topics"]) else None


def sink_breaks(guarantee: Guarantee, merged: Mapping[str, object]) -> str | None:
    get = spark(merged)
    if not isinstance(guarantee, AtLeastOnce) and flag(get["asyncprogresstrackingenabled"]):
        return "Spark's progress lags"
    passed_on = {name.partition("\0")[0] for name in get if name.startswith("kafka.")}
    for name in ("acks", "retries"):
        # What the row says is written under the row's name; nothing else may mean the same setting.
        if len(passed_on & {f"kafka.{p}{n}" for p in ("", "topic.") for n in ALIASES[name]}) != 1:
            return "two values for one setting"
    acks = get["kafka.acks"]
    if not isinstance(guarantee, AtMostOnce) and acks.lower() not in ("all", "-1"):
        return "acknowledged before it is replicated"
    return "a retry may write twice" if isinstance(guarantee, AtMostOnce) and get["kafka.retries"] != "0" else None


ALIASES = {"acks": ("acks", "request.required.acks"), "retries": ("retries", "message.send.max.retries")}


def session_breaks(guarantee: Guarantee, merged: Mapping[str, object]) -> str | None:
    get = spark(merged)
    checks = (
        "spark.sql.streaming.unsupportedoperationcheck",
        "spark.sql.streaming.statefuloperator.checkcorrectness.enabled",
    )
    if isinstance(guarantee, AtMostOnce):
        return None
    return None if all(flag(get[name]) for name in checks) else "a plan that drops rows"


SIDES = {
    "topic": (topic_settings, topic_breaks),
    "broker": (broker_settings, broker_breaks),
    "source": (spark_source_settings, source_breaks),
    "sink": (spark_sink_settings, sink_breaks),
    "session": (spark_session_settings, session_breaks),
}

FLAGS = ("true", "false", "TRUE", "FALSE", " true", "false ", True, False, 1, 0)
COUNTS = (-1, 0, 1, 2, 3, 5, "1", "2", "3", "+3", "03", " 3", "1_0", "3.0", "1e9", "\u0663", 2**15, 2**32 + 3, 2**64)
TIMES = (-1, 0, 1, DAY - 1, DAY, 7 * DAY - 1, 7 * DAY, 7 * 24 * 60, 2**31 - 1, 2**31, 2**63 - 1, 2**63, "1e12")
ACKS = ("all", "ALL", "-1", -1, 0, 1, "1abc")

# What the search writes overrides with: names, and values that are likely to matter for them.
WORDS: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "topic": {
        "replication.factor": COUNTS,
        "min.insync.replicas": COUNTS,
        "unclean.leader.election.enable": FLAGS,
        "cleanup.policy": ("delete", "compact", "delete,compact", "", "Delete"),
        "retention.ms": TIMES,
        "retention.bytes": TIMES,
    },
    "broker": {
        "offsets.topic.replication.factor": COUNTS,
        "default.replication.factor": COUNTS,
        "transaction.state.log.replication.factor": COUNTS,
        "min.insync.replicas": COUNTS,
        "transaction.state.log.min.isr": COUNTS,
        "unclean.leader.election.enable": FLAGS,
        "auto.create.topics.enable": FLAGS,
        "transaction.partition.verification.enable": FLAGS,
        "offsets.retention.minutes": TIMES,
        "transactional.id.expiration.ms": TIMES,
        "producer.id.expiration.ms": TIMES,
    },
    "source": {
        "failOnDataLoss": FLAGS,
        "startingOffsets": ("earliest", "latest", "EARLIEST", '{"a":{"0":-1}}'),
        "startingTimestamp": TIMES,
        "startingOffsetsByTimestamp": ('{"a":{"0":1}}',),
        "minPartitions": COUNTS,
        "maxRecordsPerPartition": COUNTS,
        "kafka.isolation.level": ("read_committed", "read_uncommitted", "READ_UNCOMMITTED"),
        "kafka.check.crcs": FLAGS,
        "kafka.allow.auto.create.topics": FLAGS,
        "kafka.fetch.max.wait.ms": COUNTS,
        "kafka.default.api.timeout.ms": TIMES,
        "kafka.request.timeout.ms": TIMES,
        "fetchOffset.numRetries": COUNTS,
    },
    "sink": {
        "asyncProgressTrackingEnabled": FLAGS,
        "kafka.acks": ACKS,
        "kafka.acks\0x": ACKS,
        "kafka.request.required.acks": ACKS,
        "kafka.topic.acks": ACKS,
        "kafka.retries": COUNTS,
        "kafka.message.send.max.retries": COUNTS,
    },
    "session": {
        "spark.speculation": FLAGS,
        "spark.sql.streaming.unsupportedOperationCheck": FLAGS,
        "spark.sql.streaming.statefulOperator.checkCorrectness.enabled": FLAGS,
    },
}


def overrides_of(side: str) -> st.SearchStrategy[dict[str, object]]:
    words = WORDS[side]
    pair = st.sampled_from(sorted(words)).flatmap(lambda name: st.tuples(spelled(name), valued(words[name])))
    return st.lists(pair, min_size=1, max_size=3).map(dict)


def spellings(name: str) -> tuple[str, ...]:
    return (name, name.lower(), name.upper(), name.title(), f" {name}", f"{name} ")


def spelled(name: str) -> st.SearchStrategy[str]:
    return st.sampled_from((name, *spellings(name)))


def valued(likely: tuple[object, ...]) -> st.SearchStrategy[object]:
    value = st.sampled_from(likely)
    anything = st.one_of(st.integers(-(2**33), 2**33), st.text(max_size=6), st.none())
    return st.one_of(value, value, value, anything)


def weakness(side: str, guarantee: Guarantee, overrides: Mapping[str, object]) -> str | None:
    """What the overrides break, when neither merge nor the reader itself refuses them."""
    derive, breaks = SIDES[side]
    try:
        return breaks(guarantee, merge(derive(guarantee), overrides))
    except (WeakensGuarantee, ReaderSaysNo):
        return None


@pytest.mark.parametrize("guarantee", LEVELS, ids=lambda level: level.word)
@pytest.mark.parametrize("side", SIDES)
def test_no_single_override_both_passes_and_weakens(side: str, guarantee: Guarantee) -> None:
    overrides = [
        {spelling: value}
        for name, likely in WORDS[side].items()
        for spelling in spellings(name)
        for value in (*likely, *map(str, likely))
    ]
    found = [(each, weakness(side, guarantee, each)) for each in overrides]
    assert [(each, wrong) for each, wrong in found if wrong] == []


@pytest.mark.parametrize("guarantee", LEVELS, ids=lambda level: level.word)
@pytest.mark.parametrize("side", SIDES)
@settings(max_examples=100)
@given(data=st.data())
def test_no_overrides_both_pass_and_weaken(side: str, guarantee: Guarantee, data: st.DataObject) -> None:
    assert weakness(side, guarantee, data.draw(overrides_of(side))) is None


@pytest.mark.parametrize("guarantee", LEVELS, ids=lambda level: level.word)
@pytest.mark.parametrize("side", SIDES)
def test_the_derived_settings_keep_the_promise(side: str, guarantee: Guarantee) -> None:
    derive, breaks = SIDES[side]
    assert breaks(guarantee, derive(guarantee).values()) is None


@pytest.mark.parametrize("guarantee", LEVELS, ids=lambda level: level.word)
def test_the_kafka_sink_guards_every_setting_of_its_producers(guarantee: Guarantee) -> None:
    guarded: Callable[[str], object] = spark_sink_settings(guarantee).find
    for row in producer_settings(guarantee):
        for name in (row.name, *row.aliases):
            assert guarded(f"kafka.{name}")
            assert guarded(f"Kafka.Topic.{name.upper()}")
