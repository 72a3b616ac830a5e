"""Records that are handed over in the quick way are those that come the careful way."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer as Client
from confluent_kafka import TopicPartition

from kept.consumer import Reader, Start
from kept.consumer.outgoing import Refused, Transaction
from kept.errors import NotPersisted
from kept.guarantees import ExactlyOnce, producer_settings
from kept.local import Cluster
from kept.producer.clients import fenced_client


def transaction(cluster: Cluster, **settings: object) -> Transaction:
    name = ExactlyOnce(f"test-{uuid.uuid4().hex[:8]}")
    given = {**producer_settings(name).values(), "log_level": 0, "bootstrap.servers": cluster.bootstrap, **settings}
    given["transactional.id"] = name.name
    opened = Transaction(given, set(), lambda: fenced_client(given, 10))
    opened.begin()
    return opened


def test_a_full_buffer_is_waited_for_and_nothing_is_dropped_or_reordered(cluster: Cluster, topic: str) -> None:
    sending = transaction(cluster, **{"queue.buffering.max.messages": 100})
    values = [str(number).encode() for number in range(3000)]
    sending.send_plain(topic, values, [b"same"] * len(values))
    group = Client({"bootstrap.servers": cluster.bootstrap, "group.id": topic}).consumer_group_metadata()
    sending.commit([TopicPartition(topic, 0, 1)], group)
    with Reader(cluster.bootstrap, topic, start=Start.BEGINNING) as reader:
        found = [(record.key, record.value) for record in reader.to_end()]
    assert found == [(b"same", value) for value in values]


def test_what_the_client_does_not_take_is_told_as_it_is_of_a_single_record(cluster: Cluster, topic: str) -> None:
    sending = transaction(cluster)
    with pytest.raises(Refused, match="too large") as caught:
        sending.send_plain(topic, [b"small", bytes(2_000_000)], [None, None])
    assert isinstance(caught.value.refusal, NotPersisted)
    sending.abort()


def test_a_topic_that_is_not_there_is_told_at_once(cluster: Cluster) -> None:
    sending = transaction(cluster)
    with pytest.raises(NotPersisted, match="nowhere"):
        sending.send_plain("nowhere", [b"value"], [None])
    sending.abort()
