"""Whether every broker has heard of a topic that was just made: some of them do a moment later than others."""

from __future__ import annotations

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kept.guarantees import only_asks

ANSWERS_WITHIN = 15.0


def heard_by_all(bootstrap: str, topic: str) -> bool:
    """Each is asked by a client of its own, which knows nobody else to ask."""
    try:
        brokers = _client(bootstrap).list_topics(topic, timeout=ANSWERS_WITHIN).brokers.values()
        return all(_is_known(f"{broker.host}:{broker.port}", topic) for broker in brokers)
    except KafkaException:
        return False


def _is_known(broker: str, topic: str) -> bool:
    found = _client(broker).list_topics(topic, timeout=ANSWERS_WITHIN).topics[topic]
    return found.error is None and all(each.error is None for each in found.partitions.values())


def _client(bootstrap: str) -> AdminClient:
    return AdminClient(only_asks({"bootstrap.servers": bootstrap}))
