"""Dead letters sent back to where their records came from: exactly once, and each only once for good."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kept.consumer.births import Births
from kept.consumer.consuming import Consumer
from kept.consumer.dead_letters import DeadLetter, read_letter
from kept.consumer.faults import set_position
from kept.consumer.membership import Membership
from kept.consumer.outgoing import Output
from kept.consumer.reading import Reader, Start
from kept.consumer.records import Place, Record
from kept.consumer.sources import Sources
from kept.errors import ProgressLost
from kept.guarantees import ExactlyOnce
from kept.guarantees.levels import LONGEST_NAME


@dataclass(frozen=True)
class Found:
    """A letter, and the record of the dead-letter topic that it is."""

    record: Record
    letter: DeadLetter


def letters(bootstrap: str, topic: str, partition: int | None = None) -> list[Found]:
    """Every letter in a dead-letter topic, up to its end."""
    with Reader(bootstrap, topic, start=Start.BEGINNING, partition=partition) as reader:
        return [Found(record, read_letter(record)) for record in reader.to_end()]


class Redrive:
    """Sends the letters of one topic back, up to the end that it has now.

    Its progress is kept under a name derived from the topic: whoever redrives it next goes on behind that.
    """

    def __init__(self, bootstrap: str, topic: str, to: str | None = None) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._to = to
        self._guarantee = ExactlyOnce(name_for(topic))
        self._all = letters(bootstrap, topic)

    def pending(self) -> list[Found]:
        """The letters that were not sent back yet; `ProgressLost`: nobody knows any more which ones those are."""
        places = sorted({found.record.place for found in self._all})
        settings = {"bootstrap.servers": self._bootstrap, "group.id": self._guarantee.group, "log_level": 0}
        member = Membership({**settings, "isolation.level": "read_committed"}, [self._topic])
        try:
            committed = member.committed(places) if places else {}
        finally:
            member.leave()
        if lost := [place for place, position in committed.items() if position is None]:
            self._refuse_lost(settings, lost)
        done = {place: 0 if position is None else position.offset for place, position in committed.items()}
        return [found for found in self._all if found.record.offset >= done[found.record.place]]

    def _refuse_lost(self, settings: Mapping[str, object], places: Sequence[Place]) -> None:
        """Partitions that were begun and have no progress have lost it: a group that rests for a week is forgotten."""
        sources = Sources(settings)
        born = Births(settings, self._guarantee.group, sources).glance(self._topic)
        begun = born.get(sources.topic_ids([self._topic])[self._topic], 0) if born else 0
        if begun > min(partition for _, partition in places):
            where = set_position(self._guarantee.group, self._topic)
            raise ProgressLost(
                f"letters of {self._topic} were sent back before, and how far is not known any more: it expired, or "
                "was deleted",
                way_out=f"say from where letters are still to be sent: `{where}`; WHERE is the time of the last "
                "redrive (2026-01-31T08:00:00Z), end for none of those there are, beginning for all of them once more",
            )

    def target(self, letter: DeadLetter) -> str:
        return self._to or letter.topic

    def carry_out(self) -> None:
        """Send them, and return when every one of them is committed."""
        until = {found.record.place: found.record.offset + 1 for found in self._all}
        with Consumer(self._bootstrap, self._topic, guarantee=self._guarantee) as consumer:
            consumer.into_kafka(self._output, until=until)

    def _output(self, record: Record) -> Output:
        letter = read_letter(record)
        partition = -1 if self._to else letter.partition
        headers: Sequence[tuple[str, str | bytes | None]] = letter.headers
        return Output(self.target(letter), letter.value, letter.key, list(headers) or None, partition)


def name_for(topic: str) -> str:
    """The name under which a dead-letter topic is redriven."""
    name = f"redrive.{topic}"
    if len(name) <= LONGEST_NAME:
        return name
    return f"redrive.{hashlib.sha256(topic.encode()).hexdigest()}"
