"""Row 22: of some records more is made than the sink takes; each is buried once, and its neighbours are not."""

from __future__ import annotations

from kept.guarantees import ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.scenarios.poison import INTO_KAFKA, SWALLOWS, THINGS, digest
from kept.verify.trials.arena import Arena
from kept.verify.trials.scenario import Control, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "poison-too-large"
TAKES = {"max.message.bytes": "100000"}
"""It limits whole batches: what is small goes together with what is not, and is refused with it at first."""


def play(arena: Arena, thing: Thing) -> None:
    digest(arena, thing, "too_large", **TAKES)


PASSES_OVER = Control(
    Thing(
        "kept.Consumer into Kafka, exactly-once, with a function that passes over what is too large",
        "processor",
        ExactlyOnce.word,
        {},
        {**INTO_KAFKA, SWALLOWS: True},
    ),
    frozenset({Anomaly.LOST}),
)
SCENARIO = Scenario(
    NAME,
    22,
    TITLES[NAME],
    things=THINGS,
    controls=dict.fromkeys(THINGS, PASSES_OVER),
    play=play,
    full=Volume(5_000, 5),  # each is found by halves, transaction by transaction: ten seconds
    smoke=Volume(1_500, 5),
    at_risk=0,
)
