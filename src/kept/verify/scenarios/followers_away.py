"""Row 15: the followers sleep until they are no longer in sync, the leader dies, and all of them come back."""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "followers-away"
WEAK = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
ALONE = 6.0
"""Seconds: the followers are taken for dead after three, and the leader goes on without them, or refuses to."""
ELECTED_WITHIN = 15.0
PER_SECOND = 50
"""To be cut off, and all that follows, takes half a minute: the workload has to last for two of them."""


def play(arena: Arena, thing: Thing) -> None:
    topic = arena.topic(1, AtMostOnce(), **WEAK) if thing.options.get("weak") else arena.topic(1)
    life = arena.start(thing, topic, per_second=PER_SECOND)
    for _ in arena.moments_of(life):
        _cut_off(arena, topic)
    arena.finish(life)
    audit_topic(arena, topic)


def _cut_off(arena: Arena, topic: str) -> None:
    (partition,) = arena.topics.describe(topic).partitions
    leader = arena.cluster.broker(partition.leader)
    followers = [arena.cluster.broker(number) for number in partition.replicas if number != partition.leader]
    with arena.fault(f"{leader.name} led alone, and was killed; its followers came back first"):
        try:
            for follower in followers:
                follower.pause()
            arena.linger(lambda: False, ALONE)
            leader.kill()
        finally:
            for follower in followers:
                follower.resume()
        arena.linger(lambda: arena.topics.describe(topic).partitions[0].leader not in (-1, leader.id), ELECTED_WITHIN)
        leader.start()
    arena.wait(lambda: len(arena.topics.describe(topic).partitions[0].in_sync) == 3, "all three copies are in sync")


LOSES = Control(
    Thing(
        "acks=all on a topic with min.insync.replicas=1 and unclean elections",
        "raw_producer",
        AtLeastOnce.word,
        # An idempotent one meets a log without its latest records, and dies of it: what it lacks might only be undone.
        {"acks": "all", "enable.idempotence": False},
        {"weak": True},
    ),
    frozenset({Anomaly.LOST}),
)
WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)
SCENARIO = Scenario(
    NAME,
    15,
    TITLES[NAME],
    things={word: Thing(f"kept.Producer, {word}", "producer", word) for word in WORDS},
    controls=dict.fromkeys(WORDS, LOSES),
    play=play,
    full=Volume(5_600, 2),
    smoke=Volume(2_000, 1),
    at_risk=10 * PER_SECOND,
    patience=60.0,
    needs=frozenset({Need.BROKERS}),
)
