"""Idempotency keys as they arrive: in a header, and in a JSON object also as a field."""

from __future__ import annotations

import json
import uuid

import pytest

from kept.consumer import Reader, Record, Start
from kept.errors import FixConfiguration
from kept.guarantees import AtLeastOnce, ExactlyOnce, Guarantee
from kept.local import Cluster
from kept.producer import Producer
from kept.progress import keys


def records(cluster: Cluster, topic: str) -> list[Record]:
    with Reader(cluster.bootstrap, topic, start=Start.BEGINNING, partition=0) as reader:
        return list(reader.to_end())


def stamps(cluster: Cluster, topic: str) -> list[uuid.UUID | None]:
    return [keys.read(record.headers, record.value) for record in records(cluster, topic)]


@pytest.mark.parametrize("guarantee", [AtLeastOnce(), ExactlyOnce(f"stamps-{uuid.uuid4()}")])
def test_a_fresh_stamp_is_in_the_header_and_in_the_document(cluster: Cluster, topic: str, guarantee: Guarantee) -> None:
    with Producer(cluster.bootstrap, guarantee, stamp="uuid") as producer:
        for value in (b'{"amount": 100}', b'{"amount": 100}', b"not a document", None):
            producer.send(topic, value, partition=0, headers={"trace": "42"})
    found = records(cluster, topic)
    stamped = [keys.read(record.headers, None) for record in found]
    assert len(set(stamped)) == 4
    assert None not in stamped
    assert json.loads(found[0].value or b"") == {"amount": 100, "idempotency_key": str(stamped[0])}
    assert [record.value for record in found[2:]] == [b"not a document", None]
    assert all(record.headers[0] == ("trace", b"42") for record in found)


def test_the_same_content_has_the_same_stamp(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, AtLeastOnce(), stamp="content") as producer:
        for key, value in [("a", "x"), ("a", "x"), ("b", "x"), (None, "x"), ("", "x"), ("a", "y")]:
            producer.send(topic, value, key=key, partition=0)
    first, again, *others = stamps(cluster, topic)
    assert first == again == keys.of_content(topic, b"a", b"x")
    assert len({first, *others}) == 5


def test_a_function_of_ones_own_decides(cluster: Cluster, topic: str) -> None:
    def by_order(topic: str, key: bytes | str | None, value: bytes | str | None) -> uuid.UUID:
        return keys.derived(topic, str(key))

    with Producer(cluster.bootstrap, AtLeastOnce(), stamp=by_order) as producer:
        producer.send(topic, "x", key="order-1", partition=0)
    assert stamps(cluster, topic) == [keys.derived(topic, "order-1")]


def test_a_stamp_given_counts_and_one_borne_already_is_kept(cluster: Cluster, topic: str) -> None:
    given, in_header, in_document = (uuid.uuid4() for _ in range(3))
    with Producer(cluster.bootstrap, AtLeastOnce(), stamp="uuid") as producer:
        producer.send(topic, "x", partition=0, idempotency_key=given)
        producer.send(topic, "x", partition=0, headers={keys.NAME: str(in_header)})
        producer.send(topic, json.dumps({keys.NAME: str(in_document)}), partition=0)
        producer.send(topic, "x", partition=0, headers={keys.NAME: str(in_header)}, idempotency_key=str(given))
    assert stamps(cluster, topic) == [given, in_header, in_document, given]


def test_without_a_stamp_nothing_is_added(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        producer.send(topic, '{"a": 1}', partition=0)
        producer.send(topic, '{"a": 1}', partition=0, idempotency_key=uuid.uuid4())
    plain, stamped = records(cluster, topic)
    assert (plain.value, plain.headers) == (b'{"a": 1}', ())
    assert keys.NAME in json.loads(stamped.value or b"")


def test_what_is_no_stamp_is_refused() -> None:
    with pytest.raises(FixConfiguration, match="'hash' is no way to stamp"):
        Producer("127.0.0.1:1", AtLeastOnce(), stamp="hash")
    producer = Producer("127.0.0.1:1", AtLeastOnce())
    with pytest.raises(FixConfiguration, match="'order-1' is no idempotency key"):
        producer.send("topic", "x", idempotency_key="order-1")
