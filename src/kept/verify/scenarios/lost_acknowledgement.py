"""Row 1: the broker has appended a batch, and the proxy drops its answer and resets the connection."""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.proxy import Api, Direction, Nth, Reset, Rule
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Setting, Thing

NAME = "lost-acknowledgement"
PER_SECOND = 800
LASTS = 40
"""Seconds of a large workload, which is sent quicker: a small one would be over before its faults."""
TOGETHER = 200
"""Records of a transaction, each with a client of its own: in smaller ones a large workload takes many minutes."""
QUICK = {"linger.ms": 1, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}


def play(arena: Arena, thing: Thing) -> None:
    topic = arena.topic()
    proxy = arena.proxy()
    next_one = Rule(Api.PRODUCE, Direction.RESPONSE, Reset(), Nth(1), client=arena.name)
    settings: dict[str, Setting] = {**QUICK, "client.id": arena.name}
    pace = max(PER_SECOND, arena.volume.records // LASTS)
    life = arena.start(thing, topic, bootstrap=proxy.bootstrap, settings=settings, per_second=pace)
    for moment in arena.moments():
        life.wait_begun(moment)
        arena.strike(proxy, next_one, life, "an acknowledgement was lost")
    arena.finish(life)
    audit_topic(arena, topic)


def producer(word: str, words: str, **settings: str | bool) -> Thing:
    return Thing(f"kept.Producer, {words}", "producer", word, settings)


IN_TRANSACTIONS = Thing(
    f"kept.Producer, exactly-once, transactions of {TOGETHER}", "producer", ExactlyOnce.word, {}, {"together": TOGETHER}
)
WITHOUT = Control(
    producer(AtLeastOnce.word, "at-least-once with enable.idempotence=false", **{"enable.idempotence": False}),
    frozenset({Anomaly.DUPLICATED}),
)
SCENARIO = Scenario(
    NAME,
    1,
    TITLES[NAME],
    things={
        AtMostOnce.word: producer(AtMostOnce.word, "at-most-once"),
        AtLeastOnce.word: producer(AtLeastOnce.word, "at-least-once"),
        ExactlyOnce.word: IN_TRANSACTIONS,
    },
    controls=dict.fromkeys((AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word), WITHOUT),
    play=play,
    full=Volume(100_000, 10),
    smoke=Volume(3_000, 3),
    at_risk=100,
    needs=frozenset({Need.PROXY}),
)
