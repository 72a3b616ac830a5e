"""Row 25: the plan fails after some rows of a batch, is repaired, and started again."""

from __future__ import annotations

from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.driving import WORDS, input_cut_short, into_postgres, naive
from kept.verify.trials.lives import STARTS_WITHIN
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import BATCHES

NAME = "input-cut-short"
SCENARIO = Scenario(
    NAME,
    25,
    TITLES[NAME],
    things={word: into_postgres(word) for word in WORDS},
    controls=dict.fromkeys(
        WORDS, naive(Anomaly.LOST, "tasks that move progress to the end of their range", moves_to_end=True)
    ),
    play=input_cut_short,
    full=Volume(10_000, 1),
    smoke=Volume(3_000, 1),
    batches=BATCHES,
    patience=STARTS_WITHIN,
    needs=frozenset({Need.POSTGRES}),
)
