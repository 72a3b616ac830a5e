"""Connections to Postgres that keep their promises: durable commits, bounded waits, a name that says whose they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import psycopg
from psycopg.abc import Params, Query
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import Row, TupleRow

from kept.errors import FixConfiguration, WeakensGuarantee
from kept.stores.sql_errors import told, told_connecting

IN_TRANSACTION, NO_PIPELINE = TransactionStatus.INTRANS, PipelineStatus.OFF
SIGN = 8  # characters of the owner at the end of an application name
LONGEST_NAME = 63 - len("kept::") - SIGN
# A peer that vanished is noticed within half a minute, not after the two hours that TCP would take.
PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
# What a handler may have changed on the connection is set back before COMMIT: the commit is on disk before it is
# reported, waits are bounded, and the names of our tables mean our tables.
SETTINGS = """
    SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS wanted(name, value)
"""
FOUND = "SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('search_path')"


class SessionCursor(psycopg.Cursor[Row]):
    """A cursor whose executemany leaves the server's idle clock running."""

    def executemany(self, query: Query, params_seq: Iterable[Params], *, returning: bool = False) -> None:
        super().executemany(query, params_seq, returning=returning)
        if isinstance(self.connection, Session):
            self.connection.start_idle_clock()


class Session(psycopg.Connection[TupleRow]):
    """A connection that does not let a handler end the transaction which also carries progress."""

    guarded = False
    settings: Mapping[str, str] = {}

    def settle_settings(self) -> None:
        """Give every setting that a promise rests on the value it must have."""
        self.execute(SETTINGS, (list(self.settings), list(self.settings.values())))

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        with super().pipeline() as one:
            yield one
        self.start_idle_clock()

    def start_idle_clock(self) -> None:
        """Have idle_in_transaction_session_timeout count from now.

        psycopg ends a pipeline (and executemany) with a Flush. The server takes it for the next command, stops its
        clock, and does not start it again until another statement ends: a sleeper would hold its locks for ever.
        """
        if (self.pgconn.transaction_status, self.pgconn.pipeline_status) == (IN_TRANSACTION, NO_PIPELINE):
            self.execute("")

    def commit(self) -> None:
        self._refuse("commit")
        super().commit()

    def rollback(self) -> None:
        self._refuse("rollback")
        super().rollback()

    def _refuse(self, move: str) -> None:
        if self.guarded:
            raise FixConfiguration(
                f"{move}() inside a chunk would part the effect from its progress",
                way_out="leave the block: it commits; raise to roll back; connection.transaction() makes a savepoint",
            )


def open_session(dsn: str, name: str, lock_within: float, idle_within: float) -> Session:
    """Connect, with the settings of rule 5; a server that may forget what it committed is refused."""
    try:
        said = conninfo_to_dict(dsn)
        patience = {setting: value for setting, value in PATIENCE.items() if setting not in said}
        session = Session.connect(make_conninfo(dsn, application_name=name, **patience), autocommit=True)
    except psycopg.Error as error:
        raise told_connecting(error) from error
    try:
        fsync, durability, search_path = session.execute(FOUND).fetchall()[0]
        _refuse_forgetful(fsync)
        session.cursor_factory = SessionCursor
        session.settings = {
            "client_encoding": "UTF8",
            "lock_timeout": _milliseconds(lock_within),
            "idle_in_transaction_session_timeout": _milliseconds(idle_within),
            "synchronous_commit": "remote_apply" if durability == "remote_apply" else "on",
            "search_path": search_path,
        }
        session.settle_settings()
    except BaseException as error:
        session.close()
        if isinstance(error, psycopg.Error):
            raise told(error, "setting up a connection") from error
        raise
    return session


@contextmanager
def transaction(session: Session, doing: str) -> Iterator[None]:
    """A transaction that may be repeated whole: whatever ends it, a lost answer too, the same call may follow."""
    try:
        session.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        yield
        session.execute("COMMIT")
    except BaseException as error:
        roll_back(session)
        if isinstance(error, psycopg.Error):
            raise told(error, doing) from error
        raise


def roll_back(session: Session) -> None:
    """Whatever state it is in: out of the transaction, or closed, so that the server ends it."""
    session.guarded = False
    try:
        session.execute("ROLLBACK")
    except (psycopg.Error, RuntimeError):
        with suppress(psycopg.Error):
            session.close()


def session_name(pipeline: str, owner: str) -> str:
    """The application name of one owner's connections; `everyone_of` finds those of all owners by it."""
    return f"{everyone_of(pipeline)}{owner[:SIGN]}"


def everyone_of(pipeline: str) -> str:
    """What a pipeline's application names have before the owner; Postgres would cut or bend what does not fit."""
    if len(pipeline) > LONGEST_NAME or not (pipeline.isascii() and pipeline.isprintable()):
        pipeline = hashlib.sha256(pipeline.encode()).hexdigest()[: LONGEST_NAME - 2]
    return f"kept:{pipeline}:"


def _refuse_forgetful(fsync: str) -> None:
    if fsync == "off":
        raise WeakensGuarantee(
            "fsync",
            "off",
            "every guarantee",
            "a crash of the server may lose what it committed, or damage the database",
            way_out="set fsync = on in postgresql.conf",
        )


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
