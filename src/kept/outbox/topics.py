"""Topics that a relay is to write to: one that is missing is waited for a while, then its records are refused."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kept.errors import TryAgain
from kept.outbox.backlog import Entry
from kept.producer.clients import CONNECTS_WITHIN, no_broker

_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION}


class Destinations:
    """What the brokers say of topics: how many partitions each has, or since when it is missing."""

    def __init__(self, settings: Mapping[str, object], patience: float) -> None:
        self._admin = AdminClient(dict(settings))  # type: ignore[arg-type]
        self._patience = patience
        self._partitions: dict[str, int] = {}
        self._missing_since: dict[str, float] = {}

    def forget(self) -> None:
        """Something was not as expected: ask for every topic again."""
        self._partitions.clear()

    def refused(self, entries: Iterable[Entry]) -> list[tuple[Entry, str]]:
        """Those that the brokers have no place for, and why; `TryAgain` while one may still be made."""
        refused = []
        asked: set[str] = set()
        for entry in entries:
            known = self._partitions.get(entry.topic)
            if known is not None and (entry.partition is None or entry.partition < known):
                continue
            if entry.topic not in asked:  # once a batch, however many of its records go there
                asked.add(entry.topic)
                known = self._ask(entry.topic)
            place = entry.topic if known is None or entry.partition is None else f"{entry.topic}[{entry.partition}]"
            if known is not None and (entry.partition is None or entry.partition < known):
                self._missing_since.pop(place, None)
                continue
            self._wait_for(place)
            refused.append((entry, f"there is no {place}: it was looked for during {self._patience:.0f} s"))
        return refused

    def _ask(self, topic: str) -> int | None:
        try:
            found = self._admin.list_topics(topic, timeout=CONNECTS_WITHIN).topics.get(topic)
        except KafkaException as failure:
            raise no_broker(failure.args[0]) from failure
        if found is None or (found.error is not None and found.error.code() in _MISSING):
            return None
        if found.error is not None:
            raise TryAgain(
                f"{topic} cannot be written to now: {found.error.str()}",
                way_out="see to what it names; it is tried again",
            )
        self._partitions[topic] = len(found.partitions)
        return len(found.partitions)

    def _wait_for(self, place: str) -> None:
        since = self._missing_since.setdefault(place, time.monotonic())
        left = since + self._patience - time.monotonic()
        if left > 0:
            raise TryAgain(
                f"there is no {place}; its records are set aside in {left:.0f} s",
                way_out=f"make it: `kept topics create {place.partition('[')[0]}`",
            )
