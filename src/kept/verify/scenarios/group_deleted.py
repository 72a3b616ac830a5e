"""Row 24: a stranger deletes the group; for who cannot tell, a reader without progress is a new one."""

from __future__ import annotations

from functools import partial

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.scenarios import TITLES
from kept.verify.trials.away import BEGINS_AGAIN, DATED, SLOW, group_deleted, play_while_away
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "group-deleted"
INTO_KAFKA = {**SLOW, "into_kafka": True}
WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)
SCENARIO = Scenario(
    NAME,
    24,
    TITLES[NAME],
    things={
        AtMostOnce.word: Thing("kept.Consumer into Postgres, at-most-once", "processor", AtMostOnce.word, {}, SLOW),
        AtLeastOnce.word: DATED,
        ExactlyOnce.word: Thing(
            "kept.Consumer into Kafka, exactly-once", "processor", ExactlyOnce.word, {}, INTO_KAFKA
        ),
    },
    controls=dict.fromkeys(WORDS, BEGINS_AGAIN),
    play=partial(play_while_away, group_deleted),
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    at_risk=50,
    tells=dict.fromkeys(WORDS, "ProgressLost"),
    needs=frozenset({Need.POSTGRES}),
)
