"""Producers that stay in a worker, and what becomes of one that is beyond repair."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from kept.consumer.outgoing import Output
from kept.errors import OutcomeUnknown
from kept.guarantees import AtLeastOnce, merge, producer_settings
from kept.local import Cluster
from kept.spark.kafka_records import sent_apart
from kept.verify.proxy import Api, Direction, Nth, Rule, beside
from tests.brokers.refusing import refusing
from tests.spark.things import read_all


def test_a_client_beyond_repair_is_told_in_our_words_and_not_used_again(cluster: Cluster, topic: str) -> None:
    """Its error comes out of whichever call is next, here out of the wait for reports. Left in place, it would refuse
    everything that this worker is given, in each attempt at the task.
    """
    record = Output(topic, "v1", None, None, 0)
    with beside(cluster) as proxy:
        settings = {**merge(producer_settings(AtLeastOnce()), {}), "bootstrap.servers": proxy.bootstrap, "log_level": 0}
        beyond_repair = refusing(topic, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        armed = proxy.add(Rule(Api.PRODUCE, Direction.REQUEST, beyond_repair, Nth(1)))
        with pytest.raises(OutcomeUnknown, match=r"is not known: .* out of order"):
            sent_apart(settings, AtLeastOnce(), [record])
        assert armed.caught == 1
        sent_apart(settings, AtLeastOnce(), [record])
    assert read_all(cluster.bootstrap, topic) == [b"v1"]
