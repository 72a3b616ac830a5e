"""The topics of a pipeline into Kafka: which one its sink is, and which ones its births are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kept.consumer.sources import Sources
from kept.errors import FixConfiguration
from kept.producer.clients import CONNECTS_WITHIN, no_broker

NAMED_BY_ROWS = "*"
"""The sink of a pipeline whose rows name their topics: which ones they will be is not known."""


class SourceTopics(Sources):
    """Births are written in the sink's cluster, of topics in the source's."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        super().__init__(settings)
        self.ids: dict[str, str] = {}

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        return {topic: self.ids[topic] for topic in topics}


def sink_now(topics: Sources, topic: str | None) -> str:
    """Which sink it is as of now: names are reused, ids are not."""
    if topic is None:
        return NAMED_BY_ROWS
    refuse_missing_topic(topics.admin, topic)
    return f"{topic}@{topics.partitions(topic)[0]}"


def refuse_missing_topic(admin: AdminClient, topic: str) -> None:
    try:
        error = admin.list_topics(topic, timeout=CONNECTS_WITHIN).topics[topic].error
    except KafkaException as failure:
        raise no_broker(failure.args[0]) from failure
    if error is not None:
        raise FixConfiguration(
            f"the topic {topic} cannot be written: {error.str()}", way_out=f"make it: `kept topics create {topic}`"
        )
