"""Row 6: Postgres is killed in the middle of a batch, and started again."""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.feeding import TableSink, feed, mark_ends
from kept.verify.trials.reviving import Revived
from kept.verify.trials.roles.processor import TOGETHER
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "postgres-killed"
SLOW = {"thinks": 0.003, "one_by_one": True}
"""Row by row: whenever the server dies, some of a batch is there, and some is not."""


def play(arena: Arena, thing: Thing) -> None:
    """Who has no connection any more may die of it: then it is started again. Exactly-once goes on by itself."""
    source = feed(arena, ends=False)
    sink = TableSink(arena, source)
    processor = Revived(arena, sink, lambda: arena.start(thing, source.topic, options=sink.options()))
    for moment in arena.moments():
        processor.reach(moment)
        processor.life.refuse_ended("Postgres was killed")
        with arena.fault("Postgres was killed, and started again"):
            arena.cluster.postgres.kill()
            arena.cluster.postgres.start()
        processor.go_on(unaided=thing.guarantee == ExactlyOnce.word)
    mark_ends(arena, source)
    arena.finish_when_complete(sink, processor.life)
    sink.audit()


def processor(word: str) -> Thing:
    return Thing(f"kept.Consumer into Postgres, {word}", "processor", word, {}, SLOW)


WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)
REPEATS = Control(processor(AtLeastOnce.word), frozenset({Anomaly.DUPLICATED}))
LOSES = Control(processor(AtMostOnce.word), frozenset({Anomaly.LOST}))
SCENARIO = Scenario(
    NAME,
    6,
    TITLES[NAME],
    things={word: processor(word) for word in WORDS},
    controls={AtMostOnce.word: REPEATS, AtLeastOnce.word: LOSES, ExactlyOnce.word: REPEATS},
    play=play,
    full=Volume(6_000, 6),
    smoke=Volume(2_000, 2),
    at_risk=TOGETHER,
    needs=frozenset({Need.POSTGRES}),
)
