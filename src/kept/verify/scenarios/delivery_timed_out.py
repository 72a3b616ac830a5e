"""Row 12: nobody answers for longer than the delivery time-out, while requests are under way; the program retries."""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.proxy import Api, Armed, Direction, Drop, KafkaProxyBeside, Rule
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.lives import Life
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Setting, Thing

NAME = "delivery-timed-out"
GIVES_UP = "delivery.timeout.ms"
QUICK = {GIVES_UP: 3_000}
PATIENT = {GIVES_UP: 120_000, "socket.timeout.ms": 5_000}
"""At-least-once takes no shorter one: it has to outlast an election."""
LONGER = 2.0
LONG = 60.0
PER_SECOND = 200
WINDOW = 200
"""For a long outage, in which all that is begun is in flight, and may be sent again: it must not be everything. So the
program begins no more while so many are under way.
"""


def play(arena: Arena, thing: Thing) -> None:
    """The answers are dropped first, so that the records are there; then the requests, so that they are not.

    A long outage is one for both: the requests are dropped, too, once an answer was.
    """
    topic = arena.topic()
    proxy = arena.proxy()
    away = away_from(thing)
    quick: dict[str, Setting] = {"client.id": arena.name, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}
    life = arena.start(thing, topic, bootstrap=proxy.bootstrap, settings=quick, per_second=PER_SECOND)
    for number, moment in enumerate(arena.moments(1 if away > LONG else None)):
        life.wait_begun(moment)
        dropped = dropped_in(number, away)
        with arena.fault(f"every {' and '.join(each.value for each in dropped)} was dropped for {away:.0f} s"):
            rules = [_dropping(arena, proxy, life, direction) for direction in dropped]
            arena.linger(lambda: False, away)
            for rule in rules:
                proxy.remove(rule)
    arena.finish(life)
    audit_topic(arena, topic)


def away_from(thing: Thing) -> float:
    """Seconds in which nobody answers it: longer than it waits."""
    return int(thing.settings[GIVES_UP]) / 1000 + LONGER


def dropped_in(number: int, away: float) -> tuple[Direction, ...]:
    """What is dropped in an outage of so many seconds, one after the other."""
    both = (Direction.RESPONSE, Direction.REQUEST)
    return both if away > LONG else (both[number % 2],)


def _dropping(arena: Arena, proxy: KafkaProxyBeside, life: Life, direction: Direction) -> Armed:
    """A rule that has dropped something already."""
    rule = proxy.add(Rule(Api.PRODUCE, direction, Drop(), client=arena.name))
    life.wait(lambda: rule.caught > 0, f"a {direction.value} is under way")
    return rule


AT_LEAST = Thing(
    "kept.Producer, at-least-once, what is unknown sent again",
    "producer",
    AtLeastOnce.word,
    PATIENT,
    {"retries": True, "window": WINDOW},
)
RETRIES = Control(
    Thing(
        "confluent-kafka, idempotent, what timed out sent again",
        "raw_producer",
        AtLeastOnce.word,
        {**QUICK, "acks": "all", "enable.idempotence": True},
        {"retries": True},
    ),
    frozenset({Anomaly.DUPLICATED}),
)
FORGETS = Control(
    Thing("confluent-kafka's buffer, believed", "raw_producer", AtLeastOnce.word, QUICK, {"believes": True}),
    frozenset({Anomaly.LOST}),
)
SCENARIO = Scenario(
    NAME,
    12,
    TITLES[NAME],
    things={
        AtMostOnce.word: Thing("kept.Producer, at-most-once", "producer", AtMostOnce.word, QUICK),
        AtLeastOnce.word: AT_LEAST,
        ExactlyOnce.word: Thing("kept.Producer, exactly-once, transactions of 50", "producer", ExactlyOnce.word, QUICK),
    },
    controls={AtMostOnce.word: RETRIES, AtLeastOnce.word: FORGETS, ExactlyOnce.word: RETRIES},
    play=play,
    full=Volume(6_000, 4),
    smoke=Volume(3_000, 2),
    at_risk=3 * PER_SECOND,
    at_risk_under={AtLeastOnce.word: 2 * WINDOW},  # those under way when it began, and when they were sent again
    patience=60.0,
    needs=frozenset({Need.PROXY}),
)
