"""The audit: a reader that has nothing to do with the thing under test writes down all that it finds."""

from __future__ import annotations

import psycopg
from psycopg.sql import SQL, Identifier

from kept.errors import TryAgain
from kept.verify.history import Found, Read
from kept.verify.trials.arena import Arena
from kept.verify.trials.plain_reading import everything_in
from kept.verify.workload import payload_of


def audit_topic(arena: Arena, topic: str, *, committed: bool = True) -> None:
    """Every record of a topic, with its place and the time at which it was appended."""
    recorder = arena.recorder
    try:
        found = []
        for record in everything_in(arena.cluster.bootstrap, topic, committed=committed):
            payload = payload_of(record.value)
            found.append(Found(payload.value, topic, record.partition, record.offset, record.at, payload.transaction))
        recorder.write_all(found)
        recorder.write(Read(topic, recorder.now(), True))
    except TryAgain as error:
        recorder.write(Read(topic, recorder.now(), False, error.what))


def audit_table(arena: Arena, dsn: str, table: str) -> None:
    """Every row of a table of effects, in the order of its ids."""
    recorder = arena.recorder
    question = SQL("SELECT id, message, extract(epoch FROM at)::float8 FROM {} ORDER BY id").format(Identifier(table))
    try:
        with psycopg.connect(dsn) as connection:
            rows = connection.execute(question).fetchall()
        recorder.write_all(Found(str(message), table, 0, int(number), float(at)) for number, message, at in rows)
        recorder.write(Read(table, recorder.now(), True))
    except psycopg.Error as error:
        recorder.write(Read(table, recorder.now(), False, f"the effects cannot be read: {error}"))
