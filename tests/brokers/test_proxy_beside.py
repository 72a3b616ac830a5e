"""The proxy beside a cluster that runs: who begins there stays with it, everybody else notices nothing."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from kept.consumer import Consumer
from kept.errors import FixConfiguration
from kept.guarantees import AtLeastOnce
from kept.local import Cluster
from kept.producer import Producer
from kept.verify.proxy import Api, KafkaProxyBeside, beside


def told(bootstrap: str) -> set[str]:
    """Where a client that begins here is told that the brokers are."""
    brokers = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).brokers
    return {f"{broker.host}:{broker.port}" for broker in brokers.values()}


def test_clients_that_begin_at_the_proxy_stay_with_it(cluster: Cluster, topic: str) -> None:
    with beside(cluster) as proxy:
        assert told(proxy.bootstrap) == set(proxy.addresses.values())
        with Producer(proxy.bootstrap, AtLeastOnce()) as producer:
            for number in range(30):
                producer.send(topic, str(number), partition=number % 3)
        with Consumer(proxy.bootstrap, topic, group=topic, guarantee=AtLeastOnce()) as consumer:
            records = iter(consumer)
            assert {(next(records).value or b"").decode() for _ in range(30)} == {str(number) for number in range(30)}
        seen = proxy.counts()
        assert {Api.PRODUCE, Api.FETCH, Api.FIND_COORDINATOR, Api.JOIN_GROUP, Api.OFFSET_COMMIT} <= set(seen)
        assert seen[Api.PRODUCE] >= 3, "of every leader"
    assert told(cluster.bootstrap) == set(cluster.bootstrap.split(",")), "the cluster is as it was"


def test_an_address_that_cannot_be_exchanged_is_refused() -> None:
    with pytest.raises(FixConfiguration, match=r"broker\.example:9092"):
        KafkaProxyBeside({1: "broker.example:9092"})
