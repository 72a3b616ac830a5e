"""The topic of our own that carries progress: offsets are kept for a topic that exists, and this one nobody deletes."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kept.errors import FixConfiguration, TryAgain
from kept.producer import clients

CARRIER = "kept.progress"
_MADE_WITHIN = 30.0
_FORBIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


def make_carrier(admin: AdminClient) -> None:
    """Make it, unless it is there. It is compacted: the few records in it are kept for good."""
    try:
        if admin.list_topics(CARRIER, timeout=clients.CONNECTS_WITHIN).topics[CARRIER].error is None:
            return
        request = NewTopic(CARRIER, num_partitions=1, replication_factor=-1, config={"cleanup.policy": "compact"})
        admin.create_topics([request], operation_timeout=_MADE_WITHIN)[CARRIER].result(_MADE_WITHIN)
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return
        if error.code() in _FORBIDDEN:
            raise FixConfiguration(
                f"the topic {CARRIER} is missing and may not be made",
                way_out=f"ask for it: `kept topics create {CARRIER} --partitions 1`",
            ) from failure
        if error.code() in clients.NOBODY_ANSWERS:
            raise clients.no_broker(error) from failure
        raise TryAgain(
            f"the topic {CARRIER} could not be made: {error.str()}", way_out="try again when the brokers are back"
        ) from failure
