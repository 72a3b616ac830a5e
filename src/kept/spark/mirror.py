"""A copy of the progress under the pipeline's group, for tools that show lag; nobody reads on from it (rule 6)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from kept.progress import Progress

log = logging.getLogger("kept.spark")


class Mirror:
    """Commits offsets of the source partitions in the background; what fails is only not shown."""

    def __init__(self, settings: Mapping[str, object], group: str) -> None:
        self._client = Consumer({**settings, "group.id": group, "enable.auto.commit": False})

    def show(self, recorded: Iterable[Progress]) -> None:
        places = [each.position for each in recorded]
        offsets = [TopicPartition(each.topic, each.partition, each.next_offset) for each in places]
        try:
            self._client.commit(offsets=offsets, asynchronous=True)
        except KafkaException as failure:
            log.info("progress is not shown to lag tools: %s", failure.args[0].str())

    def close(self) -> None:
        self._client.close()
