"""The Postgres outbox as the relay sees it: records in commit order, and how far the relay came."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from kept.errors import Fenced, FixConfiguration, KeptError, SourceChanged
from kept.outbox.backlog import Entry, Lag, Standing
from kept.outbox.postgres_horizon import Horizon, end_of
from kept.outbox.postgres_schema import find_outbox
from kept.stores.sessions import Session, open_session, session_name, transaction
from kept.stores.sql_errors import told

logger = logging.getLogger("kept")
Answer = TypeVar("Answer")
AT_ONCE = 5_000  # rows deleted by one statement: no long transaction, no burst of log
BYTES_AT_ONCE = 16_000_000
EPOCH_BITS = 40
CONTENT = "topic, key, value, header_names, header_values, partition, timestamp_ms"
RECORD = f"{CONTENT}, tag"
SIZE = "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)"  # of what is stored apart, too: not fetched
# The table is filled and emptied all the time, and what the planner believes of it is always out of date.
BY_INDEX = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"
READ = f"""
    SELECT position, {RECORD} FROM (
        SELECT *, sum({SIZE}) OVER (ORDER BY position) - ({SIZE}) AS before
        FROM (SELECT position, r.* FROM kept_outbox_order JOIN kept_outbox AS r USING (id)
              WHERE position > %s AND position <= %s ORDER BY position LIMIT %s) AS page) AS found
    WHERE before < %s ORDER BY position
"""  # noqa: S608 - the names of columns are ours
STANDING = "SELECT generation, confirmed, attempted, owner, confirmed_tag FROM kept_outbox_standing"
OWN = """
    UPDATE kept_outbox_standing SET generation = %(generation)s, owner = %(owner)s, updated_at = now()
    WHERE generation < %(generation)s OR (generation = %(generation)s AND owner = %(owner)s)
"""
OURS = "generation = %(generation)s AND owner = %(owner)s AND confirmed >= %(confirmed)s AND attempted >= %(attempted)s"
ATTEMPT = f"""
    UPDATE kept_outbox_standing SET attempted = greatest(confirmed, %(up_to)s), updated_at = now() WHERE {OURS}
"""  # noqa: S608
TAG = """
    SELECT tag FROM kept_outbox_order JOIN kept_outbox USING (id) WHERE position = %(up_to)s
    UNION ALL SELECT tag FROM kept_outbox_refused WHERE position = %(up_to)s
"""
CONFIRM = f"""
    UPDATE kept_outbox_standing
    SET confirmed = greatest(confirmed, %(up_to)s), attempted = greatest(attempted, %(up_to)s), updated_at = now(),
        confirmed_tag = CASE WHEN confirmed < %(up_to)s THEN coalesce(({TAG} LIMIT 1), 0) ELSE confirmed_tag END
    WHERE {OURS}
"""  # noqa: S608
FORGET = """
    WITH done AS (
        DELETE FROM kept_outbox_order WHERE position IN (
            SELECT position FROM kept_outbox_order WHERE position <= %s ORDER BY position LIMIT %s) RETURNING id)
    DELETE FROM kept_outbox USING done WHERE kept_outbox.id = done.id
"""
SET_ASIDE = f"""
    WITH place AS (DELETE FROM kept_outbox_order WHERE position = %s RETURNING position, id),
         record AS (DELETE FROM kept_outbox USING place WHERE kept_outbox.id = place.id
                    RETURNING place.position, {RECORD}, written_at)
    INSERT INTO kept_outbox_refused (position, {RECORD}, written_at, reason)
    SELECT record.*, %s FROM record ON CONFLICT DO NOTHING
"""  # noqa: S608
LAG = f"""
    SELECT count(*), coalesce(sum({SIZE}), 0)::bigint,
           coalesce(extract(epoch FROM clock_timestamp() - min(written_at)), 0)::float8
    FROM kept_outbox_order JOIN kept_outbox USING (id)
    WHERE position > (SELECT confirmed FROM kept_outbox_standing)
"""  # noqa: S608


class PostgresBacklog:
    """What the relay reads, from any thread. A connection that is lost is made anew by the next call."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.name = name_of(dsn)
        self._owner = str(uuid.uuid4())
        self._session_name = session_name("outbox", self._owner)
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._horizon = Horizon()
        self._generation = self._trimmed = 0
        self._noted = Standing(0, 0, 0)  # surely recorded: finding less there means that the database went back
        self._identity: str | None = None
        self._do("looking for the outbox", lambda _: None)

    @property
    def identity(self) -> str:
        return str(self._identity)

    def standing(self) -> Standing:
        return self._do("reading how far the relay came", lambda session: Standing(*_standing(session)[:3]))

    def own(self, generation: int) -> None:
        def take_over(session: Session) -> None:
            ours = {"generation": generation, "owner": self._owner}
            if session.execute(OWN, ours).rowcount != 1:
                raise _succeeded(_standing(session)[0], generation)
            self._generation, self._noted = generation, Standing(*_standing(session)[:3])

        self._do("taking the outbox over", take_over)

    def knows(self, position: int, tag: int) -> bool:
        return self._do("comparing the outbox with Kafka", lambda session: _knows(session, position, tag))

    def end(self) -> int:
        return self._do("reading the end of the outbox", end_of)

    def read(self, after: int, most: int) -> list[Entry]:
        def rows(session: Session) -> list[Entry]:
            if found := self._fetch(session, after, most):
                return found  # more of what was known to be complete
            self._horizon.look(session)
            return self._fetch(session, after, most)

        return self._do("reading the outbox", rows)

    @property
    def held_up(self) -> str | None:
        """Why committed records cannot be read for now, if so."""
        return self._horizon.held_up

    def attempt(self, up_to: int) -> None:
        self._do("noting what is sent", lambda session: self._note(session, ATTEMPT, up_to))

    def trim(self, up_to: int) -> None:
        def confirm_and_forget(session: Session) -> None:
            self._note(session, CONFIRM, up_to)
            while session.execute(FORGET, (up_to, AT_ONCE)).rowcount == AT_ONCE:
                pass
            self._trimmed = up_to

        if up_to > self._trimmed:
            self._do("trimming the outbox", confirm_and_forget)

    def refuse(self, entry: Entry, reason: str) -> None:
        def set_aside(session: Session) -> None:
            with transaction(session, "setting a record aside"):
                self._note(session, ATTEMPT, self._noted.attempted)  # still ours? locked until the end
                session.execute(SET_ASIDE, (entry.position, reason.replace("\0", "\\0")))

        self._do("setting a record aside", set_aside)

    def lag(self) -> Lag:
        return self._do("measuring the lag", lambda session: Lag(*session.execute(LAG).fetchall()[0]))

    def leave_word(self, error: str | None) -> None:
        word = None if error is None else error.replace("\0", "\\0")
        update = "UPDATE kept_outbox_standing SET relay_error = %s WHERE relay_error IS DISTINCT FROM %s"
        self._do("leaving word", lambda session: session.execute(update, (word, word)))

    def close(self) -> None:
        with self._lock:
            if self._session is not None:
                self._session.close()

    def _fetch(self, session: Session, after: int, most: int) -> list[Entry]:
        if self._horizon.known <= after:
            return []
        rows = session.execute(READ, (after, self._horizon.known, most, BYTES_AT_ONCE)).fetchall()
        return [entry_of(row) for row in rows]

    def _note(self, session: Session, statement: str, up_to: int) -> None:
        """Move the standing, if it is ours and not older than what this process wrote into it."""
        _, confirmed, attempted = self._noted
        if statement is CONFIRM:
            then = Standing(self._generation, max(confirmed, up_to), max(attempted, up_to))
        else:
            then = Standing(self._generation, confirmed, max(confirmed, up_to))
        # Only what is surely there is asked for: the answer may be lost, and the statement come again.
        surely = {"confirmed": confirmed, "attempted": min(attempted, then.attempted)}
        self._noted = Standing(self._generation, confirmed, surely["attempted"])
        ours = {"up_to": up_to, "generation": self._generation, "owner": self._owner, **surely}
        if session.execute(statement.encode(), ours).rowcount != 1:
            raise _not_ours(_standing(session), self._owner, self._generation, self._noted)
        self._noted = then

    def _do(self, doing: str, work: Callable[[Session], Answer]) -> Answer:
        """Each piece of work may be repeated whole, also after an answer that was lost."""
        with self._lock:
            session = self._connected()
            try:
                return work(session)
            except psycopg.Error as error:
                if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
                    session.close()  # the server said nothing: what this connection waits for may never come
                raise told(error, doing) from error

    def _connected(self) -> Session:
        if self._session is not None and not self._session.closed:
            return self._session
        session = open_session(self._dsn, self._session_name, 5.0, 60.0)
        try:
            self._recognise(session)
            session.execute(BY_INDEX)
        except BaseException as error:
            session.close()
            if isinstance(error, psycopg.Error):
                raise told(error, "looking for the outbox") from error
            raise
        self._session, self._horizon = session, Horizon()
        return session

    def _recognise(self, session: Session) -> None:
        if session.execute("SELECT pg_is_in_recovery()").fetchall()[0][0]:
            raise FixConfiguration(
                f"{self.name} is a standby: what is under way on its primary cannot be seen there",
                way_out="name the primary: every host in the DSN, with target_session_attrs=read-write",
            )
        identity = find_outbox(session)
        if self._identity not in (None, identity):
            raise SourceChanged(
                f"{self.name} holds outbox {identity} now, and held {self._identity} before",
                way_out="find out which database this is; then start the relay again",
            )
        self._identity = identity


def name_of(dsn: str) -> str:
    """What a person calls this database; nothing of it is secret."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error as error:
        raise FixConfiguration("the DSN cannot be read", way_out="postgresql://USER@HOST:PORT/DATABASE") from error
    return f"postgresql://{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


def entry_of(row: TupleRow) -> Entry:
    position, topic, key, value, names, contents, partition, timestamp, tag = row
    return Entry(position, topic, key, value, list(zip(names, contents, strict=True)), partition, timestamp, tag)


def _standing(session: Session) -> tuple[int, int, int, str, int]:
    rows = session.execute(STANDING).fetchall()
    if len(rows) != 1:
        raise SourceChanged(
            f"kept_outbox_standing holds {len(rows)} rows, and not one", way_out="restore it, together with the outbox"
        )
    generation, confirmed, attempted, owner, tag = rows[0]
    return generation, confirmed, attempted, owner, tag


def _knows(session: Session, position: int, tag: int) -> bool:
    found = [there for (there,) in session.execute(TAG, {"up_to": position}).fetchall()]
    if found:
        return tag in found
    _, confirmed, _, _, confirmed_tag = _standing(session)
    if position <= confirmed:
        return position == 0 or (position == confirmed and tag == confirmed_tag)
    now_in = end_of(session) >> EPOCH_BITS
    if position >> EPOCH_BITS >= now_in:
        return False
    logger.warning(
        "the record at position %d was relayed, but this database has lost it: it was promoted, or restored, without "
        "the last commits. What is written since has higher positions: nothing of it is skipped",
        position,
    )
    return True


def _succeeded(recorded: int, generation: int) -> Fenced:
    return Fenced(
        f"another relay took this outbox over: it is generation {recorded}, this is {generation}",
        way_out="nothing to repair: the newer one goes on; end this one",
    )


def _not_ours(found: tuple[int, int, int, str, int], owner: str, generation: int, noted: Standing) -> KeptError:
    recorded, confirmed, attempted, recorded_owner, _ = found
    if recorded > generation or (recorded == generation and recorded_owner != owner):
        return _succeeded(recorded, generation)
    return SourceChanged(
        f"the outbox went back: it says that records up to {confirmed} are relayed and up to {attempted} were tried, "
        f"and this relay had noted {noted.confirmed} and {noted.attempted}: a standby was promoted, or a backup used",
        way_out="start the relay again: it compares the outbox with Kafka, and goes on if nothing can be skipped",
    )
