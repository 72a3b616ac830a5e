"""The topics of our own that carry progress: offsets are kept for a topic that exists, and these nobody deletes."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from kept.errors import FixConfiguration, TryAgain
from kept.producer import clients

CARRIER = "kept.progress"
_COMPACTED: Mapping[str, str] = {"cleanup.policy": "compact"}
_MADE_WITHIN = 30.0
_FORBIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


def make_carrier(
    admin: AdminClient, name: str = CARRIER, partitions: int = 1, settings: Mapping[str, str] = _COMPACTED
) -> None:
    """Make it, unless it is there, this large. It is compacted: the last record of a key is kept for good."""
    try:
        found = admin.list_topics(name, timeout=clients.CONNECTS_WITHIN).topics[name]
        if found.error is not None:
            request = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(settings))
            admin.create_topics([request], operation_timeout=_MADE_WITHIN)[name].result(_MADE_WITHIN)
        elif len(found.partitions) < partitions:
            more = NewPartitions(name, partitions)
            admin.create_partitions([more], operation_timeout=_MADE_WITHIN)[name].result(_MADE_WITHIN)
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return
        if error.code() in _FORBIDDEN:
            raise FixConfiguration(
                f"the topic {name} is missing, or too small, and may not be made",
                way_out=f"ask for it: `kept topics create {name} --partitions {partitions}`",
            ) from failure
        if error.code() in clients.NOBODY_ANSWERS:
            raise clients.no_broker(error) from failure
        raise TryAgain(
            f"the topic {name} could not be made: {error.str()}", way_out="try again when the brokers are back"
        ) from failure
