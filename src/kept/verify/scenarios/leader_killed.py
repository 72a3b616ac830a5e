"""Row 2: the leader is killed with records that its followers do not have yet; then the next leader, and so on."""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.lives import Life
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "leader-killed"
PER_SECOND = 60
"""A death and what follows take a dozen seconds, twice that on a busy machine: the workload has to last for ten of
them.
"""
ALONE = 40
"""Records that are sent while the followers sleep: for less than a second, so that nobody takes them for dead."""


def play(arena: Arena, thing: Thing) -> None:
    topic = arena.topic(partitions=1)
    life = arena.start(thing, topic, per_second=PER_SECOND)
    for _ in arena.moments_of(life):
        _kill_leader(arena, topic, life)
    arena.finish(life)
    audit_topic(arena, topic)


def _kill_leader(arena: Arena, topic: str, life: Life) -> None:
    """The followers sleep, the leader takes some records alone and dies, the followers wake: one of them leads."""
    (partition,) = arena.topics.describe(topic).partitions
    leader = arena.cluster.broker(partition.leader)
    followers = [arena.cluster.broker(number) for number in partition.replicas if number != partition.leader]
    with arena.fault(f"{leader.name}, the leader, was killed while its followers slept"):
        try:
            for follower in followers:
                follower.pause()
            begun = life.begun
            arena.linger(lambda: life.begun >= begun + ALONE, 0.8)
            leader.kill()
        finally:
            for follower in followers:
                follower.resume()
    arena.wait(lambda: arena.topics.describe(topic).partitions[0].leader not in (-1, leader.id), "another broker leads")
    leader.start()
    arena.wait(lambda: len(arena.topics.describe(topic).partitions[0].in_sync) == 3, "all three copies are in sync")


LOSES = Control(
    # Few at once: a leader that is alone for less than a second is sure to acknowledge some.
    Thing("confluent-kafka with acks=1", "raw_producer", AtLeastOnce.word, {"acks": "1"}, {"together": 5}),
    frozenset({Anomaly.LOST}),
)
SCENARIO = Scenario(
    NAME,
    2,
    TITLES[NAME],
    things={
        AtMostOnce.word: Thing("kept.Producer, at-most-once", "producer", AtMostOnce.word),
        AtLeastOnce.word: Thing("kept.Producer, at-least-once", "producer", AtLeastOnce.word),
        ExactlyOnce.word: Thing("kept.Producer, exactly-once, transactions of 50", "producer", ExactlyOnce.word),
    },
    controls=dict.fromkeys((AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word), LOSES),
    play=play,
    full=Volume(15_000, 10),
    smoke=Volume(1_000, 1),
    at_risk=3 * PER_SECOND,
    patience=60.0,
    needs=frozenset({Need.BROKERS}),
)
