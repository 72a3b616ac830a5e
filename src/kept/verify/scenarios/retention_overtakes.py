"""Row 17: the retention of the brokers was quicker than the reader; what is told has a count, and it is right."""

from __future__ import annotations

from functools import partial

from kept.verify.scenarios import TITLES
from kept.verify.scenarios.records_deleted import SCENARIO as DELETED
from kept.verify.trials.away import play_while_away, retention_overtakes
from kept.verify.trials.scenario import Scenario, Volume

NAME = "retention-overtakes"
SCENARIO = Scenario(
    NAME,
    17,
    TITLES[NAME],
    things=DELETED.things,
    controls=DELETED.controls,
    play=partial(play_while_away, retention_overtakes),
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    at_risk=DELETED.at_risk,
    tells=DELETED.tells,
    needs=DELETED.needs,
)
