"""What a person asks a Postgres outbox: how much waits, what was refused, who holds it up; and throwing away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kept.errors import TryAgain
from kept.outbox.backlog import WITHOUT_A_MARK, Lag, Standing
from kept.outbox.postgres_backlog import RECORD, SIZE, PostgresBacklog
from kept.outbox.postgres_horizon import Horizon
from kept.stores.sessions import Session, open_session
from kept.stores.sql_errors import told_as

COMPLETE_WITHIN = 10.0
WAITING = f"""
    SELECT position, {RECORD}, written_at, NULL FROM kept_outbox_order JOIN kept_outbox USING (id)
    WHERE position > (SELECT confirmed FROM kept_outbox_standing) ORDER BY position LIMIT %s
"""  # noqa: S608 - the names of columns are ours
REFUSED = f"SELECT position, {RECORD}, written_at, reason FROM kept_outbox_refused ORDER BY position LIMIT %s"  # noqa: S608
REFUSED_SIZE = f"SELECT count(*), coalesce(sum({SIZE}), 0)::bigint FROM kept_outbox_refused"  # noqa: S608
# Inserted while triggers were off (session_replication_role, a restore): no relay will ever see them.
WITHOUT_A_POSITION = """
    SELECT count(*) FROM kept_outbox WHERE NOT EXISTS (
        SELECT FROM kept_outbox_order WHERE kept_outbox_order.id = kept_outbox.id)
"""
# Positions that were taken by transactions which are older than a commit takes.
HOLDING_UP = """
    SELECT coalesce(pid::text, 'a prepared transaction') FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND objsubid = 1 AND pg_locks.granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid::bigint << 32) | objid::bigint = kept_outbox_lock()
      AND coalesce(clock_timestamp() - xact_start > interval '1 second', true)
"""


class Found(NamedTuple):
    """A record in the outbox: one that waits, or, with its reason, one that was refused."""

    position: int
    topic: str
    key: bytes | None
    value: bytes | None
    header_names: list[str]
    header_values: list[bytes | None]
    partition: int | None
    timestamp_ms: int
    tag: int
    written_at: object
    reason: str | None


class Looked(NamedTuple):
    """An outbox at one moment."""

    name: str
    identity: str
    lag: Lag
    standing: Standing
    refused: int
    refused_bytes: int
    without_a_position: int
    held_up_by: list[str]


class Looking:
    """Looks at an outbox without disturbing its relay."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.backlog = PostgresBacklog(dsn)

    def close(self) -> None:
        self.backlog.close()

    def look(self) -> Looked:
        with self._session() as session:
            refused, size = session.execute(REFUSED_SIZE).fetchall()[0]
            (lost,) = session.execute(WITHOUT_A_POSITION).fetchall()[0]
            holders = [who for (who,) in session.execute(HOLDING_UP).fetchall()]
        backlog = self.backlog
        return Looked(backlog.name, backlog.identity, backlog.lag(), backlog.standing(), refused, size, lost, holders)

    def waiting(self, most: int) -> list[Found]:
        with self._session() as session:
            return [Found(*row) for row in session.execute(WAITING, (most,)).fetchall()]

    def refused(self, most: int) -> list[Found]:
        with self._session() as session:
            return [Found(*row) for row in session.execute(REFUSED, (most,)).fetchall()]

    def throw_refused_away(self) -> int:
        with self._session() as session:
            return session.execute("DELETE FROM kept_outbox_refused").rowcount

    def throw_unsent_away(self) -> int:
        """Whatever waits now; a relay that is at work ends, fenced. How many it were."""
        self.backlog.own(self.backlog.standing().generation + WITHOUT_A_MARK)
        with self._session() as session:
            horizon, deadline = Horizon(), time.monotonic() + COMPLETE_WITHIN
            while True:  # only what is complete: a record may still turn up behind that
                horizon.look(session)
                if horizon.known:
                    break
                if horizon.held_up is None and not self.backlog.end():
                    return 0
                if time.monotonic() > deadline:
                    raise TryAgain(str(horizon.held_up), way_out="end what it names, and try again")
        gone = self.backlog.lag().records
        self.backlog.trim(horizon.known)
        return gone - self.backlog.lag().records

    @contextmanager
    def _session(self) -> Iterator[Session]:
        session = open_session(self._dsn, "kept:outbox", 5.0, 60.0)
        try:
            with told_as("looking at the outbox"):
                yield session
        finally:
            session.close()
