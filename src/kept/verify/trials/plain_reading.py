"""Reads what is in a topic with nothing but confluent-kafka: an audit that shares the product's code is none."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kept.errors import TryAgain

ANSWERS_WITHIN = 30.0
COMES_WITHIN = 90.0
"""Longer than a transaction of a trial stays open: one that nobody ends is ended by the brokers meanwhile."""
LOOKS_AGAIN = 0.2
_PASSING = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}


class Plain(NamedTuple):
    """A record as it stands in a topic; `at`: seconds since 1970."""

    partition: int
    offset: int
    at: float
    key: bytes | None
    value: bytes | None


def bounds_of(bootstrap: str, topic: str, within: float = ANSWERS_WITHIN) -> dict[int, tuple[int, int]]:
    """Where the log of each partition begins and ends, with what is in open transactions."""
    deadline = time.monotonic() + within
    with closing(_client(bootstrap, committed=False)) as client:
        while True:
            try:
                return _bounds(client, topic)
            except KafkaException as failure:  # a leader may just be moving
                if time.monotonic() > deadline:
                    raise TryAgain(
                        f"the ends of {topic} cannot be read: {failure.args[0].str()}", way_out="see that brokers run"
                    ) from failure
                time.sleep(LOOKS_AGAIN)


def everything_in(
    bootstrap: str, topic: str, *, committed: bool = True, comes_within: float = COMES_WITHIN
) -> Iterator[Plain]:
    """Every record of every partition, from its beginning to where its log ends now.

    With `committed`, as a read_committed reader sees it: what is in a transaction that is still open is waited for.
    `TryAgain`: nothing more has come for so long, and the end is not reached.
    """
    bounds = bounds_of(bootstrap, topic)
    behind = {number: end for number, (start, end) in bounds.items() if start < end}
    with closing(_client(bootstrap, committed=committed)) as client:
        client.assign([TopicPartition(topic, number, bounds[number][0]) for number in behind])
        heard = time.monotonic()
        while behind:
            found = client.poll(LOOKS_AGAIN)
            error = None if found is None else found.error()
            if found is not None and error is None:
                heard = time.monotonic()
                yield Plain(
                    found.partition() or 0, found.offset() or 0, found.timestamp()[1] / 1000, found.key(), found.value()
                )
            elif found is not None and error is not None and error.code() == KafkaError._PARTITION_EOF:
                behind = without_ended(behind, found.partition() or 0, found.offset() or 0)
            elif error is not None and not error.retriable() and error.code() not in _PASSING:
                raise TryAgain(f"{topic} cannot be read: {error.str()}", way_out="see that brokers run")
            if time.monotonic() - heard > comes_within:
                raise TryAgain(
                    f"nothing more of {topic} came for {comes_within:.0f} s, and partitions {sorted(behind)} are not "
                    "at their end: the brokers are away, or a transaction is still open",
                    way_out="wait until it has timed out",
                )


def without_ended(behind: Mapping[int, int], partition: int, reached: int) -> dict[int, int]:
    """What is left to read when a partition has come to an end: below its true end an open transaction holds it up."""
    return {number: end for number, end in behind.items() if number != partition or reached < end}


def _bounds(client: Client, topic: str) -> dict[int, tuple[int, int]]:
    there = client.list_topics(topic, timeout=ANSWERS_WITHIN).topics[topic]
    if there.error is not None:
        raise KafkaException(there.error)
    found = {}
    for number in sorted(there.partitions):
        bounds = client.get_watermark_offsets(TopicPartition(topic, number), timeout=ANSWERS_WITHIN, cached=False)
        if bounds is None or min(bounds) < 0:  # how the library tells of a leader that has not answered
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"the leader of partition {number} is silent"))
        found[number] = bounds
    return found


def _client(bootstrap: str, *, committed: bool) -> Client:
    return Client(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "kept.verify.audit",  # the library wants one; it is never joined nor committed to
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
            "allow.auto.create.topics": False,
            "log_level": 0,
        }
    )
