"""Producers that stay in a worker, and what becomes of one that is beyond repair."""

from __future__ import annotations

import struct

import pytest
from confluent_kafka import KafkaError

from kept.consumer.outgoing import Output
from kept.errors import OutcomeUnknown
from kept.guarantees import AtLeastOnce, merge, producer_settings
from kept.local import Cluster
from kept.spark.kafka_records import sent_apart
from kept.verify.proxy import Answer, Api, Direction, Nth, Rule, beside
from kept.verify.proxy.kafka_frames import LENGTH, REQUEST_HEADER
from tests.spark.things import read_all

AS_TESTED = 10
"""The version of Produce that the answer below is written in."""


def out_of_order(topic: str) -> Answer:
    """What a broker says that misses an earlier batch of this producer: the client may send nothing any more."""

    def answered(request: bytes) -> bytes:
        _, _, version, number, _ = REQUEST_HEADER.unpack_from(request)
        assert version == AS_TESTED
        name = topic.encode()
        partition = struct.pack(">ihqqq", 0, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, -1, -1) + b"\1\0\0"
        of_topic = bytes([2, len(name) + 1]) + name + b"\2" + partition + b"\0"
        body = struct.pack(">i", number) + b"\0" + of_topic + struct.pack(">i", 0) + b"\0"
        return LENGTH.pack(len(body)) + body

    return Answer(answered)


def test_a_client_beyond_repair_is_told_in_our_words_and_not_used_again(cluster: Cluster, topic: str) -> None:
    """Its error comes out of whichever call is next, here out of the wait for reports. Left in place, it would refuse
    everything that this worker is given, in each attempt at the task.
    """
    record = Output(topic, "v1", None, None, 0)
    with beside(cluster) as proxy:
        settings = {**merge(producer_settings(AtLeastOnce()), {}), "bootstrap.servers": proxy.bootstrap, "log_level": 0}
        armed = proxy.add(Rule(Api.PRODUCE, Direction.REQUEST, out_of_order(topic), Nth(1)))
        with pytest.raises(OutcomeUnknown, match=r"is not known: .* out of order"):
            sent_apart(settings, AtLeastOnce(), [record])
        assert armed.caught == 1
        sent_apart(settings, AtLeastOnce(), [record])
    assert read_all(cluster.bootstrap, topic) == [b"v1"]
