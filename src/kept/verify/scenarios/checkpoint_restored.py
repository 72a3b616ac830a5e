"""Row 23: Spark's checkpoint goes back in time, and the sink does not."""

from __future__ import annotations

from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.driving import WORDS, checkpoint_restored, into_postgres, naive
from kept.verify.trials.lives import STARTS_WITHIN
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import BATCHES

NAME = "checkpoint-restored"
SCENARIO = Scenario(
    NAME,
    23,
    TITLES[NAME],
    things={word: into_postgres(word) for word in WORDS},
    controls=dict.fromkeys(WORDS, naive(Anomaly.DUPLICATED)),
    play=checkpoint_restored,
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    batches=BATCHES,
    patience=STARTS_WITHIN,
    needs=frozenset({Need.POSTGRES}),
)
