"""Row 19: the disk of the leader is full while it takes records; it dies of it, and comes back when there is room."""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.local.processes import State
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.disks import fill, make_room, refuse_lasting, small_disk
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "disk-full"
DIES_WITHIN = 60.0
PER_SECOND = 80
"""To die of a full disk, and to come back, takes half a minute: the workload has to last for it."""


def play(arena: Arena, thing: Thing) -> None:
    refuse_lasting(lasting=arena.lasting)
    topic = arena.topic(1)
    leader = arena.cluster.broker(arena.topics.describe(topic).partitions[0].leader)
    arena.use(small_disk(leader))
    arena.wait(lambda: _copies(arena, topic) == 3, "all three copies are in sync")
    life = arena.start(thing, topic, per_second=PER_SECOND)
    for moment in arena.moments():
        life.wait_begun(moment)
        with arena.fault(f"the disk of {leader.name} was full"):
            fill(leader)
            arena.wait(lambda: leader.state() is State.STOPPED, "the broker has met its full disk", DIES_WITHIN)
            make_room(leader)
            leader.start()
        arena.wait(lambda: _copies(arena, topic) == 3, "all three copies are in sync")
    arena.finish(life)
    audit_topic(arena, topic)


def _copies(arena: Arena, topic: str) -> int:
    return len(arena.topics.describe(topic).partitions[0].in_sync)


WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)
SCENARIO = Scenario(
    NAME,
    19,
    TITLES[NAME],
    things={word: Thing(f"kept.Producer, {word}", "producer", word) for word in WORDS},
    controls={},
    play=play,
    full=Volume(3_000, 1),
    smoke=Volume(1_500, 1),
    at_risk=4 * PER_SECOND,
    patience=60.0,
    needs=frozenset({Need.BROKERS}),
)
