"""Row 5: a consumer sleeps past its session in the middle of a batch, another one takes over; then it wakes.

At most once a sleeper that wakes does what it had committed and has in hand, once, but behind what its successor did
meanwhile: to keep the order of a key, it would have to lose them. So each record has a key of its own there, and what
is judged is what row 5 asks: is anything lost, or there twice?
"""

from __future__ import annotations

from collections.abc import Sequence

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.feeding import TableSink, empty_source, fill, mark_ends
from kept.verify.trials.roles.processor import TOGETHER
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Thing
from kept.verify.trials.worker import DONE, FENCED
from kept.verify.workload import Value

NAME = "zombie-consumer"
SLOW = {"thinks": 0.02, "one_by_one": True}
"""A second for each batch: whenever it falls asleep it has one in hand."""
TAKEN_OVER = 2 * TOGETHER
"""Records that the successor has done when the sleeper wakes: of the sleeper's own, too."""


def play(arena: Arena, thing: Thing) -> None:
    """Some of the work is left when the sleeper wakes: it may take part in it again, as a member like any other."""
    source = empty_source(arena, 1)
    arena.fed(fill(arena, source.topic, keyed(arena.values(), apart=thing.guarantee == AtMostOnce.word)))
    sink = TableSink(arena, source)
    sleeper = arena.start(thing, source.topic, options=sink.options())
    arena.wait_effects(sleeper, sink, arena.moments(1)[0])
    with arena.fault("a consumer slept (SIGSTOP) past its session, and another one took its partitions"):
        sleeper.pause()
        before = sink.how_much()
        successor = arena.start(thing, source.topic, options=sink.options())
        arena.wait_effects(successor, sink, before + TAKEN_OVER)
        sleeper.resume()
    mark_ends(arena, source)
    arena.finish_when_complete(sink, successor, may_end=(DONE, FENCED))
    arena.finish_when_complete(sink, sleeper, may_end=(DONE, FENCED))
    sink.audit()


def keyed(values: Sequence[Value], *, apart: bool) -> list[Value]:
    """The same records; `apart`: each with a key of its own."""
    return [value._replace(key=f"k{value.number}") if apart else value for value in values]


def processor(word: str, words: str = "") -> Thing:
    return Thing(f"kept.Consumer into Postgres, {word}{words}", "processor", word, {}, SLOW)


REPEATS = Control(processor(AtLeastOnce.word), frozenset({Anomaly.DUPLICATED}))
ABANDONS = Control(
    Thing(
        "a commit first, and what is in hand let go with the partitions", "abandoner", AtMostOnce.word, {}, dict(SLOW)
    ),
    frozenset({Anomaly.LOST}),
)
SCENARIO = Scenario(
    NAME,
    5,
    TITLES[NAME],
    things={
        AtMostOnce.word: processor(AtMostOnce.word, ", a key for each record"),
        AtLeastOnce.word: REPEATS.thing,
        ExactlyOnce.word: processor(ExactlyOnce.word),
    },
    controls={AtMostOnce.word: REPEATS, AtLeastOnce.word: ABANDONS, ExactlyOnce.word: REPEATS},
    play=play,
    full=Volume(2_000, 1),
    smoke=Volume(1_000, 1),
    at_risk=2 * TOGETHER,
    needs=frozenset({Need.POSTGRES}),
)
