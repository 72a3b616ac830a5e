"""Rows 17 and 24: the group's position on one partition is gone, as when it expires; those on others are there."""

from __future__ import annotations

from functools import partial

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.scenarios import TITLES
from kept.verify.trials.away import BEGINS_AGAIN, DATED, SLOW, play_while_away, position_expired
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "position-expired"
WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)
SCENARIO = Scenario(
    NAME,
    17,
    TITLES[NAME],
    things={
        AtMostOnce.word: Thing("kept.Consumer into Postgres, at-most-once", "processor", AtMostOnce.word, {}, SLOW),
        AtLeastOnce.word: DATED,
        ExactlyOnce.word: Thing(
            "kept.Consumer into Kafka, exactly-once", "processor", ExactlyOnce.word, {}, {**SLOW, "into_kafka": True}
        ),
    },
    controls=dict.fromkeys(WORDS, BEGINS_AGAIN),
    play=partial(play_while_away, position_expired),
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    at_risk=50,
    tells=dict.fromkeys(WORDS, "ProgressLost"),
    needs=frozenset({Need.POSTGRES}),
)
