"""Row 7: the coordinator of the transaction, or of the group, is killed during a commit; every other time with the
processor, as when one machine dies on which both run.

A control meets the very faults that the subject meets. It does not break by the death of a coordinator alone: its plain
commit is repeated at the next coordinator, and loses and repeats nothing. It breaks where the processor dies, too, with
a commit under way: that one is recorded apart from the effects, which are done again, or never. The subject has both
in one transaction, which the new coordinator ends as a whole; and of it the death of the coordinator alone is asked,
too: nothing torn, and that it goes on.

A control has little volume, which is two faults. So the fault that breaks it is among these: who commits behind its
effects repeats them where the coordinator has not heard of the commit, and who commits before them loses them where it
has.
"""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.proxy import Api, Did, Direction, Hold, KafkaProxyBeside, Nth, Rule
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.lives import Life
from kept.verify.trials.roles.processor import TOGETHER
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Thing
from kept.verify.trials.work import own_work

NAME = "coordinator-killed"
SLOW = {"thinks": 0.01, "one_by_one": True}
"""It has to go on for as long as brokers die and come back."""
IN_TRANSACTIONS = (Api.END_TXN, Api.TXN_OFFSET_COMMIT)
PLAINLY = (Api.OFFSET_COMMIT,)
ELECTED_AFTER = 4.0
"""Seconds: a broker is taken for dead after three."""


def play(arena: Arena, thing: Thing) -> None:
    """Half of the commits are stopped before the coordinator has heard of them, half before its answer is heard.

    Each fault has records of its own: however long brokers take to come back, there is something left to commit.
    """
    work = own_work(arena, thing)
    proxy = arena.proxy()

    def start() -> Life:
        return arena.start(thing, work.topic, bootstrap=proxy.bootstrap, options=work.sink.options())

    life = start()
    apis = IN_TRANSACTIONS if thing.guarantee == ExactlyOnce.word else PLAINLY
    for number, (moment, fed) in enumerate(moments(arena)):
        work.feed(fed)
        arena.wait_effects(life, work.sink, moment)
        direction, with_it = fault_of(number, thing.guarantee)
        coordinator = _caught(proxy, life, apis[number // 2 % len(apis)], direction)
        with arena.fault(f"broker {coordinator} was killed during a commit{', and the processor' * with_it}"):
            arena.cluster.broker(coordinator).kill()
            if with_it:
                life.kill()
                life = start()
            arena.linger(lambda: False, ELECTED_AFTER)
            arena.cluster.broker(coordinator).start()
            # Of the fault's time: who has done all its records meanwhile stands still, and has not stalled.
            arena.wait(
                lambda: all(len(part.in_sync) == 3 for part in arena.topics.describe(work.topic).partitions),
                "all three copies are in sync",
            )
    work.feed_rest()
    arena.finish_when_complete(work.sink, life)
    work.sink.audit()


def moments(arena: Arena) -> list[tuple[int, int]]:
    """For each fault, the number of effects at which it strikes, and of records that are there by then."""
    portion = arena.volume.records // arena.volume.faults
    starts = [portion * number for number in range(arena.volume.faults)]
    return [(start + arena.dice.randrange(portion // 8, portion // 2), start + portion) for start in starts]


def fault_of(number: int, word: str) -> tuple[Direction, bool]:
    """Which way a commit is stopped, and whether the processor dies with the coordinator: four faults are all there
    are, and each meets all of them; who commits first, in another order.
    """
    unheard = number % 4 in (1, 2)
    if word == AtMostOnce.word:
        unheard = not unheard
    return Direction.REQUEST if unheard else Direction.RESPONSE, number % 2 == 1


def _caught(proxy: KafkaProxyBeside, life: Life, api: Api, direction: Direction) -> int:
    """Hold the next of these, and say which broker it is for, or from."""
    held = proxy.add(Rule(api, direction, Hold(), Nth(1)))
    life.wait(lambda: held.caught > 0, f"a {api.name} {direction.value}")
    proxy.remove(held)
    return next(line.broker for line in reversed(proxy.log) if line.did is Did.HELD)


REPEATS = Control(
    Thing("effects, then a plain commit (kept.Consumer, at-least-once)", "processor", AtLeastOnce.word, {}, SLOW),
    frozenset({Anomaly.DUPLICATED}),
)
LOSES = Control(
    Thing("a plain commit, then effects (kept.Consumer, at-most-once)", "processor", AtMostOnce.word, {}, SLOW),
    frozenset({Anomaly.LOST}),
)
SCENARIO = Scenario(
    NAME,
    7,
    TITLES[NAME],
    things={
        AtLeastOnce.word: REPEATS.thing,
        ExactlyOnce.word: Thing(
            "kept.Consumer into Kafka, exactly-once", "processor", ExactlyOnce.word, {}, {**SLOW, "into_kafka": True}
        ),
    },
    controls={AtLeastOnce.word: LOSES, ExactlyOnce.word: REPEATS},
    play=play,
    full=Volume(6_000, 4),
    smoke=Volume(3_000, 2),
    at_risk=3 * TOGETHER,
    patience=60.0,
    needs=frozenset({Need.BROKERS, Need.PROXY, Need.POSTGRES}),
)
