"""Postgres as a sink: rows by binary COPY, progress in kept_progress, in the guarantee's order.

exactly once     rows and progress in one transaction
at least once    a transaction of rows, then one of progress
at most once     a transaction of progress, then one of rows

Every transaction of progress locks its row, reads again and compares (rules 2, 3, 5): PostgresProgress.chunk. This is
partition mode; batch mode is in postgres_batches.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from kept.consumer.dead_letters import DeadLetter
from kept.errors import FixConfiguration, OutcomeUnknown
from kept.guarantees import AtLeastOnce, AtMostOnce, Guarantee
from kept.progress import Batch, BatchRecord, Progress, Range
from kept.spark.dead_letters import DeadLetterPlace, DeadLetterTable, Letters, refuse_elsewhere, stored
from kept.spark.patience import patiently
from kept.spark.position import OURS
from kept.spark.postgres_batches import PostgresBatches, PostgresStaging
from kept.spark.postgres_table import Field, Fit, fitted
from kept.spark.postgres_target import Target
from kept.spark.sinks import Assignment, Done, Rows, Written
from kept.spark.staging import Staged, at_most_once
from kept.stores import Birth, DeadLetters, Ownership, Part, PostgresProgress, Seed, Session
from kept.stores import DeadLetter as StoredLetter
from kept.stores import Sink as NotedSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("kept.spark")
# Above the time of any chunk: a sibling attempt that waits longer takes the holder for one that sleeps, and ends it.
LOCK_WITHIN = 30.0


@dataclass(frozen=True)
class PostgresSink:
    """A table of the user's Postgres; it is made when it is missing.

    With a `key`, a row whose key is there already is left out, or with `upsert` takes its place. Without one every row
    is appended. Exactly-once needs no key: progress and rows are one transaction.
    """

    dsn: str = field(repr=False)
    table: str
    key: str | Sequence[str] = ()
    upsert: bool = False
    buries_in: ClassVar[type[DeadLetterTable]] = DeadLetterTable

    def __post_init__(self) -> None:
        if self.upsert and not self.key:
            raise FixConfiguration("upsert needs a key", way_out="name the column that tells rows apart: key='id'")
        if not self.table or not all(self.table.split(".")):
            raise FixConfiguration(f"{self.table!r} is no table", way_out="name a table, or schema.table")
        try:
            conninfo_to_dict(self.dsn)
        except psycopg.ProgrammingError as error:
            raise FixConfiguration(
                f"the DSN cannot be read: {error}", way_out="write postgresql://user@host/database"
            ) from None

    def __str__(self) -> str:
        return f"table {self.table} of Postgres"

    def open(self, pipeline: str, guarantee: Guarantee, dead_letters: DeadLetterPlace | None = None) -> PostgresDriver:
        if dead_letters is not None:
            refuse_elsewhere(self, self.buries_in, dead_letters)
        return PostgresDriver(self, pipeline, guarantee, buries=dead_letters is not None)

    @property
    def noted(self) -> NotedSink:
        """As it is noted beside progress."""
        return NotedSink(self.table)

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)


class PostgresDriver:
    """The driver's part: births, ownership, the ends of ranges."""

    def __init__(self, sink: PostgresSink, pipeline: str, guarantee: Guarantee, *, buries: bool = False) -> None:
        self._sink = sink
        self._guarantee = guarantee
        self._buries = buries
        self._store = PostgresProgress(sink.dsn, pipeline, lock_within=LOCK_WITHIN, sink=sink.noted)
        self._columns: tuple[str, ...] = ()
        self._fit: Fit | None = None
        self._in_batches: PostgresBatches | None = None

    def shaped(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql.functions import expr  # noqa: PLC0415 - heavy, and only needed when a pipeline runs

        fields = [Field(each.name, each.dataType.simpleString()) for each in frame.schema if each.name not in OURS]
        fit = self.fitted(fields)
        ours = [name for name in OURS if name in frame.columns]
        return frame.select(*(expr(cast).alias(name) for name, cast in fit.casts.items()), *ours)

    def fitted(self, fields: Sequence[Field]) -> Fit:
        """How a frame of these columns goes into the table; the tables are made if they are missing."""
        fitting = _Fitting(self._sink, fields, self._guarantee)
        self._store.prepare(fitting)
        if self._buries:
            self._store.prepare(DeadLetters(self._store.pipeline))
        self._fit = fitting.fit
        self._columns = tuple(fitting.fit.casts)
        return fitting.fit

    def born(self, topic: str) -> Birth | None:
        return self._store.born(topic)

    def topics(self) -> list[str]:
        return self._store.topics()

    def seed(self, seeds: Mapping[str, Sequence[Seed]]) -> Mapping[str, Mapping[int, Progress]]:
        return patiently(lambda: self._store.seed_all(seeds))

    def take_over(self, parts: Sequence[Part]) -> Mapping[Part, Progress]:
        return patiently(lambda: self._store.succeed(parts))

    def for_tasks(self) -> PostgresTasks:
        ownership = self._store.ownership()
        pipeline, target = self._store.pipeline, self._target()
        return PostgresTasks(self._sink.dsn, pipeline, ownership, self._guarantee, target, self._buries)

    def close_ranges(self, done: Sequence[Done]) -> Mapping[Part, Progress]:
        """All in one transaction: a range is closed from where its task came to, never from below."""
        ranges = [replace(each.assignment.range, start=each.reached) for each in done]
        sources = {(each.range.topic, each.range.partition): each.source for each in (one.assignment for one in done)}

        def closed() -> Mapping[Part, Progress]:
            with self._store.chunk(ranges, sources, may_repeat=True) as chunk:
                self._store.refuse_another_sink(chunk.connection)
            return chunk.recorded

        return patiently(closed)

    def last_batch(self) -> BatchRecord | None:
        return patiently(lambda: self._batches().last())

    def staging(self) -> PostgresStaging:
        return patiently(lambda: self._batches().staging())

    def move(
        self,
        batch: Batch,
        assignments: Sequence[Assignment],
        staged: Sequence[Staged],
        letters: Sequence[DeadLetter] = (),
    ) -> Mapping[Part, Progress]:
        return self._batches().move(batch, assignments, staged, list(map(stored, letters)))

    def close(self) -> None:
        if self._in_batches is not None:
            self._in_batches.close()
            self._in_batches = None
        self._store.close()

    def _target(self) -> Target:
        return Target(self._sink.table, self._columns, self._sink.keys, self._sink.upsert, self._fit)

    def _batches(self) -> PostgresBatches:
        if self._in_batches is None:
            self._in_batches = PostgresBatches(self._store, self._sink.dsn, self._target(), self._guarantee)
        return self._in_batches


@dataclass
class _Fitting:
    """Compares the frame with the table, on the store's connection."""

    sink: PostgresSink
    fields: Sequence[Field]
    guarantee: Guarantee
    fit: Fit = field(init=False)

    def prepare(self, session: Session) -> None:
        self.fit = fitted(session, self.sink.table, self.sink.keys, self.fields, self.guarantee)


@dataclass(frozen=True)
class PostgresTasks:
    """What travels to the tasks."""

    dsn: str = field(repr=False)
    pipeline: str
    ownership: Ownership
    guarantee: Guarantee
    target: Target
    buries: bool = False

    def open(self, assignment: Assignment) -> PostgresPart:
        store = PostgresProgress(self.dsn, self.pipeline, lock_within=LOCK_WITHIN, ownership=self.ownership)
        effect = _Burying(self.target, assignment, self.pipeline) if self.buries else _Plain(self.target)
        return PostgresPart(store, effect, self.guarantee, assignment)


@dataclass(frozen=True)
class _Plain:
    """The effect of a chunk: its rows in the table. One that is refused stops the pipeline."""

    target: Target

    def apply(self, session: Session, rows: Rows) -> int:
        with self.target.unaltered(session):
            self.target.write(session, rows.table)
        return 0


@dataclass(frozen=True)
class _Burying:
    """The effect of a chunk where dead letters are kept: rows in the table, or else in kept_dead_letters.

    Rule 14: all rows by one COPY under a savepoint; refused, halves of them, until the row is found that is refused
    alone. An error that is not about a row (a connection, a deadlock, a missing table) ends the chunk; so does a table
    that was altered: it may refuse every row.
    """

    target: Target
    assignment: Assignment
    pipeline: str

    def apply(self, session: Session, rows: Rows) -> int:
        """How many rows were buried."""
        graveyard = DeadLetters(self.pipeline)
        letters = Letters((self.assignment.range.topic, self.assignment.range.partition), self.pipeline)
        good, given_up = letters.parted(rows)

        def write(connection: psycopg.Connection[Any], numbers: Sequence[int]) -> None:
            self.target.write(connection, good.some(numbers).table)

        def letter(number: int, reason: str) -> StoredLetter:
            return stored(letters.letter(good, number, reason))

        graveyard.add(session, [stored(each) for each in given_up])
        with self.target.unaltered(session):
            refused = graveyard.apply_or_bury(session, range(len(good)), write, letter)
        return len(given_up) + len(refused)


class PostgresPart:
    """Writes the chunks of one source partition."""

    def __init__(
        self, store: PostgresProgress, effect: _Plain | _Burying, guarantee: Guarantee, assignment: Assignment
    ) -> None:
        self._store = store
        self._effect = effect
        self._guarantee = guarantee
        self._part = (assignment.range.topic, assignment.range.partition)
        self._sources = {self._part: assignment.source}

    def write(self, rows: Rows, wanted: Range) -> Written:
        if isinstance(self._guarantee, AtMostOnce):
            return self._progress_first(rows, wanted)
        if isinstance(self._guarantee, AtLeastOnce):
            return self._rows_first(rows, wanted)
        return self._together(rows, wanted)

    def close(self) -> None:
        self._store.close()

    def _together(self, rows: Rows, wanted: Range) -> Written:
        with self._store.chunk([wanted], self._sources, may_repeat=True) as chunk:
            new = rows.at_or_above(chunk.drop_below[self._part])
            buried = self._effect.apply(chunk.connection, new)
        return self._written(chunk.recorded, rows, new, buried)

    def _rows_first(self, rows: Rows, wanted: Range) -> Written:
        """An upsert is done in the transaction that looks at progress, and leaves that where it is: an attempt that
        slept since its look would put old values over those that its twin has written meanwhile."""
        here = replace(wanted, end=wanted.start)
        buried = 0
        with self._store.chunk([here], self._sources, may_repeat=True) as look:
            new = rows.at_or_above(look.drop_below[self._part])
            if self._effect.target.upsert:
                buried = self._effect.apply(look.connection, new)
        if not self._effect.target.upsert:
            with self._store.apart() as session:
                buried = self._effect.apply(session, new)
        with self._store.chunk([wanted], self._sources, may_repeat=True) as chunk:
            pass
        return self._written(chunk.recorded, rows, new, buried)

    def _progress_first(self, rows: Rows, wanted: Range) -> Written:
        """Rows that fail are not tried again: the next look would find them below progress, and call them done."""
        try:
            with self._store.chunk([wanted], self._sources, may_repeat=True) as chunk:
                new = rows.at_or_above(chunk.drop_below[self._part])
        except OutcomeUnknown as error:
            log.warning("at most once: progress may have passed %d rows, unwritten then: %s", len(rows), error)
            raise
        written = self._none_written(chunk.recorded, rows, new)
        with at_most_once(len(new)):
            if self._effect.target.upsert:
                written = self._unless_gone_on(chunk.recorded, rows, new)
            else:
                with self._store.apart() as session:
                    buried = self._effect.apply(session, new)
                written = self._written(chunk.recorded, rows, new, buried)
        return written

    def _unless_gone_on(self, recorded: Mapping[Part, Progress], rows: Rows, new: Rows) -> Written:
        """Where progress stands still; a twin that went on has written values that these must not replace."""
        upto, epoch = recorded[self._part].position.next_offset, recorded[self._part].identity.leader_epoch
        here = Range(*self._part, upto, upto, epoch)
        with self._store.chunk([here], self._sources, may_repeat=True) as chunk:
            gone_on = chunk.drop_below[self._part] > upto
            buried = 0 if gone_on else self._effect.apply(chunk.connection, new)
        if gone_on:
            log.warning("at most once: %d rows below %s[%d]@%d were not written", len(new), *self._part, upto)
            return self._none_written(recorded, rows, new)
        return self._written(recorded, rows, new, buried)

    def _written(self, recorded: Mapping[Part, Progress], rows: Rows, new: Rows, buried: int) -> Written:
        reached = recorded[self._part].position.next_offset
        return Written(reached, len(new) - buried, len(rows) - len(new), buried)

    def _none_written(self, recorded: Mapping[Part, Progress], rows: Rows, new: Rows) -> Written:
        """The new rows are lost: neither written nor there before."""
        return replace(self._written(recorded, rows, new, 0), rows=0)
