"""Topics that a relay is to write to: one that is missing is waited for a while, then its records are refused."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kept.errors import TryAgain
from kept.guarantees import only_asks
from kept.outbox.backlog import Entry
from kept.producer import clients
from kept.producer.fates import RIGHT_TO_WRITE

_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION}
LOOKS_APART = 60.0
"""Longer than a relay pauses between two looks: what was missing before that, and not looked for since, is not known
to have been missing all the time."""


class Missing(NamedTuple):
    """A place that was not there at any look from the first to the last."""

    since: float
    looked: float


class Destinations:
    """What the brokers say of topics: how many partitions each has, or since when it is missing."""

    def __init__(self, settings: Mapping[str, object], patience: float) -> None:
        self._admin = AdminClient(only_asks(settings))
        self._patience = patience
        self._partitions: dict[str, int] = {}
        self._missing: dict[str, dict[int | None, Missing]] = {}

    def forget(self) -> None:
        """Something was not as expected: ask for every topic again."""
        self._partitions.clear()

    def refused(self, entries: Sequence[Entry]) -> list[tuple[Entry, str]]:
        """Those that the brokers have no place for, and why; `TryAgain` while one may still be made."""
        if all(self._has(*place) for place in {(entry[1], entry[5]) for entry in entries}):
            return []
        refused = []
        asked: set[str] = set()
        for entry in entries:
            if self._has(entry.topic, entry.partition):
                continue
            known = self._partitions.get(entry.topic)
            if entry.topic not in asked:  # once a batch, however many of its records go there
                asked.add(entry.topic)
                known = self._ask(entry.topic)
            if known is not None and (entry.partition is None or entry.partition < known):
                continue
            place = self._wait_for(entry.topic, None if known is None else entry.partition)
            refused.append((entry, f"there is no {place}: it was looked for during {self._patience:.0f} s"))
        return refused

    def _has(self, topic: str, partition: int | None) -> bool:
        known = self._partitions.get(topic)
        return known is not None and (partition is None or partition < known)

    def _ask(self, topic: str) -> int | None:
        try:
            found = self._admin.list_topics(topic, timeout=clients.CONNECTS_WITHIN).topics.get(topic)
        except KafkaException as failure:
            raise clients.no_broker(failure.args[0]) from failure
        if found is None or (found.error is not None and found.error.code() in _MISSING):
            return None
        if found.error is not None:
            forbidden = found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            raise TryAgain(
                f"{topic} cannot be written to now: {found.error.str()}",
                way_out=RIGHT_TO_WRITE if forbidden else "see to what it names; it is tried again",
            )
        self._partitions[topic] = len(found.partitions)
        self._seen(topic, len(found.partitions))
        return len(found.partitions)

    def _seen(self, topic: str, partitions: int) -> None:
        """It is there, and so are its partitions: when a broker does not know them, patience begins anew."""
        missing = self._missing.get(topic, {})
        for number in [each for each in missing if each is None or each < partitions]:
            del missing[number]

    def _wait_for(self, topic: str, partition: int | None) -> str:
        """What is missing, in words, when it was missing for long enough; `TryAgain` until then."""
        now = time.monotonic()
        missing = self._missing.setdefault(topic, {})
        before = missing.get(partition)
        if before is None or now - before.looked > self._patience + LOOKS_APART:
            before = Missing(now, now)
        missing[partition] = before._replace(looked=now)
        place = topic if partition is None else f"{topic}[{partition}]"
        left = before.since + self._patience - now
        if left > 0:
            raise TryAgain(
                f"there is no {place}; its records are set aside in {left:.0f} s",
                way_out=f"make it: `kept topics create {topic}`",
            )
        return place
