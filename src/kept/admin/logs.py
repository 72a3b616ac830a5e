"""Where the logs of partitions begin and end, and where in them a moment lies."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from kept.admin.answers import answered
from kept.admin.backlog import Bounds, Place
from kept.errors import FixConfiguration

_A_NEW_TOPIC_IS_KNOWN_WITHIN = 1.0
ASKED_FOR = 5.0


class Logs:
    """The logs of one cluster, asked through somebody's admin client."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def partitions(self, topics: Iterable[str]) -> list[Place]:
        """Every partition of these topics; a topic that is not there has none."""
        # All topics are listed: a question for one topic by name can create it.
        found = answered(lambda left: self._admin.list_topics(timeout=left), "the topics cannot be listed").topics
        return sorted(Place(name, number) for name in set(topics) & set(found) for number in found[name].partitions)

    def chosen(self, topic: str, numbers: Collection[int]) -> list[Place]:
        """The partitions of a topic that a person named, or all of them."""
        deadline = time.monotonic() + _A_NEW_TOPIC_IS_KNOWN_WITHIN
        while not (there := self.partitions([topic])):
            if time.monotonic() > deadline:
                raise FixConfiguration(
                    f"there is no topic {topic}", way_out="`kept topics list` shows the topics there are"
                )
            time.sleep(0.1)
        missing = sorted(set(numbers) - {place.partition for place in there})
        if missing:
            raise FixConfiguration(
                f"topic {topic} has no partition {', '.join(map(str, missing))}",
                way_out=f"its partitions are 0 to {len(there) - 1}",
            )
        return [place for place in there if not numbers or place.partition in numbers]

    def bounds(self, places: Collection[Place]) -> dict[Place, Bounds]:
        """Where each log begins and ends.

        The end is asked for before the stable end: a stable end that is still below it is held back by a
        transaction. The other way round, a record that arrives in between would look like one.
        """
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        starts = self._offsets(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = self._offsets(places, latest)
        stables = self._offsets(places, latest, IsolationLevel.READ_COMMITTED)
        return {
            place: Bounds(starts[place], stables[place], max(ends[place], stables[place], starts[place]))
            for place in places
        }

    def since(self, places: Collection[Place], milliseconds: int) -> dict[Place, int | None]:
        """The first offset whose record is not older than a moment; None when every record is older."""
        found = self._offsets(places, OffsetSpec.for_timestamp(milliseconds))
        return {place: None if offset < 0 else offset for place, offset in found.items()}

    def _offsets(
        self, places: Collection[Place], which: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[Place, int]:
        if not places:
            return {}
        question = {TopicPartition(place.topic, place.partition): which for place in places}

        def ask(left: float) -> dict[Place, int]:
            within = min(left, ASKED_FOR)
            answers = self._admin.list_offsets(question, isolation_level=isolation, request_timeout=within)
            found = {Place(at.topic, at.partition): answer.result().offset for at, answer in answers.items()}
            if OFFSET_INVALID in found.values():  # how librdkafka 2.16 tells of a leader that has not answered
                self._admin.list_topics(timeout=within)  # the client looks who leads now
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "a leader has not answered in time"))
            return found

        return answered(ask, "the ends of the logs cannot be read")
