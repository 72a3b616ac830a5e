"""What is asked about the logs of topics: their partitions, where they begin and end. By a client of its own.

It is asked inside rebalances. There `list_topics` of the member's own client would make confluent-kafka 2.16 forget the
call that it is in, and the next callback of that call abort the process (CallState_get: Assertion `cs != NULL' failed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from kept.consumer.asking import ask_offsets, look_for
from kept.consumer.faults import reading_error
from kept.consumer.records import Place
from kept.guarantees import only_asks


class Logs:
    """Answers for whoever reads with these settings. Where a leader has just moved it is asked again."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = dict(settings)
        uncommitted = settings.get("isolation.level") == "read_uncommitted"
        self._level = IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED

    @cached_property
    def asking(self) -> AdminClient:
        return AdminClient(only_asks(self._settings))

    def numbers(self, topic: str) -> list[int]:
        """The numbers of a topic's partitions."""
        try:
            return sorted(look_for(self.asking, topic).partitions)
        except KafkaException as failure:
            raise reading_error(failure.args[0], topic) from failure

    def first_offsets(self, places: Sequence[Place]) -> dict[Place, int]:
        """Where logs begin."""
        return self._offsets(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def end_offsets(self, places: Sequence[Place]) -> dict[Place, int]:
        """Behind the last record that may be read."""
        return self._offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def offsets_since(self, moment: datetime, places: Sequence[Place]) -> dict[Place, int]:
        """The first record that is not older; the end where there is none."""
        since = OffsetSpec.for_timestamp(int(moment.timestamp() * 1000))
        found = self._offsets(places, since)
        none = [place for place, offset in found.items() if offset < 0]
        return {**found, **self.end_offsets(none)}

    def _offsets(self, places: Sequence[Place], wanted: OffsetSpec) -> dict[Place, int]:
        if not places:
            return {}
        question = {TopicPartition(*place): wanted for place in places}
        try:
            found = ask_offsets(self.asking, question, self._level)
        except KafkaException as failure:
            raise reading_error(failure.args[0], ", ".join(sorted({topic for topic, _ in places}))) from failure
        return {(each.topic, each.partition): int(answer.offset) for each, answer in found.items()}
