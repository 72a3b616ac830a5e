"""Row 24: a stranger commits to the group of a pipeline into Kafka, whose progress that is."""

from __future__ import annotations

from functools import partial

from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.away import SLOW, play_while_away, position_moved
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "progress-moved"
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
    play=partial(play_while_away, position_moved),
    full=Volume(5_000, 1),
    smoke=Volume(1_500, 1),
    tells={ExactlyOnce.word: "ProgressMoved"},
    needs=frozenset({Need.POSTGRES}),
)
