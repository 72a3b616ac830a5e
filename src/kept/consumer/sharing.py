"""Partitions that are nobody's: the group is stable, its members are content, and no error tells that nobody reads.

The leader of a group shares out what the coordinator knows of the topics. One that is behind the other brokers knows
nothing of a topic that has just been made, and too little of one that has just grown. librdkafka (2.16) never compares
what was shared out with what it learns of the topics later, so it stays like that until somebody joins or leaves.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin._group import ConsumerGroupDescription, MemberDescription

from kept.consumer.records import Place
from kept.coordinator import ask_coordinator
from kept.errors import KeptError

logger = logging.getLogger("kept")
KNOWN_BY_THEN = 5.0
"""A member without partitions looks after so many seconds: it has nothing to lose when it joins anew."""
LONGEST_MOVE = 300_000
"""Milliseconds after which it looks again where everything was somebody's. The client's own max.poll.interval.ms."""
ANSWER_WITHIN = 3.0


class Sharing:
    """Looks now and then, for a member that has no partitions, whether every one of its topics has an owner."""

    def __init__(
        self, settings: Mapping[str, object], topics: Sequence[str], numbers: Callable[[str], Sequence[int]]
    ) -> None:
        self._settings = settings
        self._group = str(settings["group.id"])
        self._topics = topics
        self._numbers = numbers
        self._longest = int(str(settings.get("max.poll.interval.ms", LONGEST_MOVE))) / 1000
        self._patience = KNOWN_BY_THEN
        self._look_at = math.inf

    def shared_out(self, owned: Collection[Place]) -> None:
        """The group has said what is whose; these are ours. Only who has none looks: it gives nothing back."""
        self._patience = KNOWN_BY_THEN
        self._look_at = math.inf if owned else time.monotonic() + self._patience

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._look_at

    def is_up_to(self, member: str | None) -> bool:
        """Whether partitions are nobody's, and this member is the one that has them shared out again."""
        try:
            nobodys, first = self._look()
        except (KafkaException, KeptError):
            return False
        finally:
            self._look_at = time.monotonic() + self._patience
        if nobodys:
            logger.warning("group %s shared out its topics without %s, which nobody reads", self._group, nobodys)
        return bool(nobodys) and first == member

    def _look(self) -> tuple[list[Place], str | None]:
        """What is nobody's, and who is to act: one is enough, and best one that has nothing to give back for it."""
        group = self._described()
        known = {topic: self._numbers(topic) for topic in self._topics}
        if group.state is not ConsumerGroupState.STABLE or not all(known.values()):
            return [], None  # it is sharing out just now, or the broker that was asked has not heard of a topic
        given = {member.member_id: _places(member) for member in group.members}
        every = {(topic, number) for topic, numbers in known.items() for number in numbers}
        nobodys = sorted(every.difference(*given.values()))
        if not nobodys:
            self._patience = self._longest
        return nobodys, min(given, key=lambda member: (len(given[member]), member), default=None)

    def _described(self) -> ConsumerGroupDescription:
        described: dict[str, ConsumerGroupDescription] = ask_coordinator(
            self._settings,
            lambda client, timeout: client.describe_consumer_groups([self._group], request_timeout=timeout),
            ANSWER_WITHIN,
        )
        return described[self._group]


def _places(member: MemberDescription) -> set[Place]:
    given = member.assignment.topic_partitions if member.assignment is not None else []
    return {(each.topic, each.partition) for each in given}
