"""No override found by search both passes and weakens: the real client is asked what it made of it.

librdkafka lists its configuration, aliases and spellings resolved, when it is created with debug=conf. What
it lists is judged here by hand-written rules that know nothing of the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kept.errors import WeakensGuarantee
from kept.guarantees import (
    AtLeastOnce,
    AtMostOnce,
    ExactlyOnce,
    Guarantee,
    consumer_settings,
    merge,
    producer_settings,
)

LEVELS: tuple[Guarantee, ...] = (AtMostOnce(), AtLeastOnce(), ExactlyOnce("pay"))
ADDRESS = {"bootstrap.servers": "127.0.0.1:1"}  # nobody listens there, and nobody has to

PRODUCER_DEFAULTS = {
    "request.required.acks": "-1",
    "message.send.max.retries": "2147483647",
    "message.timeout.ms": "300000",
    "enable.idempotence": "false",
    "max.in.flight.requests.per.connection": "1000000",
    "queuing.strategy": "fifo",
    "allow.auto.create.topics": "true",
    "test.mock.num.brokers": "0",
}
CONSUMER_DEFAULTS = {
    "enable.auto.commit": "true",
    "enable.auto.offset.store": "true",
    "isolation.level": "read_committed",
    "auto.offset.reset": "largest",
    "check.crcs": "false",
    "allow.auto.create.topics": "false",
    "offset.store.method": "broker",
    "topic:offset.store.method": "broker",
    "test.mock.num.brokers": "0",
}


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def as_understood(client: Any, configuration: Mapping[str, object]) -> dict[str, str]:
    """The configuration that the client says it has; `topic:` marks the namesake of a global one."""
    logger, lines = logging.Logger("kept.tests"), Lines()
    logger.addHandler(lines)
    made = client({**configuration, "debug": "conf"}, logger=logger)
    made.poll(0)
    if client is Consumer:
        made.close()
    return parsed(lines.lines)


def parsed(lines: list[str]) -> dict[str, str]:
    understood: dict[str, str] = {}
    prefix = ""
    for line in lines:
        if not line.startswith("CONF "):
            continue
        text = line.partition("]: ")[2]
        if text == "Default topic configuration:":
            prefix = "topic:"
        name, equals, value = text.strip().partition(" = ")
        if equals:
            shared = prefix and name in ("offset.store.method", "auto.commit.interval.ms")
            understood[f"topic:{name}" if shared else name] = value
    return understood


def producer_breaks(guarantee: Guarantee, conf: Mapping[str, str]) -> list[str]:
    """What goes wrong under this configuration."""
    get = {**PRODUCER_DEFAULTS, **conf}
    idempotent = get["enable.idempotence"] == "true"
    retries, timeout = int(get["message.send.max.retries"]), int(get["message.timeout.ms"])
    reorders = {"the order is turned round": get["queuing.strategy"] != "fifo"}
    loses = {
        "acknowledged before it is replicated": get["request.required.acks"] != "-1",
        "at a pause of 1 ms, given up before two minutes": retries < 120_000,
        "a topic with one copy comes into being": get["allow.auto.create.topics"] != "false",
        "a cluster in memory": get["test.mock.num.brokers"] != "0",
    }
    not_committed = {"a transaction nobody commits": "transactional.id" in get}
    match guarantee:
        case AtMostOnce():
            wrong = {"a retry may write twice": retries > 0 and not idempotent, **not_committed}
        case AtLeastOnce():
            wrong = {"given up before two minutes": 0 < timeout < 120_000, **not_committed, **loses}
        case ExactlyOnce(name):
            owner = get.get("transactional.id", "").split("/")[0]
            in_flight = int(get["max.in.flight.requests.per.connection"])
            wrong = {
                "no transaction, or another owner's": owner != f"kept.{name}",
                "the broker cannot recognise a resend": not idempotent or in_flight > 5,
                **loses,
            }
    return [text for text, broken in {**reorders, **wrong}.items() if broken]


def consumer_breaks(guarantee: Guarantee, conf: Mapping[str, str]) -> list[str]:
    """What goes wrong under this configuration."""
    get = {**CONSUMER_DEFAULTS, **conf}
    reset = get["auto.offset.reset"]
    repeats = {
        "aborted and sent again: seen twice": get["isolation.level"] != "read_committed",
        "lost progress repeats": reset in ("smallest", "earliest", "beginning"),
    }
    skips = {
        "lost progress skips": reset in ("largest", "latest", "end"),
        "deleted records are skipped silently": reset != "error",
        "a damaged record passes": get["check.crcs"] != "true",
        "a topic by accident": get["allow.auto.create.topics"] != "false",
        "a cluster in memory": get["test.mock.num.brokers"] != "0",
    }
    wrong = {
        "progress is committed by itself": get["enable.auto.commit"] != "false",
        "progress is stored by itself": get["enable.auto.offset.store"] != "false",
        "progress is not with the group": get["offset.store.method"] != "broker",
        "progress of a topic is not with the group": get["topic:offset.store.method"] != "broker",
        "another group's progress": get["group.id"] != "mailer",
        **({} if isinstance(guarantee, AtLeastOnce) else repeats),
        **({} if isinstance(guarantee, AtMostOnce) else skips),
    }
    return [text for text, broken in wrong.items() if broken]


NUMBERS = (-1, 0, 1, 2, 5, 6, 1000, 119_999, 300_000, 2**31 - 1, 2**32 - 1, 2**32, 2**32 + 1, 2**32 + 7, 2**64)
FLAGS = ("true", "false", "t", "f", "1", "0", True, False)
RESETS = ("earliest", "smallest", "beginning", "latest", "largest", "end", "error")
ODD = ("0x5", "010", "0x493e0", "1e9", "5abc", "-1x", "\u212a", "all\0", "true\0", "", "yes", "none", None)

# What the search writes overrides with: names, and values that are likely to matter for them.
PRODUCER_WORDS: Mapping[str, tuple[object, ...]] = {
    "acks": ("all", *NUMBERS),
    "request.required.acks": ("all", *NUMBERS),
    "retries": NUMBERS,
    "message.send.max.retries": NUMBERS,
    "max.in.flight": NUMBERS,
    "max.in.flight.requests.per.connection": NUMBERS,
    "delivery.timeout.ms": NUMBERS,
    "message.timeout.ms": NUMBERS,
    "enable.idempotence": FLAGS,
    "transactional.id": ("kept.pay", "kept.pay/a/1", "kept.payments", "pay", "", None),
    "delivery.report.only.error": FLAGS,
    "queuing.strategy": ("fifo", "lifo"),
    "allow.auto.create.topics": FLAGS,
    "linger.ms": NUMBERS,
    "queue.buffering.max.ms": NUMBERS,
    "enable.gapless.guarantee": FLAGS,
    "transaction.timeout.ms": NUMBERS,
    "queue.buffering.backpressure.threshold": NUMBERS,
}
CONSUMER_WORDS: Mapping[str, tuple[object, ...]] = {
    "enable.auto.commit": FLAGS,
    "auto.commit.enable": FLAGS,
    "enable.auto.offset.store": FLAGS,
    "isolation.level": ("read_committed", "read_uncommitted"),
    "auto.offset.reset": RESETS,
    "check.crcs": FLAGS,
    "offset.store.method": ("none", "file", "broker"),
    "group.id": ("mailer", "other", " mailer", None),
    "allow.auto.create.topics": FLAGS,
    "enable.partition.eof": FLAGS,
    "auto.commit.interval.ms": NUMBERS,
    "fetch.wait.max.ms": NUMBERS,
}


def overrides_of(words: Mapping[str, tuple[object, ...]]) -> st.SearchStrategy[dict[str, object]]:
    pair = st.sampled_from(sorted(words)).flatmap(lambda name: st.tuples(spelled(name), valued(words[name])))
    flat = st.lists(pair, min_size=1, max_size=3).map(dict)
    nested = st.builds(lambda outer, inner: {**outer, "default.topic.config": inner}, flat, flat)
    return st.one_of(flat, flat, flat, nested)


def spellings(name: str) -> tuple[str, ...]:
    return (name, f"topic.{name}", f"{name}\0more", f"topic.{name}\0more", name.upper(), f" {name}")


def spelled(name: str) -> st.SearchStrategy[str]:
    return st.sampled_from((name, name, name, *spellings(name)))


def forms(value: object) -> tuple[object, ...]:
    text = str(value)
    return (value, text, text.upper(), f" {text}", f"{text} ", f"{text}.9")


def valued(likely: tuple[object, ...]) -> st.SearchStrategy[object]:
    anything = st.one_of(st.integers(-(2**33), 2**33), st.floats(allow_nan=False), st.text(max_size=8))
    return st.one_of(st.sampled_from([form for value in (*likely, *ODD) for form in forms(value)]), anything)


def one_at_a_time(words: Mapping[str, tuple[object, ...]]) -> Iterator[dict[str, object]]:
    """Every name in its first three spellings, with every likely or odd value in every form."""
    for name, likely in words.items():
        values = dict.fromkeys((type(form), form) for value in (*likely, *ODD) for form in forms(value))
        for spelling in spellings(name)[:3]:
            for _, value in values:
                yield {spelling: value}


def hides_success(configuration: Mapping[str, object]) -> bool:
    """The one setting that confluent-kafka keeps for itself, so that librdkafka does not list it."""
    return any(
        name.partition("\0")[0] == "delivery.report.only.error" and value is True
        for name, value in configuration.items()
    )


def producer_weakness(guarantee: Guarantee, overrides: Mapping[str, object]) -> list[str]:
    """What the overrides break, when neither merge nor the client itself refuses them."""
    try:
        merged = merge(producer_settings(guarantee), overrides)
        understood = as_understood(Producer, merged)
    except (WeakensGuarantee, KafkaException, TypeError):
        return []
    unseen = ["success goes unreported"] if hides_success(merged) else []
    return unseen + producer_breaks(guarantee, understood)


def consumer_weakness(guarantee: Guarantee, overrides: Mapping[str, object]) -> list[str]:
    """What the overrides break, when neither merge nor the client itself refuses them."""
    try:
        merged = merge(consumer_settings(guarantee, "mailer"), overrides)
        understood = as_understood(Consumer, merged)
    except (WeakensGuarantee, KafkaException, TypeError, ValueError):
        return []
    return consumer_breaks(guarantee, understood)


@pytest.mark.parametrize("guarantee", LEVELS, ids=lambda level: level.word)
def test_no_single_override_both_passes_and_weakens(guarantee: Guarantee) -> None:
    sent = [(each, producer_weakness(guarantee, each)) for each in one_at_a_time(PRODUCER_WORDS)]
    read = [(each, consumer_weakness(guarantee, each)) for each in one_at_a_time(CONSUMER_WORDS)]
    assert [(each, wrong) for each, wrong in sent + read if wrong] == []


@pytest.mark.parametrize("guarantee", LEVELS, ids=lambda level: level.word)
@settings(max_examples=100, deadline=None)
@given(overrides=overrides_of(PRODUCER_WORDS))
@example(overrides={"default.topic.config": {"request.required.acks": 0}})
def test_no_producer_overrides_both_pass_and_weaken(guarantee: Guarantee, overrides: dict[str, object]) -> None:
    assert producer_weakness(guarantee, overrides) == []


@pytest.mark.parametrize("guarantee", LEVELS, ids=lambda level: level.word)
@settings(max_examples=100, deadline=None)
@given(overrides=overrides_of(CONSUMER_WORDS))
@example(overrides={"default.topic.config": {"auto.offset.reset": "end"}})
def test_no_consumer_overrides_both_pass_and_weaken(guarantee: Guarantee, overrides: dict[str, object]) -> None:
    assert consumer_weakness(guarantee, overrides) == []


@pytest.mark.parametrize("guarantee", LEVELS, ids=lambda level: level.word)
def test_the_real_clients_take_the_derived_settings(guarantee: Guarantee) -> None:
    sent = merge(producer_settings(guarantee), ADDRESS)
    assert producer_breaks(guarantee, as_understood(Producer, sent)) == []
    read = merge(consumer_settings(guarantee, "mailer"), ADDRESS)
    assert consumer_breaks(guarantee, as_understood(Consumer, read)) == []


@pytest.mark.parametrize("guarantee", LEVELS, ids=lambda level: level.word)
def test_without_kept_the_defaults_break_the_promise(guarantee: Guarantee) -> None:
    """Shows that the rules above can say no."""
    assert producer_breaks(guarantee, as_understood(Producer, ADDRESS))
    assert consumer_breaks(guarantee, as_understood(Consumer, {**ADDRESS, "group.id": "mailer"}))


@pytest.mark.parametrize(
    ("alias", "name", "value"),
    [
        ("acks", "request.required.acks", "1"),
        ("retries", "message.send.max.retries", "7"),
        ("max.in.flight", "max.in.flight.requests.per.connection", "4"),
        ("delivery.timeout.ms", "message.timeout.ms", "1234"),
        ("topic.acks", "request.required.acks", "1"),
        ("topic.delivery.timeout.ms", "message.timeout.ms", "1234"),
        ("acks\0more", "request.required.acks", "1"),
    ],
)
def test_each_alias_is_one_to_the_producer(alias: str, name: str, value: str) -> None:
    assert as_understood(Producer, {alias: value})[name] == value
    assert as_understood(Producer, {name: value})[name] == value


@pytest.mark.parametrize(
    ("alias", "name", "value", "meant"),
    [
        # librdkafka: of a topic's own settings, enable.auto.commit is the alias of auto.commit.enable.
        ("topic.enable.auto.commit", "auto.commit.enable", "t", "true"),
        ("topic.auto.offset.reset", "auto.offset.reset", "beginning", "smallest"),
        ("auto.offset.reset", "auto.offset.reset", "end", "largest"),
        ("isolation.level", "isolation.level", "READ_uncommitted", "read_uncommitted"),
    ],
)
def test_each_alias_is_one_to_the_consumer(alias: str, name: str, value: str, meant: str) -> None:
    assert as_understood(Consumer, {"group.id": "mailer", alias: value})[name] == meant


def test_every_alias_in_the_rows_is_tried_above() -> None:
    listed = {
        alias
        for guarantee in LEVELS
        for derived in (producer_settings(guarantee), consumer_settings(guarantee, "mailer"))
        for row in derived
        for alias in row.aliases
    }
    assert listed == {
        "request.required.acks",
        "message.send.max.retries",
        "max.in.flight",
        "message.timeout.ms",
        "auto.commit.enable",
    }
