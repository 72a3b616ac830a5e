"""Row 24: a stranger commits to the group of a pipeline into Kafka, whose progress that is.

A pipeline on Spark signs its progress under every guarantee. A consumer does so under exactly-once only: at most and at
least once it has plain group offsets, as any other consumer has, and believes what is there: that is the control.
"""

from __future__ import annotations

from functools import partial

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.scenarios import TITLES
from kept.verify.trials.away import BELIEVES, SLOW, play_while_away, progress_moved
from kept.verify.trials.driving import into_kafka
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import BATCHES, Thing

NAME = "progress-moved"
NOTICES = {
    AtMostOnce.word: into_kafka(AtMostOnce.word),
    AtLeastOnce.word: into_kafka(AtLeastOnce.word),
    ExactlyOnce.word: Thing(
        "kept.Consumer into Kafka, exactly-once", "processor", ExactlyOnce.word, {}, {**SLOW, "into_kafka": True}
    ),
}
SCENARIO = Scenario(
    NAME,
    24,
    TITLES[NAME],
    things=NOTICES,
    controls=dict.fromkeys(NOTICES, BELIEVES),
    play=partial(play_while_away, progress_moved),
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    batches=BATCHES,
    tells=dict.fromkeys(NOTICES, "ProgressMoved"),
    needs=frozenset({Need.POSTGRES}),
)
