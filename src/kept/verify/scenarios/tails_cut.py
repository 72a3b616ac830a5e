"""Row 18: the logs lose their tails, as after a power loss, and are filled with other records."""

from __future__ import annotations

from functools import partial

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.scenarios import TITLES
from kept.verify.trials.away import SKIPS, SLOW, mark_for_nobody, play_while_away, tails_cut
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "tails-cut"
WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)
SCENARIO = Scenario(
    NAME,
    18,
    TITLES[NAME],
    things={word: Thing(f"kept.Consumer into Postgres, {word}", "processor", word, {}, SLOW) for word in WORDS},
    controls=dict.fromkeys(WORDS, SKIPS),
    play=partial(play_while_away, tails_cut, mark=mark_for_nobody),
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    at_risk=50,
    patience=60.0,
    tells=dict.fromkeys(WORDS, "SourceChanged"),
    needs=frozenset({Need.BROKERS, Need.POSTGRES}),
)
