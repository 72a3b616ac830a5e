"""The order within a partition, where a broker that does not lead yet refuses a batch, and takes the one behind it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as Client

from kept.consumer import Reader, Start
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee
from kept.local import Cluster
from kept.producer import Producer
from kept.verify.proxy import Api, Direction, Nth, Rule, beside
from tests.brokers.refusing import refusing

STANDS_STILL = 0.5
"""Seconds in which the first batch has no answer: a client that may have a second one under way sends it."""


@contextmanager
def first_refused(cluster: Cluster, topic: str, second_comes: Callable[[], object]) -> Iterator[str]:
    """Brokers of which one refuses the first batch; the second one comes while it has no answer yet."""

    def meanwhile() -> None:
        second_comes()
        time.sleep(STANDS_STILL)

    with beside(cluster) as proxy:
        refused = refusing(topic, KafkaError.NOT_LEADER_FOR_PARTITION, meanwhile)
        armed = proxy.add(Rule(Api.PRODUCE, Direction.REQUEST, refused, Nth(1)))
        yield proxy.bootstrap
        assert armed.caught == 1


def in_the_log(cluster: Cluster, topic: str) -> list[bytes | None]:
    with Reader(cluster.bootstrap, topic, start=Start.BEGINNING) as reader:
        return [record.value for record in reader.to_end()]


def two_sent(cluster: Cluster, topic: str, guarantee: Guarantee, **settings: Any) -> list[bytes | None]:
    """Two records, each in a batch of its own, of which the first is refused: how they stand in the log."""

    def second_comes() -> None:
        producer.send(topic, "second", partition=0)

    with (
        first_refused(cluster, topic, second_comes) as bootstrap,
        Producer(bootstrap, guarantee, **{"linger.ms": 0, **settings}) as producer,
    ):
        producer.send(topic, "first", partition=0).result(30)
    return in_the_log(cluster, topic)


@pytest.mark.parametrize("guarantee", [AtLeastOnce(), ExactlyOnce("in-order")])
def test_nothing_is_lost_and_the_order_is_kept(cluster: Cluster, topic: str, guarantee: Guarantee) -> None:
    assert two_sent(cluster, topic, guarantee) == [b"first", b"second"]


@pytest.mark.parametrize("in_flight", [1, 1000])
def test_at_most_once_may_lose_the_order(cluster: Cluster, topic: str, in_flight: int) -> None:
    """What docs/settings.md says: without numbers of batches no setting of the client keeps it."""
    settings = {"max.in.flight.requests.per.connection": in_flight}
    assert two_sent(cluster, topic, AtMostOnce(), **settings) == [b"second", b"first"]


def test_the_client_by_itself_loses_a_record_that_it_calls_written(cluster: Cluster, topic: str) -> None:
    """The control, with the client's own defaults of an idempotent producer (five batches under way)."""
    told: dict[bytes | None, KafkaError | None] = {}

    def hear(error: KafkaError | None, message: Message) -> None:
        told[message.value()] = error

    def second_comes() -> None:
        client.produce(topic, b"second", partition=0, on_delivery=hear)

    with first_refused(cluster, topic, second_comes) as bootstrap:
        client = Client({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
        client.produce(topic, b"first", partition=0, on_delivery=hear)
        assert client.flush(30) == 0
    assert told == {b"first": None, b"second": None}
    assert in_the_log(cluster, topic) == [b"second"]
