"""Row 17: somebody's DeleteRecords was quicker than the reader; what is told has a count, and it is right."""

from __future__ import annotations

from functools import partial

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.scenarios import TITLES
from kept.verify.trials.away import SKIPS, SLOW, play_while_away, records_deleted
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "records-deleted"
WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)
SCENARIO = Scenario(
    NAME,
    17,
    TITLES[NAME],
    things={word: Thing(f"kept.Consumer into Postgres, {word}", "processor", word, {}, SLOW) for word in WORDS},
    controls=dict.fromkeys(WORDS, SKIPS),
    play=partial(play_while_away, records_deleted),
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    at_risk=50,
    tells=dict.fromkeys(WORDS, "Gap"),
    needs=frozenset({Need.POSTGRES}),
)
