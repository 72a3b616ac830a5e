"""Row 24: a stranger joins the group of a pipeline into Kafka, reads some of its partitions, commits, and leaves.

A consumer shares its partitions with the stranger, and finds its commits behind them. A pipeline on Spark has none of
that: its progress is on a topic of its own, so that it owes no error, and goes on as if nobody had come.
"""

from __future__ import annotations

from confluent_kafka import Consumer as Client
from confluent_kafka import TopicPartition

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.away import BELIEVES, SLOW, group_of
from kept.verify.trials.driving import into_kafka
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import BATCHES, Thing
from kept.verify.trials.work import Work, own_work
from kept.verify.trials.worker import DONE, STOPPED

NAME = "stranger-joins"
FEWEST = 100
"""Records that the stranger takes, at least."""


def play(arena: Arena, thing: Thing) -> None:
    """For as long as the stranger is there its partitions are its own; when it has left, they come back.

    Half of the records come when it has been given some: so it finds something there, whichever they are.
    """
    work = own_work(arena, thing)
    work.feed(arena.volume.records // 2)
    life = arena.start(thing, work.topic, options=work.sink.options())
    arena.wait_effects(life, work.sink, arena.moments(1)[0])
    with arena.fault("a stranger joined the group, took records, committed, and left"):
        take_part(arena, group_of(arena, thing), work)
    work.feed_rest()
    arena.finish_when_complete(work.sink, life, may_end=(DONE, STOPPED))
    work.sink.audit()


def take_part(arena: Arena, group: str, work: Work) -> None:
    """As any consumer does that was given a name which is taken."""
    stranger = Stranger(arena.cluster.bootstrap, group, work.topic)
    try:
        arena.wait(stranger.has_partitions, "the stranger has been given partitions")
        work.feed(arena.volume.records)
        arena.wait(lambda: stranger.has_taken(FEWEST), f"the stranger has taken {FEWEST} records")
        stranger.commit()
    finally:
        stranger.leave()


class Stranger:
    """A member with the same way to share out partitions."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._topic = topic
        self._taken = 0
        self._reached: dict[int, int] = {}
        self._client = Client(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "session.timeout.ms": 6_000,
                "partition.assignment.strategy": "cooperative-sticky",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._client.subscribe([topic])

    def has_partitions(self) -> bool:
        self._take()
        return bool(self._client.assignment())

    def has_taken(self, records: int) -> bool:
        self._take()
        return self._taken >= records

    def commit(self) -> None:
        """All that it has taken."""
        positions = [TopicPartition(self._topic, *each) for each in self._reached.items()]
        self._client.commit(offsets=positions, asynchronous=False)

    def leave(self) -> None:
        self._client.close()

    def _take(self) -> None:
        for message in self._client.consume(50, 0.2):
            if message.error() is None:
                self._taken += 1
                self._reached[message.partition() or 0] = (message.offset() or 0) + 1


THINGS = {
    AtMostOnce.word: into_kafka(AtMostOnce.word),
    AtLeastOnce.word: into_kafka(AtLeastOnce.word),
    ExactlyOnce.word: Thing(
        "kept.Consumer into Kafka, exactly-once", "processor", ExactlyOnce.word, {}, {**SLOW, "into_kafka": True}
    ),
}
SCENARIO = Scenario(
    NAME,
    24,
    TITLES[NAME],
    things=THINGS,
    controls=dict.fromkeys(THINGS, BELIEVES),
    play=play,
    full=Volume(10_000, 1),
    smoke=Volume(5_000, 1),
    batches=BATCHES,
    tells={ExactlyOnce.word: "ProgressMoved"},
    needs=frozenset({Need.POSTGRES}),
)
