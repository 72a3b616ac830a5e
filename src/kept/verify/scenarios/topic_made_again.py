"""Row 17: the source is deleted with records that nobody has read, and made again under the same name."""

from __future__ import annotations

from functools import partial

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.scenarios import TITLES
from kept.verify.trials.away import DATED, SKIPS, SLOW, mark_for_nobody, play_while_away, topic_made_again
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "topic-made-again"
INTO_KAFKA = {**SLOW, "into_kafka": True}
WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)
SCENARIO = Scenario(
    NAME,
    17,
    TITLES[NAME],
    things={
        AtMostOnce.word: Thing("kept.Consumer into Postgres, at-most-once", "processor", AtMostOnce.word, {}, SLOW),
        AtLeastOnce.word: DATED,
        ExactlyOnce.word: Thing(
            "kept.Consumer into Kafka, exactly-once", "processor", ExactlyOnce.word, {}, INTO_KAFKA
        ),
    },
    controls=dict.fromkeys(WORDS, SKIPS),
    play=partial(play_while_away, topic_made_again, mark=mark_for_nobody),
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    at_risk=50,
    tells=dict.fromkeys(WORDS, "SourceChanged"),
    needs=frozenset({Need.POSTGRES}),
)
