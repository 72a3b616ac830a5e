"""Row 19: the disks of all brokers are full while they take records; they die of it, and come back with room."""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.local.kafka import KafkaServer
from kept.local.ports import BROKERS
from kept.local.processes import State
from kept.verify.scenarios import TITLES
from kept.verify.scenarios.outbox_restarted import files_of
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.disks import fill, make_room, refuse_lasting, small_disk
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "disks-full"
DIES_WITHIN = 90.0
PER_SECOND = 50
"""To die of a full disk takes half a minute: the workload has to last for it."""
ALONE = 15
"""Seconds of records that may be lost at most once: so long, at the very most, a leader acknowledges alone before it
dies of its own full disk, and another one leads that has come back without them.
"""


def play(arena: Arena, thing: Thing) -> None:
    """The program is left alone all the time: whatever it has to do to go on, it does by itself."""
    refuse_lasting(lasting=arena.lasting)
    topic = arena.topic(1)
    brokers = [arena.cluster.broker(number) for number in BROKERS]
    for broker in brokers:
        arena.use(small_disk(broker))
    arena.wait(lambda: _copies(arena, topic) == len(brokers), "all three copies are in sync")
    life = arena.start(thing, topic, options=files_of(arena), per_second=PER_SECOND)
    for moment in arena.moments():
        life.wait_begun(moment)
        with arena.fault("the disks of all brokers were full"):
            _until_all_are_dead(arena, brokers)
            for broker in brokers:
                make_room(broker)
            arena.cluster.up()
        arena.wait(lambda: _copies(arena, topic) == len(brokers), "all three copies are in sync")
    arena.finish(life)
    audit_topic(arena, topic)


def _until_all_are_dead(arena: Arena, brokers: list[KafkaServer]) -> None:
    """Without a leader nobody sends to it: a broker that met no full disk before the others died is killed."""
    for broker in brokers:
        fill(broker)

    def dead() -> int:
        return sum(broker.state() is State.STOPPED for broker in brokers)

    arena.wait(lambda: dead() > 0, "a broker has met its full disk", DIES_WITHIN)
    arena.linger(lambda: dead() == len(brokers), DIES_WITHIN / 3)
    for broker in brokers:
        if broker.state() is not State.STOPPED:
            broker.kill()


def _copies(arena: Arena, topic: str) -> int:
    return len(arena.topics.describe(topic).partitions[0].in_sync)


SCENARIO = Scenario(
    NAME,
    19,
    TITLES[NAME],
    things={
        AtMostOnce.word: Thing("kept.Producer, at-most-once", "producer", AtMostOnce.word),
        AtLeastOnce.word: Thing(
            "kept.Outbox, relay at-least-once", "outbox", AtLeastOnce.word, {}, {"at_least_once": True}
        ),
        ExactlyOnce.word: Thing("kept.Outbox", "outbox", ExactlyOnce.word),
    },
    controls={},
    play=play,
    full=Volume(2_500, 1),
    smoke=Volume(2_000, 1),
    at_risk=ALONE * PER_SECOND,
    patience=60.0,
    needs=frozenset({Need.BROKERS}),
)
