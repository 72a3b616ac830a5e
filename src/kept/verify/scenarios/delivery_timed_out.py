"""Row 12: nobody answers for longer than the delivery time-out, while requests are under way; the program retries."""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.proxy import Api, Direction, Drop, Rule
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
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
    """The answers are dropped first, so that the records are there; then the requests, so that they are not."""
    topic = arena.topic()
    proxy = arena.proxy()
    away = int(thing.settings[GIVES_UP]) / 1000 + LONGER
    quick: dict[str, Setting] = {"client.id": arena.name, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}
    life = arena.start(thing, topic, bootstrap=proxy.bootstrap, settings=quick, per_second=PER_SECOND)
    for number, moment in enumerate(arena.moments(1 if away > LONG else None)):
        life.wait_begun(moment)
        direction = Direction.REQUEST if number % 2 else Direction.RESPONSE
        with arena.fault(f"every {direction.value} was dropped for {away:.0f} s"):
            dropping = proxy.add(Rule(Api.PRODUCE, direction, Drop(), client=arena.name))
            life.wait(lambda: dropping.caught > 0, "something is under way")  # noqa: B023 - it is waited for here
            arena.linger(lambda: False, away)
            proxy.remove(dropping)
    arena.finish(life)
    audit_topic(arena, topic)


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
