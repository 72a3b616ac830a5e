"""The topics of a pipeline into Kafka: which one its sink is, and which ones its births are of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from kept.consumer.sources import Sources
from kept.errors import FixConfiguration
from kept.producer.clients import CONNECTS_WITHIN, no_broker

NAMED_BY_ROWS = "*"
"""The sink of a pipeline whose rows name their topics: which ones they will be is not known."""
BATCH_SIZE = "batch.size"
USUAL_BATCH = 1_000_000
"""Bytes: librdkafka's own, when nothing is said."""


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


def with_fitting_batches(
    admin: AdminClient, topics: Iterable[str], settings: Mapping[str, object]
) -> dict[str, object]:
    """The settings of a producer whose batches every one of these topics takes (rule 14).

    max.message.bytes limits a batch, and a broker refuses all of one that is larger: records that are legal each by
    itself would never get through.
    """
    given = int(str(settings.get(BATCH_SIZE, USUAL_BATCH)))
    return {**settings, BATCH_SIZE: min([given, *(_most_bytes(admin, topic) for topic in topics)])}


def _most_bytes(admin: AdminClient, topic: str) -> int:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        rows = admin.describe_configs([resource], request_timeout=CONNECTS_WITHIN)[resource].result()
    except KafkaException:
        return USUAL_BATCH  # whoever may write need not be allowed to look at settings
    return int(str(rows["max.message.bytes"].value))
