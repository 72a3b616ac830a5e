"""Row 21: Spark's checkpoint is deleted between two starts."""

from __future__ import annotations

from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.driving import WORDS, checkpoint_deleted, into_kafka, sparks_own
from kept.verify.trials.lives import STARTS_WITHIN
from kept.verify.trials.scenario import Scenario, Volume
from kept.verify.trials.things import BATCHES

NAME = "checkpoint-deleted"
SCENARIO = Scenario(
    NAME,
    21,
    TITLES[NAME],
    things={word: into_kafka(word) for word in WORDS},
    controls=dict.fromkeys(WORDS, sparks_own(Anomaly.DUPLICATED)),
    play=checkpoint_deleted,
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    batches=BATCHES,
    patience=STARTS_WITHIN,
)
