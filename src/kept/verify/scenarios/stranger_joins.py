"""Row 24: a stranger joins the group of a pipeline into Kafka, reads some of its partitions, commits, and leaves.

A consumer shares its partitions with the stranger, and finds its commits behind them. A pipeline on Spark has none of
that: its progress is on a topic of its own, so that it owes no error, and goes on as if nobody had come.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer as Client
from confluent_kafka import TopicPartition

from kept.errors import TryAgain
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.away import BELIEVES, SLOW, group_of
from kept.verify.trials.driving import into_kafka
from kept.verify.trials.feeding import feed, mark_ends, sink_of
from kept.verify.trials.lives import STARTS_WITHIN
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import BATCHES, Thing
from kept.verify.trials.worker import DONE, STOPPED

NAME = "stranger-joins"
FEWEST = 100
"""Records that the stranger takes, at least."""
TAKES_WITHIN = 40.0


def play(arena: Arena, thing: Thing) -> None:
    """For as long as the stranger is there its partitions are its own; when it has left, they come back."""
    source = feed(arena, ends=False)
    sink = sink_of(arena, source, thing)
    life = arena.start(thing, source.topic, options=sink.options())
    part = arena.moments(1)[0]
    life.wait(lambda: sink.complete() or sink.how_much() >= part, f"{part} effects", STARTS_WITHIN)
    with arena.fault("a stranger joined the group, took records, committed, and left"):
        take_part(arena, group_of(arena, thing), source.topic)
    mark_ends(arena, source)
    arena.finish_when_complete(sink, life, may_end=(DONE, STOPPED))
    sink.audit()


def take_part(arena: Arena, group: str, topic: str) -> None:
    """As any consumer does that was given a name which is taken, with the same way to share out partitions."""
    stranger = Client(
        {
            "bootstrap.servers": arena.cluster.bootstrap,
            "group.id": group,
            "session.timeout.ms": 6_000,
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        stranger.subscribe([topic])
        reached: dict[int, int] = {}
        taken, deadline = 0, time.monotonic() + TAKES_WITHIN
        while taken < FEWEST:
            for message in stranger.consume(50, 0.2):
                if message.error() is None:
                    taken += 1
                    reached[message.partition() or 0] = (message.offset() or 0) + 1
            if time.monotonic() > deadline:
                raise TryAgain(f"the stranger took only {taken} records", way_out="run it with more records")
        stranger.commit(offsets=[TopicPartition(topic, *each) for each in reached.items()], asynchronous=False)
    finally:
        stranger.close()


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
