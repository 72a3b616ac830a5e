"""Row 9: the worker of a task of Spark's dies when it has written a part, and the task is run again."""

from __future__ import annotations

from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.driving import WORDS, into_postgres, naive, task_killed
from kept.verify.trials.lives import STARTS_WITHIN
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import BATCHES

NAME = "task-killed"
SCENARIO = Scenario(
    NAME,
    9,
    TITLES[NAME],
    things={word: into_postgres(word) for word in WORDS},
    controls=dict.fromkeys(WORDS, naive(Anomaly.DUPLICATED)),
    play=task_killed,
    full=Volume(10_000, 3),
    smoke=Volume(3_000, 2),
    batches=BATCHES,
    patience=STARTS_WITHIN,
    needs=frozenset({Need.POSTGRES}),
)
