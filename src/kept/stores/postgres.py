"""The progress of one pipeline in the user's Postgres, moved in the same transaction as the effects.

with PostgresProgress(dsn, "ledger") as store:
    store.seed("payments", seeds)                       # once in the pipeline's life; later calls change nothing
    progress = store.take_over("payments", [0, 1])      # when partitions are assigned to this process
    with store.chunk(ranges, sources) as chunk:         # locks, reads again, checks
        chunk.connection.execute("INSERT ...")          # the effects
                                                        # leaving: progress moves, COMMIT

What each move closes (the numbers are those of docs/rules.md):
- seed (2): every partition has a row from birth on, so a lock always locks something (5) and missing means lost.
- sink: the first take-over notes where effects go; progress is never taken for that of another sink.
- take_over (5, 7): the generation rises; whoever owned the partition before is Fenced at its next chunk. A sleeper that
  holds the lock is ended, and its COMMIT fails.
- chunk (2, 3, 5): EVERY transaction locks, reads again and asks `kept.progress.check` for the source and for gaps.
- leaving a chunk (5, 14): deferred constraints are checked, and progress moves only from what was read, by the same
  owner, in the transaction that took the lock.
- settle (5): a COMMIT whose answer was lost has ended once its row lock is free; progress then tells how.

One object is one owner with one connection: use it from one thread.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Protocol

import psycopg
from psycopg import errors as pg

from kept.errors import FixConfiguration, OutcomeUnknown
from kept.progress import Owner, Progress, Range, Source, Stop, advance, check
from kept.stores import births, holders, rows, sinks
from kept.stores.births import Birth, Seed
from kept.stores.chunks import OpenChunk, Ownership, ahead, ends_the_session, transaction_was_ended
from kept.stores.holders import Holder, Part
from kept.stores.rows import Row
from kept.stores.sessions import Session, open_session, roll_back, session_name, transaction
from kept.stores.sinks import Sink
from kept.stores.sql_errors import reason, told, told_as
from kept.stores.tables import PROGRESS_TABLES, make_missing

log = logging.getLogger("kept.stores")
ATTEMPTS_TO_LOCK = 4


class Prepares(Protocol):
    """What has tables of its own."""

    def prepare(self, session: Session) -> None: ...


class PostgresProgress:
    """Progress rows of one pipeline, and the transactions that move them together with effects."""

    def __init__(
        self,
        dsn: str,
        pipeline: str,
        *,
        lock_within: float = 5.0,
        idle_within: float = 60.0,
        ownership: Ownership | None = None,
        sink: Sink | None = None,
    ) -> None:
        """`lock_within` bounds the wait for another owner, `idle_within` the pauses of a handler in its transaction.

        Progress belongs to the `sink`, where one is named. With an `ownership` this is not a new owner: it writes for
        one that has made the tables and taken over.
        """
        if not pipeline:
            raise FixConfiguration("a pipeline needs a name", way_out="name it: its progress is kept under this name")
        self.pipeline = pipeline
        self.sink = sink
        self.owner = str(uuid.uuid4()) if ownership is None else ownership.owner
        self._dsn, self._lock_within, self._idle_within = dsn, lock_within, idle_within
        self._name = session_name(pipeline, self.owner)
        self._open_session: Session | None = None
        self._generations: dict[Part, int] = {} if ownership is None else dict(ownership.generations)
        self._in_chunk = False
        if ownership is None:
            make_missing(self._session(), PROGRESS_TABLES)

    def __enter__(self) -> PostgresProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._open_session is not None:
            self._open_session.close()

    def prepare(self, *things: Prepares) -> None:
        """Let sinks and the like make the tables that they need, before the first chunk."""
        for thing in things:
            thing.prepare(self._session())

    def born(self, topic: str) -> Birth | None:
        """Whether this pipeline was seeded for the topic, and for how many partitions."""
        with told_as("reading the pipeline's birth"):
            return births.birth_of(self._session(), self.pipeline, topic)

    def topics(self) -> list[str]:
        """Every topic that this pipeline was seeded for."""
        with told_as("reading the pipeline's births"):
            return births.topics_of(self._session(), self.pipeline)

    def seed(self, topic: str, seeds: Sequence[Seed]) -> dict[int, Progress]:
        """Give every partition its first progress; what was seeded before stays, and is returned as it is."""
        return self.seed_all({topic: seeds})[topic]

    def seed_all(self, seeds: Mapping[str, Sequence[Seed]]) -> dict[str, dict[int, Progress]]:
        """The same for several topics, all of them or none."""
        return births.seed_topics(self._session(), self.pipeline, seeds, self.sink)

    def read(self, topic: str) -> dict[int, Progress]:
        """What is recorded now, without a lock: to look at, not to act on."""
        with told_as("reading progress"):
            found = rows.read_topic(self._session(), self.pipeline, topic)
        return {partition: row.progress for partition, row in found.items()}

    def take_over(self, topic: str, partitions: Collection[int]) -> dict[int, Progress]:
        """Own these partitions from now on; returns where each goes on.

        Earlier owners are Fenced at their next chunk. One that sleeps in its transaction is ended, and told in the
        log; a stranger's session in the way is named in TryAgain. The answer to COMMIT may be lost: the same call
        again only takes one more generation.
        """
        taken = self._claim([(topic, partition) for partition in set(partitions)], [])
        return {number: progress for (_, number), progress in taken.items()}

    def succeed(self, parts: Collection[Part]) -> dict[Part, Progress]:
        """Own all of these, of several topics, or none: who is first with one and last with another would end both.

        For an owner of whole pipelines. It takes over more only while what it has is still its own (rule 7): one that
        was succeeded without hearing of it is Fenced, and climbs over nobody.
        """
        held = [part for part in self._generations if part not in parts]
        self._glance(held)
        return self._claim(parts, held)

    def _claim(self, parts: Collection[Part], held: Collection[Part]) -> dict[Part, Progress]:
        def may_end(holder: Holder) -> bool:
            self._glance(held)  # a successor that came while we waited is left alone
            return holders.of_pipeline(holder, self.pipeline)

        if not parts:
            return {}
        with self._locked([*parts, *held], may_end) as (session, found):
            self._refuse_if_not_ours(found[part] for part in held)
            if self.sink is not None:
                sinks.note(session, self.pipeline, self.sink)
            taken = {part: _next_generation(found[part]) for part in sorted(parts)}
            topics, numbers = rows.columns(parts)
            generations = [progress.owner.generation for progress in taken.values()]
            session.execute(rows.CLAIM, (self.owner, topics, numbers, generations, self.pipeline))
        self._generations |= {part: progress.owner.generation for part, progress in taken.items()}
        return taken

    @contextmanager
    def owned(self) -> Iterator[Session]:
        """A transaction, to be repeated if need be, in which all that was taken over is locked, and still ours."""
        self._glance(self._generations)
        with self._locked(self._generations, self._is_mine) as (session, found):
            self._refuse_if_not_ours(found.values())
            yield session
            session.settle_settings()

    def refuse_another_sink(self, connection: Session) -> None:
        """Whether the sink is still the one that was noted: a table may be made anew while a pipeline runs."""
        if self.sink is not None:
            with told_as("looking at the sink"):
                sinks.refuse_another(connection, self.pipeline, self.sink)

    def ownership(self) -> Ownership:
        """What another process needs to write as this owner."""
        return Ownership(self.owner, dict(self._generations))

    def forget(self, topic: str, partitions: Collection[int]) -> None:
        """These partitions went to somebody else; nothing is written."""
        for partition in partitions:
            self._generations.pop((topic, partition), None)

    def settle(self, parts: Collection[Part]) -> dict[Part, Progress]:
        """After OutcomeUnknown: what is recorded, once the transaction in doubt has ended one way or the other.

        It held the row locks; who gets them after it reads its outcome. If its backend still waits for us, it is
        ended. Only our own backend is: a successor is not disturbed, and met with Fenced.
        """
        self._drop_session()
        self._glance(parts)
        with self._locked(parts, self._is_mine) as (_, found):
            self._refuse_if_not_ours(found.values())
        return {part: row.progress for part, row in found.items()}

    @contextmanager
    def chunk(
        self, ranges: Sequence[Range], sources: Mapping[Part, Source], *, may_repeat: bool = False
    ) -> Iterator[OpenChunk]:
        """One transaction for the effects of these ranges and their progress, which moves to the end of each range.

        A range starts where progress is. With `may_repeat` it may start lower: the caller drops the records below
        `drop_below`. Raises Fenced, Gap, SourceChanged, ProgressLost or ProgressMoved before any effect; TryAgain
        when nothing was written; OutcomeUnknown when the answer to COMMIT was lost (then `settle`). What the block
        raises passes through after ROLLBACK, an error of psycopg as one of ours.
        """
        self._refuse_what_is_no_chunk(ranges)
        session, found = self._lock_for_chunk([(wanted.topic, wanted.partition) for wanted in ranges])
        self._in_chunk = True
        try:
            accepted = self._accept(ranges, sources, found, may_repeat)
            moves = [(found[part], new) for part, (_, new) in accepted.items()]
            chunk = OpenChunk(session, {part: drop_below for part, (drop_below, _) in accepted.items()})
            session.guarded = True
            yield chunk
            self._record_and_commit(session, moves)
            chunk.recorded = {part: new for part, (_, new) in accepted.items()}
        except BaseException as error:
            roll_back(session)
            if isinstance(error, psycopg.Error):
                raise told(error, f"applying a chunk of {self.pipeline!r}") from error
            raise
        finally:
            self._in_chunk = False

    @contextmanager
    def apart(self) -> Iterator[Session]:
        """A transaction for effects alone: the one move of at most and of at least once that is not progress."""
        session = self._session()
        with transaction(session, f"applying effects of {self.pipeline!r}"):
            yield session
            session.settle_settings()

    # -- the chunk's steps

    def _lock_for_chunk(self, parts: Collection[Part]) -> tuple[Session, dict[Part, Row]]:
        """BEGIN and the lock, in one round trip. Only a connection of our own that was lost may be ended for it."""
        session = self._session()
        with told_as("locking progress"):
            try:
                return session, self._lock(session, parts)
            except pg.LockNotAvailable:
                self._glance(parts)
                self._end_holders(session, parts, self._is_mine)
            except pg.OperationalError:
                if not session.closed:
                    raise  # else it was lost while it was idle, which has cost nothing
            session = self._session()
            return session, self._lock(session, parts)

    def _accept(
        self, ranges: Sequence[Range], sources: Mapping[Part, Source], found: Mapping[Part, Row], may_repeat: bool
    ) -> dict[Part, tuple[int, Progress]]:
        """Per part: which records are done, and the progress after this chunk; or the reason to stop."""
        self._refuse_if_not_ours(found.values())
        accepted = {}
        for wanted in ranges:
            part = (wanted.topic, wanted.partition)
            owner = Owner(self.pipeline, self._generations[part])
            answer = check(wanted, found[part].progress, sources[part], owner)
            if isinstance(answer, Stop):
                raise answer.error()
            if answer.drop_below != wanted.start and not may_repeat:
                raise ahead(wanted, answer)
            end = max(wanted.end, answer.drop_below)
            accepted[part] = (answer.drop_below, advance(answer.progress, end, wanted.leader_epoch, owner))
        return accepted

    def _record_and_commit(self, session: Session, moves: Sequence[tuple[Row, Progress]]) -> None:
        """Constraints, progress and COMMIT in one round trip; the first that fails keeps the later from happening."""
        session.guarded = False
        if session.closed:
            raise pg.OperationalError("the connection was lost inside the chunk")
        checked = None
        try:
            with session.pipeline():
                session.settle_settings()
                checked = session.execute("SET CONSTRAINTS ALL IMMEDIATE")
                session.execute(rows.RECORD, rows.record_arguments(self.owner, moves))
                session.execute("COMMIT")
        except pg.DivisionByZero as error:
            if checked is None or checked.statusmessage is None:
                raise  # not ours: a trigger of the user's, fired by SET CONSTRAINTS
            raise transaction_was_ended() from error
        except psycopg.Error as error:
            if not (session.closed or ends_the_session(error)):
                raise  # the server answered, and went on: it rolled back
            raise OutcomeUnknown(
                f"the answer to COMMIT was lost: {reason(error)}",
                way_out="settle() tells what is recorded; go on from there",
            ) from error

    # -- locks

    @contextmanager
    def _locked(
        self, parts: Collection[Part], may_end: Callable[[Holder], bool]
    ) -> Iterator[tuple[Session, dict[Part, Row]]]:
        """A transaction that may be repeated, with these rows locked; whoever sleeps on them is ended, if we may."""
        for _ in range(ATTEMPTS_TO_LOCK - 1):
            session = self._session()
            with told_as("locking progress"):
                try:
                    found = self._lock(session, parts)
                    break
                except pg.LockNotAvailable:
                    pass
            self._end_holders(session, parts, may_end)
        else:
            session = self._session()
            with told_as("locking progress"):
                found = self._lock(session, parts)
        try:
            yield session, found
            session.execute("COMMIT")
        except BaseException as error:
            roll_back(session)
            if isinstance(error, psycopg.Error):
                raise told(error, "writing progress") from error
            raise

    def _lock(self, session: Session, parts: Collection[Part]) -> dict[Part, Row]:
        topics, partitions = rows.columns(parts)
        try:
            cursor = psycopg.ClientCursor(session).execute(rows.BEGIN_AND_LOCK, (topics, partitions, self.pipeline))
            cursor.nextset()
            found = {row.part: row for row in (rows.row_of(self.pipeline, one) for one in cursor.fetchall())}
            rows.all_there(self.pipeline, parts, found)
        except BaseException:
            roll_back(session)
            raise
        return found

    def _end_holders(self, session: Session, parts: Collection[Part], may_end: Callable[[Holder], bool]) -> None:
        for holder in holders.holders(session, self.pipeline, parts, self._lock_within):
            if not may_end(holder):
                raise holders.refuse_to_end(holder)
            holders.end(session, holder)

    def _glance(self, parts: Collection[Part]) -> None:
        """Without a lock: is there a successor? Then it is left alone."""
        for topic in {topic for topic, _ in parts}:
            with told_as("reading progress"):
                found = rows.read_topic(self._session(), self.pipeline, topic)
            self._refuse_if_not_ours(row for row in found.values() if row.part in parts)

    def _is_mine(self, holder: Holder) -> bool:
        return holder.name == self._name

    # -- the small questions

    def _refuse_if_not_ours(self, found: Collection[Row] | Iterator[Row]) -> None:
        for row in found:
            stop = rows.not_ours(row, self.owner, self._generation_of(row.part))
            if stop is not None:
                raise stop

    def _generation_of(self, part: Part) -> int:
        if part not in self._generations:
            raise FixConfiguration(
                f"{part[0]}[{part[1]}] was not taken over by this process", way_out="call take_over first"
            )
        return self._generations[part]

    def _refuse_what_is_no_chunk(self, ranges: Sequence[Range]) -> None:
        parts = [(wanted.topic, wanted.partition) for wanted in ranges]
        if self._in_chunk or not parts or len(set(parts)) != len(parts):
            raise FixConfiguration(
                "a chunk needs ranges, one for each partition, and no other chunk open beside it",
                way_out="merge the ranges of a partition; leave one chunk before the next",
            )
        for part in parts:
            self._generation_of(part)

    # -- the connection

    def _session(self) -> Session:
        if self._open_session is None or self._open_session.closed:
            self._open_session = open_session(self._dsn, self._name, self._lock_within, self._idle_within)
        return self._open_session

    def _drop_session(self) -> None:
        if self._open_session is not None:
            with suppress(psycopg.Error):
                self._open_session.close()
        self._open_session = None


def _next_generation(row: Row) -> Progress:
    seen = row.recorded
    if not isinstance(seen, Progress):
        raise rows.moved_by_a_stranger(row)
    owner = Owner(seen.owner.fingerprint, seen.owner.generation + 1)
    return advance(seen, seen.position.next_offset, seen.identity.leader_epoch, owner)
