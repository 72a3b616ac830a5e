"""What a thing under test has to do, and where its effects go: a workload of ours, or a user's own records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kept.verify.trials.arena import Arena, Sink
from kept.verify.trials.feeding import Source, TableSink, TopicSink, empty_source, fill, mark_ends, sink_of
from kept.verify.trials.things import Thing


class Effects(Sink, Protocol):
    """A sink as a scenario uses it."""

    def options(self) -> Mapping[str, Any]:
        """What a thing under test is told of it."""

    def audit(self) -> None:
        """Write down all that is in it."""


class Work(Protocol):
    """Records that come when the scenario wants them to, and the sink of their effects."""

    @property
    def topic(self) -> str: ...

    @property
    def sink(self) -> Effects: ...

    def feed(self, records: int) -> None:
        """The first so many of them, or as many as are left of these."""

    def feed_rest(self) -> None:
        """All that are left; and whatever marks the end."""

    def texts(self) -> Sequence[str]:
        """All of them, as text, in their order."""


@dataclass
class OwnWork:
    """The workload of the trial's seed. The ends of its source are marked last: a fault may lose what comes before."""

    arena: Arena
    source: Source
    sink: TableSink | TopicSink
    fed: int = 0

    @property
    def topic(self) -> str:
        return self.source.topic

    def feed(self, records: int) -> None:
        self.arena.fed(fill(self.arena, self.topic, self.arena.values()[self.fed : records]))
        self.fed = max(self.fed, records)

    def feed_rest(self) -> None:
        if self.fed < self.arena.volume.records:
            self.feed(self.arena.volume.records)
        mark_ends(self.arena, self.source)

    def texts(self) -> list[str]:
        return list(map(str, self.arena.values()))


def own_work(arena: Arena, thing: Thing) -> OwnWork:
    source = empty_source(arena)
    return OwnWork(arena, source, sink_of(arena, source, thing))
