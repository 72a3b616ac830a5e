"""Row 14: in the middle of a rebalance storm the source gets more partitions, and records come in those, too."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from kept.guarantees import only_asks
from kept.verify.scenarios import TITLES
from kept.verify.scenarios.rebalance_storm import SCENARIO as STORM
from kept.verify.scenarios.rebalance_storm import portion_of, storm
from kept.verify.trials.arena import Arena
from kept.verify.trials.feeding import Source, TableSink, ends_of, fill
from kept.verify.trials.scenario import Scenario, Volume
from kept.verify.trials.things import Setting, Thing
from kept.verify.trials.work import OwnWork
from kept.verify.workload import Value

NAME = "partitions-added"
BEFORE, AFTER = 3, 6
LOOK_AROUND: dict[str, Setting] = {"topic.metadata.refresh.interval.ms": 2_000}
"""How soon a member hears of a partition: by default after five minutes."""
ANSWERS_WITHIN = 30.0


@dataclass
class TwoSenders(OwnWork):
    """With more partitions a key may change its own, and between two there is no order: so another sender goes on."""

    def feed(self, records: int) -> None:
        values = senders(self.arena.values(), self.arena.values("s2"), first_of_second(self.arena))
        self.arena.fed(fill(self.arena, self.topic, values[self.fed : records]))
        self.fed = max(self.fed, records)


def senders(first: list[Value], second: list[Value], change: int) -> list[Value]:
    """So many of the first, then those of the second."""
    return [*first[:change], *second[change:]]


def first_of_second(arena: Arena) -> int:
    """The number of the first record that comes when there are more partitions."""
    return portion_of(arena) * (1 + arena.volume.faults // 2)


def play(arena: Arena, thing: Thing) -> None:
    source = Source(arena.topic(BEFORE), ends_of(AFTER))

    def grow() -> None:
        admin = AdminClient(only_asks({"bootstrap.servers": arena.cluster.bootstrap}))
        for grown in admin.create_partitions([NewPartitions(source.topic, AFTER)]).values():
            grown.result(ANSWERS_WITHIN)
        arena.wait(lambda: len(arena.topics.describe(source.topic).partitions) == AFTER, "there are more partitions")
        arena.struck(f"partitions were added: {AFTER} instead of {BEFORE}")

    storm(arena, thing, TwoSenders(arena, source, TableSink(arena, source)), LOOK_AROUND, grow)


SCENARIO = Scenario(
    NAME,
    14,
    TITLES[NAME],
    things=STORM.things,
    controls=STORM.controls,
    play=play,
    full=Volume(5_000, 3),
    smoke=Volume(5_000, 3),
    at_risk=STORM.at_risk,
    patience=STORM.patience,
    needs=STORM.needs,
)
