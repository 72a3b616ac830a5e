"""Row 10: positions of a transaction are held back, the client resends them, and the old ones arrive in the next."""

from __future__ import annotations

from kept.guarantees import ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.proxy import Api, Direction, Hold, HoldAndReset, KafkaProxyBeside, Nth, Rule
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.dying import SAME_MEMBER
from kept.verify.trials.feeding import TopicSink, feed
from kept.verify.trials.lives import Life
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Setting, Thing

NAME = "late-positions"
QUICK: dict[str, Setting] = {**SAME_MEMBER, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}


def play(arena: Arena, thing: Thing) -> None:
    """Whose progress has gone back notices nothing until it is started again: so it is killed each time."""
    source = feed(arena)
    sink = TopicSink(arena, source)
    proxy = arena.proxy()

    def start() -> Life:
        return arena.start(thing, source.topic, bootstrap=proxy.bootstrap, options=sink.options(), settings=QUICK)

    life = start()
    for moment in arena.moments():
        arena.wait_effects(life, sink, moment)
        _hold_positions(arena, proxy, life)
        life = start()
    arena.finish_when_complete(sink, life)
    sink.audit()


def _hold_positions(arena: Arena, proxy: KafkaProxyBeside, life: Life) -> None:
    """Released when the next transaction has sent its own positions, and is at its end."""
    late = proxy.add(Rule(Api.TXN_OFFSET_COMMIT, Direction.REQUEST, HoldAndReset(), Nth(1)))
    with arena.fault("positions were held back, and released into the next transaction; then it was killed"):
        life.wait(lambda: late.caught > 0, "a transaction sends its positions")
        proxy.remove(late)
        second = proxy.add(Rule(Api.END_TXN, Direction.REQUEST, Hold(), Nth(2)))
        ended = proxy.add(Rule(Api.END_TXN, Direction.RESPONSE, Hold(), Nth(2)))
        life.wait(lambda: second.caught > 0, "the next transaction is at its end")
        late.release()
        late.wait_answered()
        second.release()
        life.wait(lambda: ended.caught > 0, "it has ended")
        life.kill()
        for rule in (second, ended):
            proxy.remove(rule)


GOES_BACK = Control(
    Thing(
        "confluent-kafka, one producer for many transactions",
        "one_for_all_processor",
        ExactlyOnce.word,
        {},
        {"thinks": 0.2},
    ),
    frozenset({Anomaly.DUPLICATED}),
)
SCENARIO = Scenario(
    NAME,
    10,
    TITLES[NAME],
    things={
        ExactlyOnce.word: Thing(
            "kept.Consumer into Kafka, exactly-once", "processor", ExactlyOnce.word, {}, {"thinks": 0.004}
        )
    },
    controls={ExactlyOnce.word: GOES_BACK},
    play=play,
    full=Volume(10_000, 10),
    smoke=Volume(3_000, 2),
    needs=frozenset({Need.PROXY}),
)
