"""Row 21: a second driver of the same pipeline begins while the first is at work, on the same checkpoint.

The control has a checkpoint for each of its two drivers. On one, Spark may keep its own queries apart: of two that want
to write the same line of the checkpoint's log, it stops the second. But it does so only there, by the luck of who comes
first, before its batch or when that is in the sink; so a control on one checkpoint may break or not. On two, nothing
is between the two drivers but the sink, which is where kept has its own fence.
"""

from __future__ import annotations

from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.driving import WORDS, into_kafka, sparks_own, two_drivers
from kept.verify.trials.lives import STARTS_WITHIN
from kept.verify.trials.scenario import Scenario, Volume
from kept.verify.trials.things import BATCHES

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
    batches=BATCHES,
    patience=STARTS_WITHIN,
)
