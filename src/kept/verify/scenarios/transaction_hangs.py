"""Row 16: a stranger leaves a transaction open in the source; readers stand still until the brokers end it."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Producer as Client

from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.local.ports import BROKERS
from kept.verify.checkers import Anomaly
from kept.verify.history import Begun, Fate, Settled
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.away import SLOW
from kept.verify.trials.elsewhere import Elsewhere
from kept.verify.trials.feeding import Source, TableSink, empty_source
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Thing
from kept.verify.trials.wire import OpenTransaction, open_transactions
from kept.verify.trials.work import OwnWork
from kept.verify.workload import Value

NAME = "transaction-hangs"
OPEN_FOR = 12.0
ENDED_WITHIN = OPEN_FOR + 30.0
WITHIN = 30.0


def play(arena: Arena, thing: Thing) -> None:
    """The rest of the records comes behind the open transaction: nobody may read it before that has ended."""
    source = empty_source(arena)
    work = OwnWork(arena, source, TableSink(arena, source))
    part = arena.volume.records // 2
    work.feed(part)
    life = arena.start(thing, source.topic, options=work.sink.options())
    life.wait(lambda: work.sink.how_much() >= part // 2, f"{part // 2} effects")
    culprit = f"{arena.name}-stranger"
    stranger = _leave_open(arena, source, culprit)
    work.feed(arena.volume.records)
    found = [one for partition in range(len(source.ends)) for one in _open_on(arena, source.topic, partition)]
    arena.doubts += why_not_named(culprit, len(source.ends), found)
    with arena.fault(in_words(source.topic, found)):
        arena.wait(
            lambda: not any([*_open_on(arena, source.topic, number)] for number in range(len(source.ends))),
            "the brokers end the transaction",
            ENDED_WITHIN,
        )
    del stranger
    work.feed_rest()
    arena.finish_when_complete(work.sink, life)
    work.sink.audit()


def _leave_open(arena: Arena, source: Source, name: str) -> Client:
    """One record in each partition, in a transaction that nobody ends. They are not to be seen, ever."""
    values = [Value("stranger", f"p{number}", 0) for number in range(len(source.ends))]
    now = arena.recorder.now()
    arena.recorder.write_all(Begun(str(value), now) for value in values)
    stranger = Client(
        {
            "bootstrap.servers": arena.cluster.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": int(1000 * OPEN_FOR),
            "log_level": 0,
        }
    )
    stranger.init_transactions(WITHIN)
    stranger.begin_transaction()
    for number, value in enumerate(values):
        stranger.produce(source.topic, str(value), value.key, partition=number)
    stranger.flush(WITHIN)
    arena.recorder.write_all(Settled(str(value), Fate.NOT_PERSISTED, now) for value in values)
    return stranger


def _open_on(arena: Arena, topic: str, partition: int) -> list[OpenTransaction]:
    there = arena.cluster
    addresses = (
        there.brokers() if isinstance(there, Elsewhere) else {each: there.broker(each).address for each in BROKERS}
    )
    leader = arena.topics.describe(topic).partitions[partition].leader
    return list(open_transactions(addresses[leader], list(addresses.values()), topic, partition))


def in_words(topic: str, found: Sequence[OpenTransaction]) -> str:
    """Who it is, and from where on nobody could read."""
    names = ", ".join(sorted({each.transactional_id for each in found})) or "nobody knows who"
    first = min((each.first_offset for each in found), default=-1)
    return f"{names} left a transaction open in {topic}, from offset {first} on"


def why_not_named(culprit: str, partitions: int, found: Sequence[OpenTransaction]) -> list[str]:
    """Unless the culprit is named for each partition, and nobody else is."""
    names = [each.transactional_id for each in found]
    if names == [culprit] * partitions:
        return []
    return [f"the open transaction is {culprit}'s in {partitions} partitions, and was said to be of {names}"]


def reader(word: str) -> Thing:
    return Thing(f"kept.Consumer into Postgres, {word}", "processor", word, {}, SLOW)


WORDS = (AtLeastOnce.word, ExactlyOnce.word)
UNCOMMITTED = Control(
    Thing(
        "confluent-kafka, read_uncommitted",
        "raw_consumer",
        AtLeastOnce.word,
        {"isolation.level": "read_uncommitted"},
        {"thinks": 0.004},
    ),
    frozenset({Anomaly.PHANTOM}),
)
SCENARIO = Scenario(
    NAME,
    16,
    TITLES[NAME],
    things={word: reader(word) for word in WORDS},
    controls=dict.fromkeys(WORDS, UNCOMMITTED),
    play=play,
    full=Volume(10_000, 1),
    smoke=Volume(1_500, 1),
    at_risk=0,
    needs=frozenset({Need.POSTGRES}),
)
