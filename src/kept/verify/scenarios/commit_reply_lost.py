"""Row 6: Postgres has committed, and the proxy swallows its reply and resets the connection."""

from __future__ import annotations

from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.verify.checkers import Anomaly
from kept.verify.proxy import Command, Direction, Nth, PostgresProxy, Reset, Rule
from kept.verify.scenarios import TITLES
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_table
from kept.verify.trials.feeding import TABLE, TableSink, feed
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "commit-reply-lost"
SLOW = {"thinks": 0.004}
"""A consumer that is quick does all its work in a few commits, and there is none left to be hit."""


def play(arena: Arena, thing: Thing) -> None:
    source = feed(arena)
    sink = TableSink(arena, source)
    proxy = arena.use(PostgresProxy(arena.cluster.postgres.address))
    next_one = Rule(Command.COMMIT, Direction.RESPONSE, Reset(), Nth(1))
    life = arena.start(thing, source.topic, options=sink.options(proxy.dsn(sink.dsn)))
    for moment in arena.moments():
        life.wait(lambda: sink.how_much() >= moment, f"{moment} effects")  # noqa: B023 - it is waited for here
        arena.strike(proxy, next_one, life, "the reply to a COMMIT was lost")
    arena.finish_when_complete(sink, life)
    audit_table(arena, sink.dsn, TABLE)


TWICE = Control(
    Thing("effect and progress in two transactions, tried again", "retrier", AtLeastOnce.word),
    frozenset({Anomaly.DUPLICATED}),
)
SCENARIO = Scenario(
    NAME,
    6,
    TITLES[NAME],
    things={
        ExactlyOnce.word: Thing("kept.Consumer into Postgres, exactly-once", "processor", ExactlyOnce.word, {}, SLOW)
    },
    controls={ExactlyOnce.word: TWICE},
    play=play,
    full=Volume(10_000, 10),
    smoke=Volume(3_000, 3),
    needs=frozenset({Need.POSTGRES}),
)
