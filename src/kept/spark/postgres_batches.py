"""Batch mode in Postgres: rows put aside in a table of the driver's own, then moved with the batch's identity.

exactly once     rows, the batch's record and progress in one transaction
at least once    a transaction of rows, then one of record and progress
at most once     a transaction of record and progress, then one of rows

The staging table bears the driver's name, so that nobody else's rows are in it. It is a logged table: one that a crash
of the server empties would be counted as lost every time. It is emptied after each batch, and dropped at the end; what
a killed driver left is dropped by the next one, once it has taken over: the one before can move nothing any more.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
from psycopg import errors as pg
from psycopg import sql

from kept.errors import Fenced, KeptError
from kept.guarantees import AtLeastOnce, AtMostOnce, Guarantee
from kept.progress import Batch, BatchRecord, Progress, Range, Source, Stop, Verdict, check_move, staging_is_whole
from kept.spark.postgres_table import identifier
from kept.spark.postgres_target import NUMBER, Target
from kept.spark.sinks import Assignment
from kept.spark.staging import Staged, StagingLost, at_most_once, tell_lost
from kept.stores import DeadLetter, DeadLetters, OpenChunk, Part, PostgresProgress, Session
from kept.stores.sessions import open_session, session_name, transaction
from kept.stores.tables import make_missing

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("kept.spark")
SET = "kept_set"
PREFIX = "kept_staging_"
TASK_BITS = 40
"""So many rows a task may have before their numbers meet those of the next one."""
STAGED_WITHIN = 30.0
BRIEFLY = "SET LOCAL lock_timeout = '500ms'"  # a zombie's COPY may hold the staging table: it is not waited for
BATCHES = {
    "kept_batches": """
        CREATE TABLE IF NOT EXISTS kept_batches (
            pipeline text PRIMARY KEY,
            query_id text NOT NULL,
            batch_id bigint NOT NULL,
            digest text NOT NULL,
            stateful boolean NOT NULL,
            updated_at timestamptz NOT NULL DEFAULT now())
    """
}
LAST = "SELECT query_id, batch_id, digest, stateful FROM kept_batches WHERE pipeline = %s"
RECORD = """
    INSERT INTO kept_batches (pipeline, query_id, batch_id, digest, stateful) VALUES (%s, %s, %s, %s, %s)
    ON CONFLICT (pipeline) DO UPDATE SET query_id = excluded.query_id, batch_id = excluded.batch_id,
        digest = excluded.digest, stateful = excluded.stateful, updated_at = now()
"""
MAKE = "CREATE TABLE IF NOT EXISTS {staging} AS SELECT {columns} FROM {table} WITH NO DATA"
MARK = """
    ALTER TABLE {staging} ADD IF NOT EXISTS kept_set uuid NOT NULL, ADD IF NOT EXISTS kept_number bigint NOT NULL
"""
COUNTED = "SELECT kept_set::text, count(*) FROM {staging} GROUP BY kept_set"
LEFT_BEHIND = """
    SELECT s.relname FROM pg_class s JOIN pg_class t USING (relnamespace)
    WHERE t.oid = %s::regclass AND s.relkind = 'r' AND starts_with(s.relname, %s) AND s.relname <> %s
"""


class PostgresBatches:
    """The driver's part of batch mode, on the connection of its progress."""

    def __init__(self, store: PostgresProgress, dsn: str, target: Target, guarantee: Guarantee) -> None:
        self._store = store
        self._dsn = dsn
        self._target = target
        self._guarantee = guarantee
        self._staging: Target | None = None
        store.prepare(_Tables())

    def last(self) -> BatchRecord | None:
        """The last batch that is recorded."""
        with self._store.apart() as session:
            return _last(session, self._store.pipeline)

    def staging(self) -> PostgresStaging:
        """What tasks need to put rows aside; to be asked after the take-over."""
        if self._staging is None:
            name = sibling(self._target.table, f"{_prefix(self._store.pipeline)}{UUID(self._store.owner).hex}")
            staging = Target(name, (*self._target.columns, SET, NUMBER))
            with self._store.owned() as session:
                self._sweep_others(session, name)
                columns = sql.SQL(", ").join(map(sql.Identifier, self._target.columns))
                parts = {"staging": identifier(name), "table": identifier(self._target.table), "columns": columns}
                with self._target.unaltered(session):
                    session.execute(sql.SQL(MAKE).format(**parts))
                session.execute(sql.SQL(MARK).format(**parts))
            self._staging = staging
        return PostgresStaging(self._dsn, session_name(self._store.pipeline, self._store.owner), self._staging)

    def move(
        self,
        batch: Batch,
        assignments: Sequence[Assignment],
        staged: Sequence[Staged],
        letters: Sequence[DeadLetter] = (),
    ) -> Mapping[Part, Progress]:
        """The staged rows into the table, letters, the batch's record and progress, in the guarantee's order.

        To be called again after an outcome that is not known: a batch that is recorded moves nothing.
        """
        attempt = _Attempt(batch, assignments)
        if isinstance(self._guarantee, AtMostOnce):
            if self._record(attempt):
                with at_most_once(sum(each.rows for each in staged)):
                    self._take_apart(staged, letters)
            else:
                tell_lost(batch, staged)
        elif isinstance(self._guarantee, AtLeastOnce):
            self._take_unless_recorded(attempt, staged, letters)
            self._record(attempt)
        else:
            self._record(attempt, staged, letters)
        self._best_effort("TRUNCATE {}", self._own().table)  # an abandoned attempt's rows are of no use, either
        return attempt.recorded

    def close(self) -> None:
        """Leave no table behind."""
        if self._staging is not None:
            self._best_effort("DROP TABLE IF EXISTS {}", self._staging.table)

    def _record(self, attempt: _Attempt, staged: Sequence[Staged] = (), letters: Sequence[DeadLetter] = ()) -> bool:
        """The batch's record and progress, with what is to be moved if anything is; False: it was recorded before."""
        batch, pipeline = attempt.batch, self._store.pipeline
        with self._store.chunk(attempt.ranges, attempt.sources, may_repeat=True) as chunk:
            self._store.refuse_another_sink(chunk.connection)
            new = self._is_new(chunk, batch)
            if new:
                self._take(chunk.connection, staged, letters)
                record = batch.record
                values = (pipeline, record.query_id, record.batch_id, record.digest, record.stateful)
                chunk.connection.execute(RECORD, values)
        attempt.recorded = chunk.recorded
        return new

    def _take_unless_recorded(self, attempt: _Attempt, staged: Sequence[Staged], letters: Sequence[DeadLetter]) -> None:
        """At least once acts before it records; in the transaction that has looked whether it still may, and must.

        Nothing is recorded here. A driver that slept since its look would put old values over its successor's.
        """
        here = [replace(each, end=each.start) for each in attempt.ranges]
        with self._store.chunk(here, attempt.sources, may_repeat=True) as chunk:
            if self._is_new(chunk, attempt.batch):
                self._take(chunk.connection, staged, letters)

    def _is_new(self, chunk: OpenChunk, batch: Batch) -> bool:
        """Whether it is to be moved, from where progress stands under the lock; False: it was, by an earlier try."""
        verdict = check_move(batch, _last(chunk.connection, self._store.pipeline), chunk.drop_below)
        if isinstance(verdict, Stop):
            raise verdict.error()
        return verdict is Verdict.WRITE

    def _take_apart(self, staged: Sequence[Staged], letters: Sequence[DeadLetter]) -> None:
        """At most once: after its record, and only by who is still the owner."""
        with self._store.owned() as session:
            self._take(session, staged, letters)

    def _take(self, session: Session, staged: Sequence[Staged], letters: Sequence[DeadLetter]) -> None:
        """Rule 9: every set is there, whole, or nothing is moved."""
        DeadLetters(self._store.pipeline).add(session, letters)
        promised = {each.name: each.rows for each in staged}
        if not promised:
            return
        staging = identifier(self._own().table)
        found: dict[str, int] = dict(session.execute(sql.SQL(COUNTED).format(staging=staging)).fetchall())
        if not staging_is_whole(promised, found):
            there = sum(found.get(name, 0) for name in promised)
            raise StagingLost(
                f"{sum(promised.values())} rows were put aside, and {there} are there",
                way_out="start it again: nothing was moved, and the batch is computed again",
            )
        names = [UUID(name) for name in promised]
        which = sql.SQL("kept_set = ANY({})").format(sql.Literal(names))
        with self._target.unaltered(session):
            self._target.take(session, staging, which)

    def _own(self) -> Target:
        if self._staging is None:
            raise TypeError("no rows were put aside")
        return self._staging

    def _sweep_others(self, session: Session, own: str) -> None:
        """Rule 9: only by the owner, while it is that; a driver that was succeeded would sweep a living one's rows."""
        table = identifier(self._target.table).as_string(session)
        arguments = (table, _prefix(self._store.pipeline), own.rpartition(".")[2])
        for (name,) in session.execute(LEFT_BEHIND, arguments).fetchall():
            log.info("dropping %s, which an earlier driver left behind", name)
            drop = sql.SQL("DROP TABLE IF EXISTS {}").format(identifier(sibling(self._target.table, name)))
            with suppress(psycopg.Error), session.transaction():
                session.execute(BRIEFLY)
                session.execute(drop)
        session.settle_settings()

    def _best_effort(self, statement: str, table: str) -> None:
        """What cannot be done now is done next time: no row of it counts."""
        with suppress(KeptError), self._store.apart() as session:
            session.execute(BRIEFLY)
            session.execute(sql.SQL(statement).format(identifier(table)))


@dataclass
class _Attempt:
    """One try at moving a batch."""

    batch: Batch
    assignments: Sequence[Assignment]
    recorded: Mapping[Part, Progress] = field(default_factory=dict)

    @property
    def ranges(self) -> list[Range]:
        return [each.range for each in self.assignments]

    @property
    def sources(self) -> dict[Part, Source]:
        return {(each.range.topic, each.range.partition): each.source for each in self.assignments}


class _Tables:
    """The table of batch records, made on the store's connection."""

    def prepare(self, session: Session) -> None:
        make_missing(session, BATCHES)


@dataclass(frozen=True)
class PostgresStaging:
    """What travels to the tasks."""

    dsn: str = field(repr=False)
    session_name: str
    table: Target

    def open(self, task: int) -> PostgresStageWriter:
        return PostgresStageWriter(self, task)


class PostgresStageWriter:
    """Puts the rows of one task aside, each set in a transaction of its own."""

    def __init__(self, staging: PostgresStaging, task: int) -> None:
        self._table = staging.table
        self._task = task
        self._session = open_session(staging.dsn, staging.session_name, STAGED_WITHIN, STAGED_WITHIN)

    def write(self, name: str, first: int, rows: pa.Table) -> None:
        import numpy as np  # noqa: PLC0415 - in a worker of Spark
        import pyarrow as pa  # noqa: PLC0415

        start = (self._task << TASK_BITS) + first
        marked = rows.append_column(SET, pa.array([UUID(name).bytes] * rows.num_rows, pa.binary())).append_column(
            NUMBER, pa.array(np.arange(start, start + rows.num_rows, dtype=np.int64))
        )
        with transaction(self._session, "putting rows aside"):
            try:
                self._table.write(self._session, marked)
            except pg.UndefinedTable as error:
                raise Fenced(
                    f"{self._table.table} is gone: another driver has taken over, and dropped it",
                    way_out="nothing to repair: the newer driver goes on; end this one",
                ) from error

    def close(self) -> None:
        self._session.close()


def sibling(table: str, name: str) -> str:
    """A table of that name in the same schema."""
    schema, dot, _ = table.rpartition(".")
    return f"{schema}{dot}{name}"


def _prefix(pipeline: str) -> str:
    """By this the staging tables of a pipeline are found; a name may be longer than Postgres allows."""
    return f"{PREFIX}{hashlib.sha256(pipeline.encode()).hexdigest()[:12]}_"


def _last(session: Session, pipeline: str) -> BatchRecord | None:
    row = session.execute(LAST, (pipeline,)).fetchone()
    return None if row is None else BatchRecord(*row)
