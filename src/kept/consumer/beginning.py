"""Where a group begins in a topic: chosen once, at its birth, and written down; missing later means lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import takewhile
from typing import TypeAlias

from kept.consumer.asking import ANSWER_WITHIN
from kept.consumer.births import Births
from kept.consumer.faults import set_position
from kept.consumer.membership import Membership
from kept.consumer.positions import Next
from kept.consumer.reading import Start
from kept.consumer.records import Place
from kept.errors import Fenced, ProgressLost, TryAgain

logger = logging.getLogger("kept")
From: TypeAlias = Start | datetime
Starts: TypeAlias = Mapping[Place, Next]
Record: TypeAlias = Callable[[Starts], Starts]
"""Records positions, and returns them as they are recorded."""
STABLE_WITHIN = 90.0
"""The transaction of a member that died may have to time out before it is known what it left."""


class Beginning:
    """Finds the positions of partitions that have just become ours, and seeds them when the group is new.

    The member that owns partition 0 seeds all partitions in one commit, so that no two beginnings mix; the others
    wait for it. Partitions added to the topic later begin at their beginning: whatever they hold is new. Where births
    are not written down, every member seeds its own partitions: reading again from the beginning is allowed there.
    """

    def __init__(self, member: Membership, start: From, births: Births | None, record: Record | None = None) -> None:
        self._member = member
        self._start = start
        self._births = births  # none where reading again from the beginning is allowed
        self._record = record or self._commit
        self._known: dict[str, int] = {}

    def positions(self, places: Sequence[Place]) -> Mapping[Place, Next]:
        found = self._committed(places)
        for topic in dict.fromkeys(topic for (topic, _), position in found.items() if position is None):
            found.update(self._begin(topic, places))
        for topic in dict.fromkeys(topic for topic, _ in places):
            self._write_birth(topic)
        return {place: position for place, position in found.items() if position is not None and place in places}

    def _write_birth(self, topic: str) -> None:
        """Written by whoever finds progress and no birth: a founder may have died in between."""
        if self._births is None:
            return
        numbers = self._member.logs.numbers(topic)
        if self._known.get(topic) == len(numbers):
            return
        committed = self._committed([(topic, number) for number in numbers])
        begun = len(list(takewhile(lambda number: committed[topic, number] is not None, numbers)))
        if begun:
            self._births.write(topic, begun)
            self._known[topic] = begun

    def _begin(self, topic: str, places: Sequence[Place]) -> dict[Place, Next]:
        """Positions for this topic's partitions, some of which have none."""
        everywhere = [(topic, number) for number in self._member.logs.numbers(topic)]
        committed = self._committed(everywhere)
        there = {place: position for place, position in committed.items() if position is not None}
        missing = [place for place in places if place[0] == topic and place not in there]
        if self._births is None:
            starts = self.starts(missing)
            with suppress(Fenced, TryAgain):  # recorded with the first progress then: until it is, it is read again
                self._member.commit(starts)
            return {**there, **starts}
        if not there:
            return self._birth(self._births, topic, places)
        born = self._births.partitions(topic) or 1 + max(number for _, number in there)
        if lost := [number for _, number in missing if number < born]:
            raise ProgressLost(
                f"no progress is recorded for partitions {lost} of {topic}, though there is for others",
                way_out="find who deleted it; set it where the effects end: "
                f"`{set_position(self._births.group, topic, lost[0])}`",
            )
        for place in missing:
            logger.warning("%s[%d] is new to the group: it is read from its beginning", *place)
        return {**there, **self._seed(_positions(self._member.logs.first_offsets(missing)))}

    def _birth(self, births: Births, topic: str, places: Sequence[Place]) -> dict[Place, Next]:
        """Nobody has progress. A birth is written after it: who sees one looks again, a founder may just have come."""
        everywhere = [(topic, number) for number in self._member.logs.numbers(topic)]
        if births.known(topic):
            if any(self._committed(everywhere).values()):
                return self._begin(topic, places)
            births.refuse_second(topic)
        if (topic, 0) in places or (topic, 0) in self._member.owned:
            return self._seed(self.starts(everywhere))
        return self._wait_for_founder(topic, everywhere)

    def _seed(self, starts: Starts) -> dict[Place, Next]:
        """Record where partitions begin; a coordinator that has just moved is asked again.

        What is recorded by then stays: the answer was lost, not the commit, and others may be at work behind it.
        """
        begun: dict[Place, Next] = {}
        deadline = time.monotonic() + STABLE_WITHIN
        while missing := {place: start for place, start in starts.items() if place not in begun}:
            try:
                begun |= self._record(missing)
            except TryAgain:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
                begun = {place: found for place, found in self._committed(list(starts)).items() if found is not None}
        return begun

    def _commit(self, starts: Starts) -> Starts:
        self._member.commit(starts)
        return starts

    def _wait_for_founder(self, topic: str, everywhere: Sequence[Place]) -> dict[Place, Next]:
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

    def starts(self, places: Sequence[Place]) -> dict[Place, Next]:
        if isinstance(self._start, datetime):
            return _positions(self._member.logs.offsets_since(self._start, places))
        at_end = self._start is Start.END
        return _positions((self._member.logs.end_offsets if at_end else self._member.logs.first_offsets)(places))

    def _committed(self, places: Sequence[Place]) -> dict[Place, Next | None]:
        """What is recorded; a coordinator that has just moved is asked again."""
        deadline = time.monotonic() + STABLE_WITHIN
        while True:
            try:
                return self._member.committed(places)
            except TryAgain:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def _positions(offsets: Mapping[Place, int]) -> dict[Place, Next]:
    return {place: Next(offset) for place, offset in offsets.items()}
