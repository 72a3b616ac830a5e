"""What a person asks a Postgres outbox: how much waits, what was refused, who holds it up; redriving and purging."""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

from kept.errors import TryAgain
from kept.outbox.backlog import WITHOUT_A_MARK
from kept.outbox.journal import RefusedRecord
from kept.outbox.postgres_backlog import CONTENT, RECORD, PostgresBacklog, entry_of
from kept.outbox.postgres_horizon import COMMITTING, Horizon
from kept.stores.sessions import Session, open_session
from kept.stores.sql_errors import told_as

COMPLETE_WITHIN = 10.0
REFUSED = f"""
    SELECT position, {RECORD}, reason, floor(extract(epoch FROM refused_at) * 1000)::bigint
    FROM kept_outbox_refused ORDER BY position LIMIT %s
"""  # noqa: S608 - the names of columns are ours
# Their positions are taken when it commits, in the order of the insertion.
REDRIVE = f"""
    WITH back AS (DELETE FROM kept_outbox_refused RETURNING position, {CONTENT})
    INSERT INTO kept_outbox ({CONTENT}) SELECT {CONTENT} FROM back ORDER BY position
"""  # noqa: S608
# Inserted while triggers were off (session_replication_role, a restore): no relay will ever see them.
WITHOUT_A_POSITION = """
    SELECT count(*) FROM kept_outbox WHERE NOT EXISTS (
        SELECT FROM kept_outbox_order WHERE kept_outbox_order.id = kept_outbox.id)
"""
# Transactions that took positions and are older than a commit takes.
HOLDING_UP = f"""
    SELECT coalesce(committing.pid::text, 'a prepared transaction')
    FROM ({COMMITTING}) AS committing LEFT JOIN pg_stat_activity AS known ON known.pid = committing.pid
    WHERE coalesce(clock_timestamp() - known.xact_start > interval '1 second', true)
"""  # noqa: S608
TURN = "(1801810036::bigint << 32) | 'kept_outbox_standing'::regclass::oid::bigint"
IS_RELAYED = f"""
    SELECT count(*) > 0 FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid::bigint << 32) | objid::bigint = {TURN}
"""  # noqa: S608


class Health(NamedTuple):
    """What may be wrong with an outbox, and whether somebody looks after it."""

    without_a_position: int
    held_up_by: list[str]
    relay_at_work: bool
    relay_error: str | None
    """What holds the relay up, or ended the last one, as far as it said."""


class InspectedBacklog(PostgresBacklog):
    """The outbox for a person: beside what a relay does, looking, sending again and throwing away."""

    def health(self) -> Health:
        def look(session: Session) -> Health:
            (lost,) = session.execute(WITHOUT_A_POSITION).fetchall()[0]
            holders = [who for (who,) in session.execute(HOLDING_UP.encode()).fetchall()]
            at_work = session.execute(IS_RELAYED.encode()).fetchall() == [(True,)]
            (word,) = session.execute("SELECT relay_error FROM kept_outbox_standing").fetchall()[0]
            return Health(lost, holders, at_work, word)

        return self._do("looking at the outbox", look)

    def refused(self, most: int) -> list[RefusedRecord]:
        """Records that were set aside, in their order."""
        rows = self._do("looking at the outbox", lambda session: session.execute(REFUSED, (most,)).fetchall())
        return [RefusedRecord(entry_of(row[:9]), row[9], row[10]) for row in rows]

    def refused_count(self) -> int:
        count = "SELECT count(*) FROM kept_outbox_refused"
        return int(self._do("looking at the outbox", lambda session: session.execute(count).fetchall()[0][0]))

    def refused_for(self) -> Counter[str]:
        """How many records of which topic were set aside."""
        count = "SELECT topic, count(*) FROM kept_outbox_refused GROUP BY topic"
        return Counter(dict(self._do("looking at the outbox", lambda session: session.execute(count).fetchall())))

    def redrive(self) -> int:
        """Put the refused records behind all that waits, in their order; how many. All or none, and each once."""
        return self._do("redriving records", lambda session: session.execute(REDRIVE.encode()).rowcount)

    def purge_refused(self) -> int:
        delete = "DELETE FROM kept_outbox_refused"
        return self._do("purging the outbox", lambda session: session.execute(delete).rowcount)

    def purge_unsent(self) -> int:
        """Remove what waits now, for good. How many records it were."""
        self.own(self.standing().generation + WITHOUT_A_MARK)
        complete, waiting = self._do("purging the outbox", _complete), self.lag().records
        if complete:
            self.trim(complete)
        return waiting - self.lag().records

    def compact(self) -> None:
        """Have the space of what was removed used again."""
        for table in ("kept_outbox", "kept_outbox_order", "kept_outbox_refused"):
            vacuum = f"VACUUM {table}".encode()
            self._do("vacuuming the outbox", lambda session, vacuum=vacuum: session.execute(vacuum))  # type: ignore[misc]


def _complete(session: Session) -> int:
    """The position up to which nothing turns up any more: what is thrown away behind a commit under way is not seen."""
    horizon, deadline = Horizon(), time.monotonic() + COMPLETE_WITHIN
    while True:
        horizon.look(session)
        if not horizon.waits:
            return horizon.known
        if time.monotonic() > deadline:
            raise TryAgain(str(horizon.held_up), way_out="end what it names, and try again")


class Turn:
    """Whose turn it is to relay an outbox, on whatever machine; it ends with this process at the latest.

    It only keeps relays from fencing each other for nothing: a turn that was lost with its connection does no harm.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._session = self._connected()

    def alone(self) -> bool:
        """Whoever stands by outlives a Postgres that is restarted: a connection that was lost is made anew."""
        try:
            if self._session.closed:
                self._session = self._connected()
            with told_as("asking whose turn it is"):
                return self._session.execute(f"SELECT pg_try_advisory_lock({TURN})".encode()).fetchall() == [(True,)]
        except TryAgain:
            self._session.close()
            return False

    def close(self) -> None:
        self._session.close()

    def _connected(self) -> Session:
        return open_session(self._dsn, "kept:outbox:turn", 5.0, 60.0)
