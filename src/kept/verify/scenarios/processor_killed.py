"""Row 3: a processor is killed in the middle of a batch, between effects and progress, and started again."""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.dying import die_again_and_again
from kept.verify.trials.roles.processor import TOGETHER
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Thing
from kept.verify.trials.work import own_work

NAME = "processor-killed"


def play(arena: Arena, thing: Thing) -> None:
    work = own_work(arena, thing)
    die_again_and_again(arena, thing, work)
    work.sink.audit()


def processor(word: str) -> Thing:
    return Thing(f"kept.Consumer into Postgres, {word}", "processor", word)


REPEATS = Control(processor(AtLeastOnce.word), frozenset({Anomaly.DUPLICATED}))
LOSES = Control(processor(AtMostOnce.word), frozenset({Anomaly.LOST}))
SCENARIO = Scenario(
    NAME,
    3,
    TITLES[NAME],
    things={word: processor(word) for word in (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)},
    controls={AtMostOnce.word: REPEATS, AtLeastOnce.word: LOSES, ExactlyOnce.word: REPEATS},
    play=play,
    full=Volume(10_000, 10),
    smoke=Volume(1_500, 2),
    at_risk=TOGETHER,
    needs=frozenset({Need.POSTGRES}),
)
