"""Row 23: the sink goes back in time, and Spark's checkpoint does not."""

from __future__ import annotations

from kept.errors import Gap
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.driving import WORDS, into_postgres, naive, sink_restored
from kept.verify.trials.lives import STARTS_WITHIN
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import BATCHES

NAME = "sink-restored"
SCENARIO = Scenario(
    NAME,
    23,
    TITLES[NAME],
    things={word: into_postgres(word) for word in WORDS},
    controls=dict.fromkeys(WORDS, naive(Anomaly.LOST)),
    play=sink_restored,
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    batches=BATCHES,
    patience=STARTS_WITHIN,
    tells=dict.fromkeys(WORDS, Gap.__name__),
    needs=frozenset({Need.POSTGRES}),
)
