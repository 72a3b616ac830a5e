"""Row 5: a program sleeps in the middle of its work, a successor takes over, and the sleeper wakes and goes on."""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.scenario import Control, Scenario, Volume
from kept.verify.trials.things import Thing
from kept.verify.trials.worker import DONE, FENCED

NAME = "zombie"
SLOW = {"thinks": 0.6}
"""Long enough in every transaction for it to be caught there."""
TOGETHER = 50


def play(arena: Arena, thing: Thing) -> None:
    """The sleeper falls asleep in the middle of a transaction; its successor does that chunk and all the rest again."""
    topic = arena.topic()
    sleeper = arena.start(thing, topic, per_second=500)
    sleeper.wait_begun(arena.moments(1)[0])
    with arena.fault("the program slept (SIGSTOP), and a successor did its work"):
        sleeper.pause()
        first = sleeper.begun - TOGETHER
        successor = arena.start(thing, topic, first=first, per_second=5_000)
        arena.finish(successor)
        sleeper.resume()
    arena.finish(sleeper, may_end=(DONE, FENCED))
    audit_topic(arena, topic)


UNFENCED = Control(
    Thing("kept.Producer, at-least-once: nobody is fenced", "producer", AtLeastOnce.word),
    frozenset({Anomaly.DUPLICATED}),
)
SHUT_OUT = Thing("kept.Producer, exactly-once, transactions of 50", "producer", ExactlyOnce.word, {}, SLOW)
SCENARIO = Scenario(
    NAME,
    5,
    TITLES[NAME],
    things={ExactlyOnce.word: SHUT_OUT},
    controls={ExactlyOnce.word: UNFENCED},
    play=play,
    full=Volume(2_000, 1),
    smoke=Volume(600, 1),
    tells={ExactlyOnce.word: "Fenced"},
)
