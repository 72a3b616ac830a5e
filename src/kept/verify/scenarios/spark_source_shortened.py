"""Row 17: somebody's DeleteRecords was quicker than a pipeline on Spark; what is told has a count, and it is right."""

from __future__ import annotations

from functools import partial

from kept.errors import Gap
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.away import play_while_away, records_deleted
from kept.verify.trials.driving import WORDS, into_postgres, naive
from kept.verify.trials.lives import STARTS_WITHIN
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import BATCHES

NAME = "spark-source-shortened"
SCENARIO = Scenario(
    NAME,
    17,
    TITLES[NAME],
    things={word: into_postgres(word) for word in WORDS},
    controls=dict.fromkeys(WORDS, naive(Anomaly.LOST, "foreachBatch, failOnDataLoss=false", skips_what_is_gone=True)),
    play=partial(play_while_away, records_deleted),
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    batches=BATCHES,
    patience=STARTS_WITHIN,
    tells=dict.fromkeys(WORDS, Gap.__name__),
    needs=frozenset({Need.POSTGRES}),
)
