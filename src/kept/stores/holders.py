"""Who holds the lock that we wait for: a kept connection that sleeps is ended, anybody else is named (rule 5)."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

import psycopg

from kept.errors import TryAgain
from kept.stores.sessions import SIGN, Session, everyone_of
from kept.stores.sql_errors import reason, told

log = logging.getLogger("kept.stores")
Part = tuple[str, int]
ENDED_WITHIN_MS = 5000

# A row lock is not in pg_locks, but its holder's transaction is, and the row names that transaction. Only one that
# is older than our wait: a lock that changed hands meanwhile is a busy one, not a sleeper's.
HOLDING_ROWS = """
    SELECT DISTINCT l.pid, coalesce(a.application_name, ''), coalesce(a.state, 'prepared'), coalesce(a.query, '')
    FROM kept_progress p
    JOIN unnest(%s::text[], %s::int[]) AS wanted(topic, partition) USING (topic, partition)
    JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = p.xmax
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE p.pipeline = %s AND coalesce(a.xact_start < now() - make_interval(secs => %s), true)
"""
HOLDING_TABLE = """
    SELECT DISTINCT l.pid, coalesce(a.application_name, ''), coalesce(a.state, 'prepared'), coalesce(a.query, '')
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'relation' AND l.granted AND l.relation = 'kept_progress'::regclass
      AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """A session that stands in the way."""

    pid: int | None
    name: str
    state: str
    query: str

    def __str__(self) -> str:
        if self.pid is None:
            return "a prepared transaction (see pg_prepared_xacts)"
        return (
            f"process {self.pid} ({self.name or 'without a name'}, {self.state}): {' '.join(self.query.split())[:200]}"
        )


def holders(session: Session, pipeline: str, parts: Collection[Part], waited: float) -> list[Holder]:
    """The sessions that have held the lock of these progress rows, or of the whole table, for as long as we waited."""
    topics, partitions = [topic for topic, _ in parts], [partition for _, partition in parts]
    try:
        found = session.execute(HOLDING_TABLE).fetchall()
        if not found:  # else the next statement would wait for the same lock
            found = session.execute(HOLDING_ROWS, (topics, partitions, pipeline, waited)).fetchall()
    except psycopg.Error as error:
        raise told(error, "looking for the holder of a lock") from error
    return [Holder(*row) for row in found]


def of_pipeline(holder: Holder, pipeline: str) -> bool:
    return holder.name[:-SIGN] == everyone_of(pipeline)


def end(session: Session, holder: Holder) -> None:
    """End a session: its transaction is rolled back by the server, and whatever it still sends fails."""
    log.warning("kept ended a connection that held the lock of a progress row: %s", holder)
    try:
        row = session.execute("SELECT pg_terminate_backend(%s, %s)", (holder.pid, ENDED_WITHIN_MS)).fetchone()
    except psycopg.Error as error:
        raise _in_the_way(holder, f"and could not be ended: {reason(error)}") from error
    if row is not None and not row[0] and _lives(session, holder):
        raise _in_the_way(holder, f"and did not end within {ENDED_WITHIN_MS / 1000:.0f} s")


def refuse_to_end(holder: Holder) -> TryAgain:
    return _in_the_way(holder, "and is no session that may be ended here")


def _in_the_way(holder: Holder, words: str) -> TryAgain:
    return TryAgain(
        f"the progress rows are locked by {holder}, {words}",
        way_out=f"end that session (SELECT pg_terminate_backend({holder.pid})), then try again",
    )


def _lives(session: Session, holder: Holder) -> bool:
    statement = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND application_name = %s"
    return session.execute(statement, (holder.pid, holder.name)).fetchone() is not None
