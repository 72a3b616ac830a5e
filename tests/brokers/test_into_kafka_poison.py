"""Records that cannot be done: tried again, proven, and buried in the transaction of their neighbours."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kept.consumer.dead_letters import read_letter
from kept.consumer.outgoing import Output
from kept.consumer.records import Record
from kept.consumer.retrying import Retry
from kept.errors import NotPersisted
from kept.local import Cluster
from tests.brokers.pipes import copying, fill, new_name, new_topic, pipe, read, values
from tests.conftest import Eventually

QUICKLY = Retry(times=2, first=0.05)
GOOD = [f"record-{number:03}" for number in range(90)]


def buried(bootstrap: str, topic: str) -> list[bytes]:
    return sorted(read_letter(record).value or b"" for record in read(bootstrap, topic))


def in_order(found: list[Record]) -> bool:
    kept_values = [record.value or b"" for record in found]
    return kept_values == sorted(kept_values)


def test_one_that_raises_is_tried_again_and_then_buried(cluster: Cluster) -> None:
    source, sink, dead = (new_topic(cluster.bootstrap) for _ in range(3))
    fill(cluster.bootstrap, source, GOOD[:9], partition=0)
    tries: Counter[bytes] = Counter()

    def transform(record: Record) -> Output:
        value = record.value or b""
        tries[value] += 1
        if value == b"record-004" or (value == b"record-006" and tries[value] == 1):
            raise ValueError("no\nand a second line")
        return Output(sink, value, partition=0)

    pipe(cluster.bootstrap, source, new_name(), transform, retry=QUICKLY, dead_letters=dead)
    assert tries[b"record-004"] == 3
    assert tries[b"record-006"] == 2
    (letter,) = [read_letter(record) for record in read(cluster.bootstrap, dead)]
    assert (letter.place, letter.offset, letter.value) == ((source, 0), 4, b"record-004")
    assert letter.reason == "ValueError: no\nand a second line"
    found = read(cluster.bootstrap, sink)
    assert [record.value for record in found] == [value.encode() for value in GOOD[:9] if value != "record-004"]


def test_without_dead_letters_the_error_ends_it_and_nothing_is_lost(cluster: Cluster) -> None:
    source, sink, name = new_topic(cluster.bootstrap), new_topic(cluster.bootstrap), new_name()
    fill(cluster.bootstrap, source, GOOD[:9], partition=0)

    def transform(record: Record) -> Output:
        if record.value == b"record-004":
            raise ZeroDivisionError("not now")
        return Output(sink, record.value)

    with pytest.raises(ZeroDivisionError, match="not now"):
        pipe(cluster.bootstrap, source, name, transform, retry=QUICKLY)
    assert values(cluster.bootstrap, sink) == [value.encode() for value in GOOD[:4]]
    pipe(cluster.bootstrap, source, name, copying(sink))
    assert values(cluster.bootstrap, sink) == [value.encode() for value in GOOD[:9]]


def test_too_large_for_the_broker_is_found_by_halves(cluster: Cluster, eventually: Eventually) -> None:
    """The broker refuses whole batches: the records beside the large ones are neither buried nor reordered."""
    bootstrap = cluster.bootstrap
    source, dead = new_topic(bootstrap), new_topic(bootstrap)
    sink = new_topic(bootstrap, max_message_bytes=4000)
    large = {30: "x" * 5000, 31: "y" * 5000, 77: "z" * 5000}
    fill(bootstrap, source, [large.get(number, value) for number, value in enumerate(GOOD)], partition=0)

    def transform(record: Record) -> Output:
        return Output(sink, record.value, partition=0)

    pipe(bootstrap, source, new_name(), transform, dead_letters=dead)
    assert buried(bootstrap, dead) == sorted(value.encode() for value in large.values())
    assert all("too large" in read_letter(record).reason.lower() for record in read(bootstrap, dead))
    found = read(bootstrap, sink)
    assert len(found) == len(GOOD) - 3
    assert in_order(found)


def test_outputs_of_one_record_that_are_too_large_together_are_not_poison(cluster: Cluster) -> None:
    """Rule 14: each is legal, their batch is not; only one whose own report says so is poison."""
    bootstrap = cluster.bootstrap
    source, dead = new_topic(bootstrap), new_topic(bootstrap)
    sink = new_topic(bootstrap, max_message_bytes=4000)
    fill(bootstrap, source, ["a", "b"], partition=0)

    def transform(record: Record) -> list[Output]:
        return [Output(sink, (record.value or b"") * 1500, partition=0) for _ in range(6)]

    pipe(bootstrap, source, new_name(), transform, dead_letters=dead)
    assert buried(bootstrap, dead) == []
    assert [(record.value or b"")[:1] for record in read(bootstrap, sink)] == [b"a"] * 6 + [b"b"] * 6


def test_too_large_for_the_client(cluster: Cluster) -> None:
    """Several in one partition and one transaction: each is buried, none forgotten over the next."""
    bootstrap = cluster.bootstrap
    source, sink, dead = (new_topic(bootstrap) for _ in range(3))
    fill(bootstrap, source, GOOD[:30], partition=0)
    bad = {b"record-005", b"record-006", b"record-020"}

    def transform(record: Record) -> Output:
        value = record.value or b""
        return Output(sink, value * 500 if value in bad else value, partition=0)

    pipe(bootstrap, source, new_name(), transform, dead_letters=dead, **{"message.max.bytes": 2000})
    assert buried(bootstrap, dead) == sorted(bad)
    found = read(bootstrap, sink)
    assert len(found) == 27
    assert in_order(found)


@pytest.mark.parametrize("limit", ["the broker", "the client"])
def test_too_large_without_dead_letters_is_an_error_and_nothing_is_lost(cluster: Cluster, limit: str) -> None:
    bootstrap, name = cluster.bootstrap, new_name()
    source, other = new_topic(bootstrap), new_topic(bootstrap)
    sink = new_topic(bootstrap, max_message_bytes=4000) if limit == "the broker" else new_topic(bootstrap)
    options: dict[str, Any] = {"message.max.bytes": 4000} if limit == "the client" else {}
    fill(bootstrap, source, [*GOOD[:5], "x" * 5000, *GOOD[5:9]], partition=0)
    with pytest.raises(NotPersisted, match="large"):
        pipe(bootstrap, source, name, copying(sink), **options)
    before = values(bootstrap, sink)
    assert before == [value.encode() for value in GOOD[: len(before)]]
    assert len(before) <= 5
    pipe(bootstrap, source, name, copying(other))
    assert before + values(bootstrap, other)[: 9 - len(before)] == [value.encode() for value in GOOD[:9]]


def test_a_letter_that_is_refused_as_well_is_an_error(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap
    source, sink = new_topic(bootstrap), new_topic(bootstrap)
    fill(bootstrap, source, ["small", "x" * 5000], partition=0)
    with pytest.raises(NotPersisted, match="large"):
        pipe(bootstrap, source, new_name(), copying(sink), dead_letters=sink, **{"message.max.bytes": 4000})


@pytest.mark.parametrize("output", [Output("missing-topic", b"x"), Output("not a name", b"x")])
def test_an_output_topic_that_is_not_there_is_told(cluster: Cluster, output: Output) -> None:
    """It is nobody's poison: nothing is buried, and nothing is done."""
    bootstrap, name = cluster.bootstrap, new_name()
    source, sink, dead = (new_topic(bootstrap) for _ in range(3))
    fill(bootstrap, source, GOOD[:3])
    with pytest.raises(NotPersisted, match=output.topic) as told:
        pipe(bootstrap, source, name, lambda _: [Output(sink, b"torn"), output], dead_letters=dead)
    assert told.value.way_out
    pipe(bootstrap, source, name, copying(sink))
    assert values(bootstrap, dead) == []
    assert values(bootstrap, sink) == [value.encode() for value in GOOD[:3]]


def test_a_partition_that_is_not_there_is_told(cluster: Cluster) -> None:
    source, sink = new_topic(cluster.bootstrap), new_topic(cluster.bootstrap)
    fill(cluster.bootstrap, source, GOOD[:3])
    with pytest.raises(NotPersisted, match="partition"):
        pipe(cluster.bootstrap, source, new_name(), lambda record: Output(sink, record.value, partition=17))


def test_an_output_that_cannot_be_sent_is_the_records_own_trouble(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap
    source, sink, dead = (new_topic(bootstrap) for _ in range(3))
    fill(bootstrap, source, GOOD[:4], partition=0)

    def transform(record: Record) -> Any:
        if record.value == b"record-002":
            return [Output(sink, b"torn"), Output(sink, 17)]  # type: ignore[arg-type]
        return Output(sink, record.value)

    pipe(bootstrap, source, new_name(), transform, dead_letters=dead)
    assert buried(bootstrap, dead) == [b"record-002"]
    assert values(bootstrap, sink) == [b"record-000", b"record-001", b"record-003"]
