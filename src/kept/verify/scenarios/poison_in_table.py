"""Row 22: some records break a constraint of the table, every other one only at the commit; each is buried once."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.stores.sql_errors import told_as
from kept.verify.checkers import Anomaly
from kept.verify.history import Found, Read
from kept.verify.scenarios import TITLES
from kept.verify.scenarios.poison import SWALLOWS, buried_in, chosen, note_buried
from kept.verify.trials.arena import Arena
from kept.verify.trials.auditing import audit_topic
from kept.verify.trials.feeding import TABLE, TableSink, feed
from kept.verify.trials.scenario import Control, Need, Scenario, Volume
from kept.verify.trials.things import Thing

NAME = "poison-in-table"
ONE_BY_ONE = {"one_by_one": True}
LETTERS = "kept_dead_letters"
AT_ONCE = SQL("ALTER TABLE {} ADD CHECK (message <> ALL ({}))")
REFUSING = SQL(
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE EXCEPTION 'not in this table' USING ERRCODE = 'check_violation'; END $$"
)
AT_COMMIT = SQL(
    "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON {} DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW WHEN (NEW.message = ANY ({})) EXECUTE FUNCTION refuse()"
)


def play(arena: Arena, thing: Thing) -> None:
    """Exactly-once buries in a table beside the effects, the others in a topic; either is audited, too."""
    source, graveyard = feed(arena), arena.topic()
    sink, poison = TableSink(arena, source), chosen(arena)
    constrain(sink.dsn, poison)
    exactly = thing.guarantee == ExactlyOnce.word
    buries = {} if exactly or SWALLOWS in thing.options else {"dead_letters": graveyard}
    life = arena.start(thing, source.topic, options={**sink.options(), **buries})
    arena.finish_when_complete(sink, life)
    buried = _letters(sink.dsn) if exactly else buried_in(arena, graveyard)
    note_buried(arena, thing, poison, buried)
    sink.audit()
    if exactly:
        now = arena.recorder.now()
        arena.recorder.write_all(Found(value, LETTERS, 0, at, now) for at, (value, _) in enumerate(buried))
        arena.recorder.write(Read(LETTERS, now, True))
    else:
        audit_topic(arena, graveyard)


def constrain(dsn: str, poison: Sequence[str]) -> None:
    """Every other one is refused at once, the rest when the transaction ends."""
    table = Identifier(TABLE)
    with told_as("the table cannot be constrained"), psycopg.connect(dsn) as connection:
        connection.execute(AT_ONCE.format(table, Literal(list(poison[::2]))))
        connection.execute(REFUSING)
        connection.execute(AT_COMMIT.format(table, Literal(list(poison[1::2]))))


def _letters(dsn: str) -> list[tuple[str, float]]:
    """Every dead letter in the database: whose it is, and when it came."""
    question = SQL("SELECT value, extract(epoch FROM died_at)::float8 FROM {} ORDER BY id").format(Identifier(LETTERS))
    with told_as("the dead letters cannot be read"), psycopg.connect(dsn) as connection:
        return [(bytes(value).decode(), float(at)) for value, at in connection.execute(question)]


WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)
PASSES_OVER = Control(
    Thing(
        "kept.Consumer, at-least-once, with a function that swallows its errors",
        "processor",
        AtLeastOnce.word,
        {},
        {**ONE_BY_ONE, SWALLOWS: True},
    ),
    frozenset({Anomaly.LOST}),
)
SCENARIO = Scenario(
    NAME,
    22,
    TITLES[NAME],
    things={word: Thing(f"kept.Consumer into Postgres, {word}", "processor", word, {}, ONE_BY_ONE) for word in WORDS},
    controls=dict.fromkeys(WORDS, PASSES_OVER),
    play=play,
    full=Volume(10_000, 50),
    smoke=Volume(1_500, 6),
    at_risk=0,
    needs=frozenset({Need.POSTGRES}),
)
