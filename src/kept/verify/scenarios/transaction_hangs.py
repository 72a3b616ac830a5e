"""Row 16: a stranger leaves a transaction open in the source; readers stand still until the brokers end it.

Who it is, the product has to say: it is asked as `kept transactions` asks it, while the readers wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Producer as Client

from kept.admin.open_transactions import OpenTransaction, OpenTransactions
from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.history import Begun, Fate, Settled, Told
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.away import SLOW
from kept.verify.trials.feeding import Source, TableSink, empty_source
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Thing
from kept.verify.trials.work import OwnWork
from kept.verify.workload import Value

NAME = "transaction-hangs"
OPEN_FOR = 12.0
ENDED_WITHIN = OPEN_FOR + 30.0
WITHIN = 30.0
NAMED = OpenTransaction.__name__
"""Begins what the product tells when it names the culprit; else it has told something else, and owes this."""


def play(arena: Arena, thing: Thing) -> None:
    """The rest of the records comes behind the open transaction: nobody may read it before that has ended."""
    source = empty_source(arena)
    work = OwnWork(arena, source, TableSink(arena, source))
    part = arena.volume.records // 2
    work.feed(part)
    life = arena.start(thing, source.topic, options=work.sink.options())
    arena.wait_effects(life, work.sink, part // 2)
    culprit = f"{arena.name}-stranger"
    stranger = _leave_open(arena, source, culprit)
    work.feed(arena.volume.records)
    watch = OpenTransactions(arena.cluster.bootstrap)
    with arena.fault(f"{culprit} left a transaction open in {source.topic}"):
        arena.recorder.write(Told(telling(culprit, source, watch.on(source.topic)), arena.recorder.now()))
        arena.wait(lambda: not watch.on(source.topic), "the brokers end the transaction", ENDED_WITHIN)
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


def telling(culprit: str, source: Source, found: Sequence[OpenTransaction]) -> str:
    """What the product said, as a line of the history.

    It is what is owed only where the culprit is named for each partition, with its number and its time, and nobody else
    is.
    """
    names = [each.transactional_id for each in found]
    whole = [each.partition for each in found if each.open_for is not None and each.times_out == OPEN_FOR]
    if names != [culprit] * len(source.ends) or whole != list(range(len(source.ends))):
        return f"not named: {culprit} has a transaction open in {len(source.ends)} partitions, and it said: {found}"
    first = min(each.first_offset for each in found)
    return f"{NAMED}: {culprit} has a transaction open in {source.topic}, from offset {first} on"


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
    full=Volume(5_000, 1),
    smoke=Volume(1_500, 1),
    at_risk=0,
    tells=dict.fromkeys(WORDS, NAMED),
    needs=frozenset({Need.POSTGRES}),
)
