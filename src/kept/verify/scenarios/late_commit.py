"""Row 10: the end of a transaction is held back, the client resends it, and the old one arrives inside the next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from kept.guarantees import ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.proxy import Api, Did, Direction, HoldAndReset, KafkaProxyBeside, Nth, Rule, Sighting
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.lives import Life
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Setting, Thing

NAME = "late-commit"
SLOW = {"thinks": 0.6}


def play(arena: Arena, thing: Thing) -> None:
    topic = arena.topic(partitions=1)
    proxy = arena.proxy()
    quick: dict[str, Setting] = {"client.id": arena.name, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}
    life = arena.start(thing, topic, bootstrap=proxy.bootstrap, settings=quick, per_second=250)
    for moment in arena.moments():
        life.wait_begun(moment)
        _hold_an_end(arena, proxy, life)
    arena.finish(life)
    audit_topic(arena, topic)


def _hold_an_end(arena: Arena, proxy: KafkaProxyBeside, life: Life) -> None:
    """Released when the next transaction has sent something, and is not yet at its end."""
    late = proxy.add(Rule(Api.END_TXN, Direction.REQUEST, HoldAndReset(), Nth(1), client=arena.name))
    with arena.fault("the end of a transaction was held back, and released into the next one"):
        life.wait(lambda: late.caught > 0, "a transaction ends")
        proxy.remove(late)
        life.wait(lambda: sent_since(proxy.log, arena.name), "the next transaction has sent something")
        late.release()
        late.wait_answered()


def sent_since(log: Sequence[Sighting], client: str) -> bool:
    """Did a client have an answer for records since its end was held? Those of its transaction had come before.

    By the order of the proxy's log: whoever looks at a clock, or at how far the client is, may look too late, when the
    next transaction is at its end, too.
    """
    since = takewhile(lambda line: (line.client, line.did) != (client, Did.HELD_AND_RESET), reversed(log))
    answers = (Api.PRODUCE, client, Direction.RESPONSE)
    return any((line.kind, line.client, line.direction) == answers for line in since)


# What the late end alone does: it commits the first half of the next transaction, which is torn then, or was said to be
# aborted. A repeat shows nothing: who is told of an abort does it again.
TEARS = Control(
    Thing("confluent-kafka, one producer for many transactions", "one_for_all", ExactlyOnce.word, {}, SLOW),
    frozenset({Anomaly.TORN, Anomaly.PHANTOM}),
)
WHOLE = Thing("kept.Producer, exactly-once, transactions of 50", "producer", ExactlyOnce.word, {}, SLOW)
SCENARIO = Scenario(
    NAME,
    10,
    TITLES[NAME],
    things={ExactlyOnce.word: WHOLE},
    controls={ExactlyOnce.word: TEARS},
    play=play,
    full=Volume(5_000, 10),
    smoke=Volume(600, 2),
    needs=frozenset({Need.PROXY}),
)
