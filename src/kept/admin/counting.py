"""Counts the records between two offsets as a read_committed reader gets them; joins no group, leaves no trace."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from kept.admin.backlog import Place, Tally

_AT_ONCE = 1000


def count(bootstrap: str, spans: Mapping[Place, tuple[int, int]], within: float) -> dict[Place, Tally]:
    """For each partition, the records from the first offset up to the second, as far as the time allows."""
    tallies = {place: Tally(0, start) for place, (start, _) in spans.items()}
    behind = set(spans)
    if not behind:
        return tallies
    deadline = time.monotonic() + within
    client = _client(bootstrap)
    try:
        client.assign([TopicPartition(place.topic, place.partition, start) for place, (start, _) in spans.items()])
        while behind and time.monotonic() < deadline:
            for message in client.consume(_AT_ONCE, 0.1):
                place = Place(str(message.topic()), _number(message.partition()))
                if place not in behind:
                    continue
                seen = _seen(tallies[place], message, spans[place][1])
                tallies[place] = seen or tallies[place]
                if seen is None or seen.reached >= spans[place][1]:
                    behind.discard(place)
                    client.pause([TopicPartition(place.topic, place.partition)])
    finally:
        client.close()
    return tallies


def _seen(tally: Tally, message: Message, end: int) -> Tally | None:
    """The tally after a message; None when this partition cannot be read on, so that its bound stays a bound."""
    error, offset = message.error(), _number(message.offset())
    if error is None:
        return Tally(tally.records + (offset < end), offset + 1)
    if error.code() == KafkaError._PARTITION_EOF:  # markers and aborted records end here too, and are not counted
        return Tally(tally.records, max(tally.reached, offset))
    return None


def _client(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "kept.reader",  # librdkafka wants one; it is never joined nor committed to
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,  # the end of a partition is told only when a fetch has waited in vain
            "allow.auto.create.topics": False,
            "log_level": 0,
        }
    )


def _number(value: int | None) -> int:
    return -1 if value is None else value
