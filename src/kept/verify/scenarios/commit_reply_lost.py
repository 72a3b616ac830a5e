"""Row 6: Postgres has committed, and the proxy swallows its reply and resets the connection.

At most and at least once the rows of a batch are committed by the program's own transaction, apart from its progress.
It cannot know what became of that, and ends; whoever looks after it starts it again.
"""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.proxy import Command, Direction, Nth, PostgresProxy, Reset, Rule
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.feeding import TableSink, feed
from kept.verify.trials.reviving import Revived
from kept.verify.trials.roles.processor import TOGETHER
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "commit-reply-lost"
SLOW = {"thinks": 0.004, "in_transactions": True}
"""A consumer that is quick does all its work in a few commits, and there is none left to be hit."""


def play(arena: Arena, thing: Thing) -> None:
    source = feed(arena)
    sink = TableSink(arena, source)
    proxy = arena.use(PostgresProxy(arena.cluster.postgres.address))
    next_one = Rule(Command.COMMIT, Direction.RESPONSE, Reset(), Nth(1))
    options = sink.options(proxy.dsn(sink.dsn))
    processor = Revived(arena, sink, lambda: arena.start(thing, source.topic, options=options))
    for moment in arena.moments():
        processor.reach(moment)
        arena.strike(proxy, next_one, processor.life, "the reply to a COMMIT was lost")
        processor.go_on(unaided=thing.guarantee == ExactlyOnce.word)
    arena.finish_when_complete(sink, processor.life)
    sink.audit()


def processor(word: str) -> Thing:
    return Thing(f"kept.Consumer into Postgres, {word}", "processor", word, {}, SLOW)


WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)
TWICE = Control(
    Thing("effect and progress in two transactions, tried again", "retrier", AtLeastOnce.word),
    frozenset({Anomaly.DUPLICATED}),
)
SCENARIO = Scenario(
    NAME,
    6,
    TITLES[NAME],
    things={word: processor(word) for word in WORDS},
    controls=dict.fromkeys(WORDS, TWICE),
    play=play,
    full=Volume(10_000, 10),
    smoke=Volume(3_000, 3),
    at_risk=TOGETHER,
    needs=frozenset({Need.POSTGRES}),
)
