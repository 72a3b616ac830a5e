"""Row 24: a stranger joins the group of a pipeline into Kafka, reads some of its partitions, commits, and leaves."""

from __future__ import annotations

import time

from confluent_kafka import Consumer as Client
from confluent_kafka import TopicPartition

from kept.errors import TryAgain
from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.away import SLOW
from kept.verify.trials.feeding import feed, mark_ends, sink_of
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Thing
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
    life.wait(lambda: sink.complete() or sink.how_much() >= part, f"{part} effects")
    group = arena.groups[thing.guarantee == ExactlyOnce.word]
    with arena.fault("a stranger joined the group, took records, committed, and left"):
        take_part(arena, group, source.topic)
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


BELIEVES = Control(
    Thing("progress in plain group offsets (kept.Consumer, at-least-once)", "processor", AtLeastOnce.word, {}, SLOW),
    frozenset({Anomaly.LOST}),
)
NOTICES = Thing(
    "kept.Consumer into Kafka, exactly-once", "processor", ExactlyOnce.word, {}, {**SLOW, "into_kafka": True}
)
SCENARIO = Scenario(
    NAME,
    24,
    TITLES[NAME],
    things={ExactlyOnce.word: NOTICES},
    controls={ExactlyOnce.word: BELIEVES},
    play=play,
    full=Volume(5_000, 1),
    smoke=Volume(3_000, 1),
    tells={ExactlyOnce.word: "ProgressMoved"},
    needs=frozenset({Need.POSTGRES}),
)
