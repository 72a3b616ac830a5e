"""Whether a topic is still the one that is read: a name that was deleted and made again is another source (rule 3).

Progress at least and at most once is recorded with the id of the topic that it belongs to. Wherever it is found
under another id, nobody goes on from it. A member that is running looks now and then, without waiting for the answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress

from confluent_kafka import KafkaException
from confluent_kafka.admin import TopicDescription  # type: ignore[attr-defined]

from kept.consumer.faults import set_position
from kept.consumer.positions import Next
from kept.consumer.records import Place
from kept.consumer.sources import Sources, signature, signed_id
from kept.errors import KeptError, SourceChanged

LOOKED_AT_EVERY = 30.0
SOON = 1.0
"""After trouble that the client tells of: not with each of its messages."""


class Identities:
    """The ids of the topics that a member reads; to be used from one thread."""

    def __init__(self, sources: Sources, group: str) -> None:
        self._sources = sources
        self._group = group
        self._ids: dict[str, str | None] = {}  # none: nobody could be asked yet
        self._asked: dict[str, Future[TopicDescription]] = {}
        self._look_at = math.inf

    def came(self, places: Collection[Place], owned: Collection[Place]) -> None:
        """Partitions come: their topics as they are now, before anything is read or recorded of them."""
        topics = list(dict.fromkeys(topic for topic, _ in places))
        self._asked = {}  # an answer from before
        read_on = {topic for topic, _ in owned}
        for topic in topics:
            if topic not in read_on:
                self._ids.pop(topic, None)  # only what is recorded counts
        found: dict[str, str] = {}
        with suppress(KeptError):  # the group does not wait; the next look compares
            found = self._sources.topic_ids(topics)
        for topic in topics:
            self._learn(topic, found.get(topic))
        self._look_at = min(self._look_at, time.monotonic() + (LOOKED_AT_EVERY if found else SOON))

    def refuse_foreign(self, positions: Mapping[Place, Next]) -> None:
        """What is recorded must belong to the topics as they are."""
        for (topic, _), position in positions.items():
            noted = signed_id(position.note)
            self._refuse_changed(topic, noted, self._ids.get(topic))
            self._ids[topic] = self._ids.get(topic) or noted

    def note(self, place: Place) -> str:
        """What is recorded with progress in this partition."""
        known = self._ids.get(place[0])
        return signature(known) if known else ""

    def doubt(self, *, passing: bool) -> None:
        """Something is the matter with a partition: look soon, or now when it ends the loop anyway."""
        if passing:
            self._look_at = min(self._look_at, time.monotonic() + SOON)
            return
        for topic in list(self._ids):
            now = None
            with suppress(KeptError):  # then the client's own word has to do
                now = self._sources.topic_ids([topic])[topic]
            self._learn(topic, now)

    def look(self) -> None:
        """Ask when it is time, and compare when the answer is there; waits for nobody."""
        if self._asked:
            if all(answer.done() for answer in self._asked.values()):
                asked, self._asked = self._asked, {}
                self._look_at = time.monotonic() + LOOKED_AT_EVERY
                self._compare(asked)
        elif time.monotonic() >= self._look_at and self._ids:
            self._asked = self._sources.describe(list(self._ids))

    def _compare(self, answers: Mapping[str, Future[TopicDescription]]) -> None:
        for topic, answer in answers.items():
            with suppress(KafkaException):  # it is not there, or nobody answers: the client tells of that
                self._learn(topic, str(answer.result().topic_id))

    def _learn(self, topic: str, now: str | None) -> None:
        """The topic has this id; none: nobody could be asked."""
        then = self._ids.get(topic)
        self._ids[topic] = then or now
        self._refuse_changed(topic, then, now)

    def _refuse_changed(self, topic: str, then: str | None, now: str | None) -> None:
        if then and now and then != now:
            raise SourceChanged(
                f"{topic} was deleted and made again: the progress of group {self._group} belongs to the one before, "
                f"whose id was {then}; it is {now} now",
                way_out="read the new one under another group; or say where this one goes on in it: "
                f"`{set_position(self._group, topic)}`",
            )
