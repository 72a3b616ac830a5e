"""Row 21: a second driver of the same pipeline begins while the first is at work."""

from __future__ import annotations

from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.driving import BATCH, WORDS, into_kafka, sparks_own, two_drivers
from kept.verify.trials.lives import STARTS_WITHIN
from kept.verify.trials.scenario import Scenario, Volume

NAME = "two-drivers"
SCENARIO = Scenario(
    NAME,
    21,
    TITLES[NAME],
    things={word: into_kafka(word) for word in WORDS},
    controls=dict.fromkeys(WORDS, sparks_own(Anomaly.DUPLICATED, apart=True)),
    play=two_drivers,
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    at_risk=BATCH,
    patience=STARTS_WITHIN,
)
