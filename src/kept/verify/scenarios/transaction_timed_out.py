"""Row 11: a program sleeps inside a transaction until the coordinator has aborted it, wakes, and commits."""

from __future__ import annotations

from kept.guarantees import ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.lives import Life
from kept.verify.trials.scenario import Control, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "transaction-timed-out"
SLOW = {"thinks": 0.4}
"""Long enough in every transaction for it to be caught there."""
TIMES_OUT = 3_000
SLEEPS = 5.0
"""Seconds: the time-out, and the half second in which the coordinator looks for such transactions, and more."""


def play(arena: Arena, thing: Thing) -> None:
    topic = arena.topic()
    life = arena.start(thing, topic, settings={"transaction.timeout.ms": TIMES_OUT})
    for moment in arena.moments():
        life.wait_begun(moment)
        _wait_inside(life)
        with arena.fault(f"the program slept for {SLEEPS:.0f} s inside a transaction that times out after 3"):
            life.pause()
            arena.linger(lambda: False, SLEEPS)
            life.resume()
    arena.finish(life)
    audit_topic(arena, topic)


def _wait_inside(life: Life) -> None:
    """Until a part has arrived of a transaction. One that was only begun may have nothing at the coordinator yet: it
    would sleep before its transaction, and nobody would abort anything.
    """
    before = life.done
    life.wait(lambda: life.done != before, "a part of a transaction has arrived")


SWALLOWS = Control(
    Thing(
        "confluent-kafka, the error of a commit swallowed",
        "one_for_all",
        ExactlyOnce.word,
        {},
        {**SLOW, "swallows": True},
    ),
    frozenset({Anomaly.LOST}),
)
SURFACES = Thing("kept.Producer, exactly-once, transactions of 50", "producer", ExactlyOnce.word, {}, SLOW)
SCENARIO = Scenario(
    NAME,
    11,
    TITLES[NAME],
    things={ExactlyOnce.word: SURFACES},
    controls={ExactlyOnce.word: SWALLOWS},
    play=play,
    full=Volume(3_000, 5),
    smoke=Volume(750, 2),
    tells={ExactlyOnce.word: "TransactionAborted"},
)
