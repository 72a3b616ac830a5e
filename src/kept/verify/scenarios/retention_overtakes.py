"""Row 17: the retention of the brokers was quicker than the reader; what is told has a count."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kept.verify.history import read_history
from kept.verify.scenarios import TITLES
from kept.verify.scenarios.records_deleted import SCENARIO as DELETED
from kept.verify.trials.arena import Arena
from kept.verify.trials.away import play_while_away, retention_overtakes
from kept.verify.trials.scenario import Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "retention-overtakes"
COUNTED = re.compile(r"\b[1-9]\d* at most\b")


def play(arena: Arena, thing: Thing) -> None:
    play_while_away(retention_overtakes, arena, thing)
    arena.doubts += uncounted([stop.what for stop in read_history(arena.folder).stops])


def uncounted(told: Sequence[str]) -> list[str]:
    """Records that are gone are told with their number; a control tells nothing."""
    return [f"it was told without a count: {what}" for what in told if not COUNTED.search(what)]


SCENARIO = Scenario(
    NAME,
    17,
    TITLES[NAME],
    things=DELETED.things,
    controls=DELETED.controls,
    play=play,
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    at_risk=DELETED.at_risk,
    tells=DELETED.tells,
    needs=DELETED.needs,
)
