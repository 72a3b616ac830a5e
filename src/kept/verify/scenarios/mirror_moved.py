"""Row 24: a stranger commits to the group of a pipeline into Postgres, which is only a mirror of its progress."""

from __future__ import annotations

from functools import partial

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.scenarios import TITLES
from kept.verify.trials.away import BELIEVES, SLOW, mirror_moved, play_while_away
from kept.verify.trials.driving import into_postgres
from kept.verify.trials.lives import STARTS_WITHIN
from kept.verify.trials.scenario import Need, Scenario, Volume
from kept.verify.trials.things import BATCHES, Thing

NAME = "mirror-moved"
GOES_ON = {
    AtMostOnce.word: into_postgres(AtMostOnce.word),
    AtLeastOnce.word: into_postgres(AtLeastOnce.word),
    ExactlyOnce.word: Thing("kept.Consumer into Postgres, exactly-once", "processor", ExactlyOnce.word, {}, SLOW),
}
SCENARIO = Scenario(
    NAME,
    24,
    TITLES[NAME],
    things=GOES_ON,
    controls=dict.fromkeys(GOES_ON, BELIEVES),
    play=partial(play_while_away, mirror_moved),
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    batches=BATCHES,
    patience_under=dict.fromkeys((AtMostOnce.word, AtLeastOnce.word), STARTS_WITHIN),
    needs=frozenset({Need.POSTGRES}),
)
