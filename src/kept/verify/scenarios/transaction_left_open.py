"""Row 4: a processor is killed with an open transaction; what it had sent must never count.

At least once there are no transactions: it is killed with records in the sink whose progress is not recorded, and they
are sent again.
"""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.dying import die_again_and_again
from kept.verify.trials.feeding import TopicSink, empty_source
from kept.verify.trials.roles.processor import TOGETHER
from kept.verify.trials.scenario import Control, Scenario, Volume
from kept.verify.trials.things import Thing
from kept.verify.trials.work import OwnWork

NAME = "transaction-left-open"
# Transactions of some thousand records: when some are being worked on, those taken before are in the log, uncommitted.
LONG = {"seconds": 3.0, "thinks": 0.0005, "producer": {"linger.ms": 5, "transaction.timeout.ms": 6_000}}
PLAIN = {"into_kafka": True, "thinks": 0.0005, "producer": {"linger.ms": 0}}


def play(arena: Arena, thing: Thing) -> None:
    source = empty_source(arena)
    sink = TopicSink(arena, source)
    die_again_and_again(arena, thing, OwnWork(arena, source, sink))
    audit_topic(arena, sink.topic, committed=not thing.options.get("uncommitted"))


UNCOMMITTED = Control(
    Thing("the same, read with read_uncommitted", "processor", ExactlyOnce.word, {}, {**LONG, "uncommitted": True}),
    frozenset({Anomaly.DUPLICATED}),
)
LOSES = Control(
    Thing("kept.Consumer and kept.Producer into Kafka, at-most-once", "processor", AtMostOnce.word, {}, PLAIN),
    frozenset({Anomaly.LOST}),
)
SCENARIO = Scenario(
    NAME,
    4,
    TITLES[NAME],
    things={
        AtLeastOnce.word: Thing(
            "kept.Consumer and kept.Producer into Kafka, at-least-once", "processor", AtLeastOnce.word, {}, PLAIN
        ),
        ExactlyOnce.word: Thing("kept.Consumer into Kafka, exactly-once", "processor", ExactlyOnce.word, {}, LONG),
    },
    controls={AtLeastOnce.word: LOSES, ExactlyOnce.word: UNCOMMITTED},
    play=play,
    # So many that every death comes behind the first thousand of a life, which are taken and sent together.
    full=Volume(25_000, 10),
    smoke=Volume(6_800, 2),
    at_risk=TOGETHER,
)
