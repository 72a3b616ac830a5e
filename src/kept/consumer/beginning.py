"""Where a group begins in a topic: chosen once, at its birth, and written down; missing later means lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

from confluent_kafka import KafkaException, TopicPartition

from kept.consumer.faults import reading_error
from kept.consumer.membership import ANSWER_WITHIN, Membership, Next
from kept.consumer.reading import Start
from kept.consumer.records import Place
from kept.errors import ProgressLost, TryAgain

logger = logging.getLogger("kept")
From: TypeAlias = Start | datetime


class Beginning:
    """Finds the positions of partitions that have just become ours, and seeds them when the group is new.

    The member that owns partition 0 seeds all partitions in one commit, so that no two beginnings mix; the others
    wait for it. Partitions added to the topic later begin at their beginning: whatever they hold is new.
    """

    def __init__(self, member: Membership, start: From, *, repeating_is_allowed: bool) -> None:
        self._member = member
        self._start = start
        self._repeating_is_allowed = repeating_is_allowed

    def positions(self, places: Sequence[Place]) -> Mapping[Place, Next]:
        found = self._committed(places)
        for topic in dict.fromkeys(topic for (topic, _), position in found.items() if position is None):
            found.update(self._begin(topic, places))
        return {place: position for place, position in found.items() if position is not None and place in places}

    def _begin(self, topic: str, places: Sequence[Place]) -> dict[Place, Next]:
        """Positions for this topic's partitions, some of which have none."""
        everywhere = [(topic, number) for number in self._numbers(topic)]
        committed = self._committed(everywhere)
        there = {place: position for place, position in committed.items() if position is not None}
        if not there:
            return self._birth(topic, everywhere, places)
        missing = [place for place in places if place[0] == topic and place not in there]
        lost = [place for place in missing if place < max(there)]
        if lost and not self._repeating_is_allowed:
            raise ProgressLost(
                f"no progress is recorded for partitions {[number for _, number in lost]} of {topic}, though there is "
                "for others",
                way_out="find who deleted it; set it by hand: `kept groups reset`",
            )
        for place in missing:
            logger.warning("%s[%d] has no recorded progress: it is read from its beginning", *place)
        seeds = {place: Next(self._watermarks(place)[0]) for place in missing}
        self._member.commit(seeds)
        return {**there, **seeds}

    def _birth(self, topic: str, everywhere: Sequence[Place], places: Sequence[Place]) -> dict[Place, Next]:
        founder = (topic, 0)
        if founder in places or founder in self._member.owned or self._repeating_is_allowed:
            seeds = self._starts(everywhere)
            if founder in places or founder in self._member.owned:
                self._member.commit(seeds)
            return seeds
        deadline = time.monotonic() + ANSWER_WITHIN
        while time.monotonic() < deadline:
            committed = self._committed(everywhere)
            if all(position is not None for position in committed.values()):
                return {place: position for place, position in committed.items() if position is not None}
            time.sleep(0.1)
        raise TryAgain(
            f"the member that owns {topic}[0] did not say within {ANSWER_WITHIN:.0f} s where the group begins",
            way_out="start this one again; see whether the other members of the group are well",
        )

    def _starts(self, places: Sequence[Place]) -> dict[Place, Next]:
        if isinstance(self._start, datetime):
            return self._at_time(places, self._start)
        which = 1 if self._start is Start.END else 0
        return {place: Next(self._watermarks(place)[which]) for place in places}

    def _at_time(self, places: Sequence[Place], moment: datetime) -> dict[Place, Next]:
        milliseconds = int(moment.timestamp() * 1000)
        asked = [TopicPartition(topic, number, milliseconds) for topic, number in places]
        try:
            answers = self._member.client.offsets_for_times(asked, timeout=ANSWER_WITHIN)
        except KafkaException as failure:
            raise reading_error(failure.args[0], places[0][0]) from failure
        return {
            (answer.topic, answer.partition): Next(
                answer.offset if answer.offset >= 0 else self._watermarks((answer.topic, answer.partition))[1]
            )
            for answer in answers
        }

    def _watermarks(self, place: Place) -> tuple[int, int]:
        try:
            ends = self._member.client.get_watermark_offsets(TopicPartition(*place), timeout=ANSWER_WITHIN)
        except KafkaException as failure:
            raise reading_error(failure.args[0], place[0]) from failure
        if ends is None:
            raise TryAgain(f"the leader of {place[0]}[{place[1]}] does not answer", way_out="see that the brokers run")
        return ends

    def _numbers(self, topic: str) -> list[int]:
        try:
            return sorted(self._member.client.list_topics(topic, timeout=ANSWER_WITHIN).topics[topic].partitions)
        except KafkaException as failure:
            raise reading_error(failure.args[0], topic) from failure

    def _committed(self, places: Sequence[Place]) -> dict[Place, Next | None]:
        """What is recorded; a coordinator that has just moved is asked again."""
        deadline = time.monotonic() + ANSWER_WITHIN
        while True:
            try:
                return self._member.committed(places)
            except TryAgain:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
