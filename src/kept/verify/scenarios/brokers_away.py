"""Row 20: every broker is away for longer than the clients wait, and the program is killed meanwhile.

Away for longer than a request may take (`socket.timeout.ms`), under every guarantee; than a record may take
(`delivery.timeout.ms`), at most and exactly once; than a transaction may last, and than kept tries to open one (ten
seconds), exactly once. Not for longer than a record may take at least once, where less than two minutes are refused:
`delivery-timed-out` outlasts those. Nor than the minute which kept gives a commit: its client has given up before.
"""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.local.ports import BROKERS
from kept.verify.checkers import Anomaly
from kept.verify.scenarios import TITLES
from kept.verify.scenarios.outbox_restarted import FEWEST, RESENDER, files_of, goes_on_at
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Setting, Thing

NAME = "brokers-away"
REQUESTS: dict[str, Setting] = {"socket.timeout.ms": 3_000, "reconnect.backoff.max.ms": 500}
RECORDS: dict[str, Setting] = {"delivery.timeout.ms": 4_000}
TRANSACTIONS: dict[str, Setting] = {"transaction.timeout.ms": 4_000}
TIME_OUTS: dict[str, dict[str, Setting]] = {
    AtMostOnce.word: {**REQUESTS, **RECORDS},
    AtLeastOnce.word: REQUESTS,
    ExactlyOnce.word: {**REQUESTS, **RECORDS, **TRANSACTIONS},
}
"""All that a guarantee allows to be lowered."""
AWAY = 12.0
PER_SECOND = 80
"""So slow that the records which a program begins during an outage do not use up those of the next one."""
SELDOM = 100
"""Chunks between two notes of a control, more than there are: a death at the very note finds nothing sent since."""


def play(arena: Arena, thing: Thing) -> None:
    topic = arena.topic()
    files, waits = files_of(arena), TIME_OUTS[thing.guarantee]
    first = 0
    for moment in arena.moments():
        life = arena.start(thing, topic, options=files, first=first, settings=waits, per_second=PER_SECOND)
        life.wait_begun(max(FEWEST, moment - first))
        with arena.fault(f"no broker for {AWAY:.0f} s and more; the program was killed meanwhile"):
            for number in BROKERS:
                arena.cluster.broker(number).kill()
            arena.linger(lambda: False, AWAY)
            life.refuse_ended("it was killed")
            life.kill()
            arena.cluster.up()
        first = goes_on_at(life, files)
    arena.finish(arena.start(thing, topic, options=files, first=first, settings=waits, per_second=PER_SECOND))
    audit_topic(arena, topic)


FORGETS = Control(
    Thing("confluent-kafka's buffer, believed", "raw_producer", AtLeastOnce.word, {}, {"believes": True}),
    frozenset({Anomaly.LOST}),
)
RESENDS = Control(
    Thing("an idempotent producer, and a file of positions", RESENDER, AtLeastOnce.word, {}, {"noted_every": SELDOM}),
    frozenset({Anomaly.DUPLICATED}),
)
AT_LEAST = Thing("kept.Outbox, relay at-least-once", "outbox", AtLeastOnce.word, {}, {"at_least_once": True})
SCENARIO = Scenario(
    NAME,
    20,
    TITLES[NAME],
    things={
        AtMostOnce.word: Thing("kept.Producer, at-most-once", "producer", AtMostOnce.word),
        AtLeastOnce.word: AT_LEAST,
        ExactlyOnce.word: Thing("kept.Outbox", "outbox", ExactlyOnce.word),
    },
    controls={AtMostOnce.word: RESENDS, **dict.fromkeys((AtLeastOnce.word, ExactlyOnce.word), FORGETS)},
    play=play,
    full=Volume(3_000, 1),
    smoke=Volume(2_400, 1),
    at_risk=2 * PER_SECOND,
    patience=60.0,
    needs=frozenset({Need.BROKERS}),
)
