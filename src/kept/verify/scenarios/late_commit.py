"""Row 10: the end of a transaction is held back, the client resends it, and the old one arrives inside the next."""

from __future__ import annotations

from kept.guarantees import ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.proxy import Api, Direction, HoldAndReset, KafkaProxyBeside, Nth, Rule
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
        begun = life.begun
        life.wait(lambda: life.begun > begun, "the next transaction has begun")
        sent = _sent(arena, proxy)
        life.wait(lambda: _sent(arena, proxy) > sent, "it has sent something")
        late.release()
        late.wait_answered()


def _sent(arena: Arena, proxy: KafkaProxyBeside) -> int:
    answers = (Api.PRODUCE, arena.name, Direction.RESPONSE)
    return len([line for line in proxy.log if (line.kind, line.client, line.direction) == answers])


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
