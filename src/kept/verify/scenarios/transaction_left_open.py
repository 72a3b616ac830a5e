"""Row 4: a processor is killed with an open transaction; what it had sent must never count."""

from __future__ import annotations

from kept.guarantees import ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.dying import die_again_and_again
from kept.verify.trials.feeding import TopicSink, empty_source
from kept.verify.trials.scenario import Control, Scenario, Volume
from kept.verify.trials.things import Thing
from kept.verify.trials.work import OwnWork

NAME = "transaction-left-open"
# Transactions of many fetched batches: when one is being worked on, those before it are in the log, uncommitted.
LONG = {"seconds": 3.0, "thinks": 0.001, "producer": {"linger.ms": 5, "transaction.timeout.ms": 6_000}}


def play(arena: Arena, thing: Thing) -> None:
    source = empty_source(arena)
    sink = TopicSink(arena, source)
    die_again_and_again(arena, thing, OwnWork(arena, source, sink))
    audit_topic(arena, sink.topic, committed=not thing.options.get("uncommitted"))


UNCOMMITTED = Control(
    Thing("the same, read with read_uncommitted", "processor", ExactlyOnce.word, {}, {**LONG, "uncommitted": True}),
    frozenset({Anomaly.DUPLICATED}),
)
SCENARIO = Scenario(
    NAME,
    4,
    TITLES[NAME],
    things={ExactlyOnce.word: Thing("kept.Consumer into Kafka, exactly-once", "processor", ExactlyOnce.word, {}, LONG)},
    controls={ExactlyOnce.word: UNCOMMITTED},
    play=play,
    full=Volume(20_000, 10),
    smoke=Volume(4_000, 2),
)
