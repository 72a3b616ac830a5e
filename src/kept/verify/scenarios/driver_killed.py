"""Row 8: a driver of Spark is killed when the sink has a batch, before Spark has noted it."""

from __future__ import annotations

from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.driving import WORDS, driver_killed, into_kafka, sparks_own
from kept.verify.trials.lives import STARTS_WITHIN
from kept.verify.trials.scenario import Scenario, Volume
from kept.verify.trials.things import BATCHES

NAME = "driver-killed"
SCENARIO = Scenario(
    NAME,
    8,
    TITLES[NAME],
    things={word: into_kafka(word) for word in WORDS},
    controls=dict.fromkeys(WORDS, sparks_own(Anomaly.DUPLICATED)),
    play=driver_killed,
    full=Volume(10_000, 2),
    smoke=Volume(1_500, 1),
    batches=BATCHES,
    patience=STARTS_WITHIN,
)
