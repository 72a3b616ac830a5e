"""Row 22: some records cannot be processed; each is buried once, and the rest goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.feeding import TopicSink, feed
from kept.verify.trials.plain_reading import everything_in
from kept.verify.trials.scenario import Control, Scenario, Volume
from kept.verify.trials.things import Thing
from kept.verify.workload import payload_of

NAME = "poison"
INTO_KAFKA = {"into_kafka": True}
ONE_BY_ONE = {**INTO_KAFKA, "producer": {"linger.ms": 0}}
"""Each record is waited for before the next one is sent: so nothing is to be gained by gathering some."""
SWALLOWS = "swallows"


def play(arena: Arena, thing: Thing) -> None:
    digest(arena, thing, NAME)


def digest(arena: Arena, thing: Thing, kind: str, **sink_overrides: object) -> None:
    """What is buried is not lost: the graveyard is audited too. A record was poison when it is seen to be there.

    `kind`: the option by which a processor is told which records are poison, and why.
    """
    source, graveyard = feed(arena), arena.topic()
    sink = TopicSink(arena, source, **sink_overrides)
    poison = chosen(arena)
    options = {**sink.options(), kind: poison, "dead_letters": graveyard}
    life = arena.start(thing, source.topic, options=options)
    arena.finish_when_complete(sink, life)
    note_buried(arena, thing, poison, buried_in(arena, graveyard))
    for topic in (sink.topic, graveyard):
        audit_topic(arena, topic)


def chosen(arena: Arena) -> list[str]:
    """The records that are poison."""
    return [str(value) for value in arena.dice.sample(arena.values(), arena.volume.faults)]


def note_buried(arena: Arena, thing: Thing, poison: Sequence[str], buried: Sequence[tuple[str, float]]) -> None:
    """Each dead letter is a fault that has struck; who buries nothing says itself what it met."""
    for value, at in buried:
        arena.struck(f"{value} could not be digested, and was buried", at)
    if SWALLOWS not in thing.options:
        arena.doubts += why_not_all(poison, [value for value, _ in buried])


def buried_in(arena: Arena, graveyard: str) -> list[tuple[str, float]]:
    """Every dead letter: whose it is, and when it came."""
    letters = everything_in(arena.cluster.bootstrap, graveyard)
    return [(payload_of(letter.value).value, letter.at) for letter in letters]


def why_not_all(poison: Sequence[str], buried: Sequence[str]) -> list[str]:
    """Unless the graveyard holds the poison, each once, and nothing else, this was not a trial of poison."""
    missing, more = Counter(poison) - Counter(buried), Counter(buried) - Counter(poison)
    doubts = []
    if missing:
        doubts.append(f"{missing.total()} of {len(poison)} poisonous records are not buried, such as {min(missing)}")
    if more:
        doubts.append(f"{more.total()} dead letters are of no poison, or there again, such as {min(more)}")
    return doubts


def plain(word: str) -> Thing:
    return Thing(f"kept.Consumer and kept.Producer into Kafka, {word}", "processor", word, {}, ONE_BY_ONE)


THINGS = {
    AtMostOnce.word: plain(AtMostOnce.word),
    AtLeastOnce.word: plain(AtLeastOnce.word),
    ExactlyOnce.word: Thing("kept.Consumer into Kafka, exactly-once", "processor", ExactlyOnce.word, {}, INTO_KAFKA),
}
PASSES_OVER = Control(
    Thing(
        "kept.Consumer into Kafka, exactly-once, with a function that swallows its errors",
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
    full=Volume(20_000, 50),
    smoke=Volume(1_500, 5),
    at_risk=0,
)
