"""A pipeline looked after by a person: where it stands, what a restart would do, and its progress moved on purpose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from kept.consumer import Start
from kept.errors import FixConfiguration
from kept.pipelines.checkpoints import Checkpoint
from kept.pipelines.standing import Change, Goal, Standing, moved, successor
from kept.progress import Progress, Recorded, Source, Stop
from kept.spark.looking import Looking
from kept.stores import Birth, Part, Seed


class Keeping(Protocol):
    """Where the progress of one pipeline is kept: a Postgres, or a Kafka."""

    pipeline: str
    knows_who_is_at_work: bool

    def births(self) -> dict[str, Birth]: ...

    def recorded(self, topic: str, partitions: Collection[int]) -> dict[int, Recorded]: ...

    def copies(self, topic: str, partitions: Collection[int]) -> dict[int, Progress]: ...

    def has_state(self) -> bool: ...

    def at_work(self) -> list[str]: ...

    def move(self, changes: Sequence[tuple[Recorded, Progress]], births: Mapping[str, Birth]) -> None: ...


@dataclass(frozen=True)
class Upkeep:
    """One pipeline, its sink, and its source if that can be asked."""

    keeping: Keeping
    looking: Looking | None
    checkpoint: Checkpoint | None = None
    sink_now: Callable[[Recorded], str | None] = lambda _recorded: None
    """Asks for the sink as it is now, to which a partition with this progress would be written; None: not known."""
    another_sink: Stop | None = None

    def standings(self) -> list[Standing]:
        """Every partition that the pipeline knows, and those that its topics have besides."""
        births = self.keeping.births()
        if not births:
            raise FixConfiguration(
                f"no pipeline {self.keeping.pipeline!r} keeps its progress here",
                way_out="`kept pipelines list` shows those that do",
            )
        return [each for topic, birth in births.items() for each in self._of_topic(topic, birth)]

    def plan(self, goal: Goal, chosen: Sequence[Standing], everyone: Sequence[Standing]) -> list[Change]:
        """What moving those that were chosen would change."""
        moments = {} if goal.moment is None else self._moments(chosen, goal.moment)
        return moved(goal, chosen, moments, successor(self.keeping.pipeline, everyone))

    def carry_out(self, changes: Sequence[Change]) -> None:
        """Move them; a topic that is another one now is the source from then on."""
        if self.keeping.has_state():
            raise FixConfiguration(
                f"{self.keeping.pipeline!r} keeps state in its checkpoint, computed from what lies before its "
                "progress: moved, the two would not fit any more",
                way_out="start anew under another name, into another table or topic; or restore checkpoint and sink "
                "of the same time",
            )
        born = self.keeping.births()
        births = {}
        for topic, topic_id in {change.part[0]: change.new.identity.topic_id for change in changes}.items():
            if born[topic].topic_id != topic_id:
                numbers = [change.part[1] for change in changes if change.part[0] == topic]
                births[topic] = Birth(topic_id, self._whole(topic, numbers))
        self.keeping.move([(change.expected, change.new) for change in changes], births)

    def _whole(self, topic: str, numbers: Sequence[int]) -> int:
        """A topic becomes the source as a whole: else some partitions would have no progress in it."""
        if sorted(numbers) != sorted(self._there(topic)):
            raise FixConfiguration(
                f"{topic} is another topic now, and {len(numbers)} of its partitions were chosen",
                way_out="leave --partition out: all are moved together",
            )
        return len(numbers)

    def _of_topic(self, topic: str, birth: Birth) -> list[Standing]:
        there = self._there(topic)
        known = self.keeping.recorded(topic, range(birth.partitions))
        another = bool(there) and next(iter(there.values())).identity.topic_id != birth.topic_id
        # Of another topic under the same name every partition counts; of the same one those that were begun.
        numbers = sorted({*known, *there}) if another else sorted(known)
        strange = [number for number in known if not isinstance(known[number], Progress)]
        copies = self.keeping.copies(topic, strange) if strange else {}
        sources = self._sources(topic, {number: known.get(number) for number in numbers if number in there}, there)
        restart: Mapping[Part, int] = {} if self.checkpoint is None else self.checkpoint.restart
        return [
            Standing(
                (topic, number),
                known.get(number),
                sources.get(number),
                there[number].at_birth if number in there else 0,
                restart.get((topic, number)),
                copies.get(number),
                gone=self.looking is not None and number not in there,
                born_on=birth.topic_id,
                sink=self.sink_now(known.get(number)),
                another_sink=self.another_sink,
            )
            for number in numbers
        ]

    def _there(self, topic: str) -> dict[int, Seed]:
        """The partitions of the topic as it is now, with their stable ends; none when it is gone, or nobody asked."""
        if self.looking is None:
            return {}
        try:
            return {seed.partition: seed for seed in self.looking.seeds(topic, Start.END)}
        except FixConfiguration:
            if topic in self.looking.topics():
                raise
            return {}

    def _sources(self, topic: str, known: Mapping[int, Recorded], there: Mapping[int, Seed]) -> dict[int, Source]:
        """Each partition now: seen from where progress stands, else from its own ends."""
        if self.looking is None:
            return {}
        ours = {(topic, number): each for number, each in known.items() if isinstance(each, Progress)}
        found = {number: source for (_, number), source in self.looking.now(ours).items()}
        for number in known:
            if number not in found:
                seed = there[number]
                found[number] = Source(seed.identity, seed.beginning, seed.at_birth, seed.at_birth)
        return found

    def _moments(self, standings: Sequence[Standing], moment: datetime) -> dict[Part, int | None]:
        if self.looking is None:
            raise FixConfiguration("a time needs the source", way_out="name it with --bootstrap")
        found: dict[Part, int | None] = {}
        for topic in dict.fromkeys(each.part[0] for each in standings):
            found |= {(topic, seed.partition): seed.at_birth for seed in self.looking.seeds(topic, moment)}
        return found
