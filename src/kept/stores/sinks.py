"""Which sink the progress of a pipeline belongs to: noted with the first take-over, compared with every later one.

Progress says what is done, and done means that it is in this sink. Another one under the same name would begin where
this one stands, and never get what was read before.

A table is known by its oid: renamed it is the same, dropped and made again it is not. A database that was restored from
a dump has other oids everywhere, that of kept_progress among them: then the name has to do.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from kept.errors import SinkChanged
from kept.progress import Stop
from kept.stores.sessions import Session

LOOK = """
    WITH said AS (SELECT parse_ident(%(table)s) AS parts, to_regclass(%(table)s) AS found)
    SELECT coalesce(n.nspname, parts[cardinality(parts) - 1], current_schema()) || '.'
           || coalesce(c.relname, parts[cardinality(parts)]), c.oid::bigint, 'kept_progress'::regclass::oid::bigint
    FROM said LEFT JOIN pg_class c ON c.oid = found LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
"""
BESIDE = "SELECT %s::text, NULL::bigint, 'kept_progress'::regclass::oid::bigint"
FIND = "SELECT sink, table_oid, beside FROM kept_sinks WHERE pipeline = %s"
NOTE = """
    INSERT INTO kept_sinks (pipeline, sink, table_oid, beside) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
NOTE_ANEW = "UPDATE kept_sinks SET sink = %s, table_oid = %s, beside = %s, noted_at = now() WHERE pipeline = %s"
FORGET = "DELETE FROM kept_sinks WHERE pipeline = %s"
FORGET_WITHOUT_PROGRESS = (
    f"{FORGET} AND NOT EXISTS (SELECT FROM kept_progress p WHERE p.pipeline = kept_sinks.pipeline)"
)


@dataclass(frozen=True, slots=True)
class Sink:
    """Where effects go: a table, or schema.table; or something that only has a name."""

    name: str
    is_table: bool = True


OWN_EFFECTS = Sink("effects of one's own", is_table=False)


@dataclass(frozen=True, slots=True)
class Seen:
    """A sink as it is, or was when it was noted.

    `table` is its oid: None for a table that is not there, and for what is none. `beside` is the oid of kept_progress.
    """

    name: str
    table: int | None
    beside: int


def look(session: Session, sink: Sink) -> Seen:
    if sink.is_table:
        table = sql.Identifier(*sink.name.split(".")).as_string(session)
        return Seen(*session.execute(LOOK, {"table": table}).fetchall()[0])
    return Seen(*session.execute(BESIDE, (sink.name,)).fetchall()[0])


def noted(session: Session, pipeline: str) -> Seen | None:
    row = session.execute(FIND, (pipeline,)).fetchone()
    return None if row is None else Seen(*row)


def refuse_another(session: Session, pipeline: str, sink: Sink) -> None:
    """Nothing is noted here: a start that is refused for something else may still name another table."""
    known = noted(session, pipeline)
    stop = None if known is None else another(pipeline, known, look(session, sink))
    if stop is not None:
        raise stop.error()


def at_birth(session: Session, pipeline: str, sink: Sink) -> None:
    """Before progress is seeded: a note that was left behind by progress that a person has deleted says nothing."""
    session.execute(FORGET_WITHOUT_PROGRESS, (pipeline,))
    refuse_another(session, pipeline, sink)


def note(session: Session, pipeline: str, sink: Sink) -> None:
    """In the transaction that takes over, before the first effect; progress of an earlier version adopts its sink."""
    now = look(session, sink)
    session.execute(NOTE, (pipeline, now.name, now.table, now.beside))
    session.execute(f"{FIND} FOR UPDATE", (pipeline,))
    refuse_another(session, pipeline, sink)
    session.execute(NOTE_ANEW, (now.name, now.table, now.beside, pipeline))


def choose(session: Session, pipeline: str, sink: Sink) -> None:
    """A person says which one it is from now on."""
    session.execute(FORGET, (pipeline,))
    note(session, pipeline, sink)


def another(pipeline: str, then: Seen, now: Seen) -> Stop | None:
    """Whether the sink is another one than progress was recorded with."""
    by_oid = then.table is not None and then.beside == now.beside
    if then.table == now.table if by_oid else then.name == now.name:
        return None
    if then.name != now.name:
        what = f"progress of {pipeline!r} says what is in {then.name}; {now.name} would never get what was read before"
    elif now.table is None:
        what = f"{now.name} is gone, and progress of {pipeline!r} says what was in it: a new one would never get that"
    else:
        what = (
            f"{now.name} was dropped and made anew, or another table was given its name, since progress of "
            f"{pipeline!r} was recorded: what was read before would be missing in it"
        )
    return Stop(SinkChanged, what, _way_out(pipeline, then, now))


def _way_out(pipeline: str, then: Seen, now: Seen) -> str:
    own = "" if then.name == now.name else f"give this one a name of its own, or go back to {then.name}; or "
    if now.name == OWN_EFFECTS.name:
        forget = f"DELETE FROM kept_sinks WHERE pipeline = '{pipeline}'"  # noqa: S608 - for a person
        return f"{own}if it is meant to go on from there: `{forget}`"
    return f"{own}choose where {now.name} goes on: `kept pipelines repair {pipeline} --into {now.name}`"
