"""Exactly once into Postgres: the effect and the source positions are one database transaction.

Progress lives in the database and only there; Kafka's group decides who reads what, and shows a copy of the progress
to lag tools. A member that was succeeded loses in the database (rule 5), whatever it believes of the group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import psycopg

from kept.consumer.beginning import Beginning
from kept.consumer.membership import Membership
from kept.consumer.pace import Pace
from kept.consumer.positions import Next
from kept.consumer.records import Place, Record, last_of_each
from kept.consumer.retrying import Retry
from kept.consumer.seeding import Seeding
from kept.consumer.sources import Sources
from kept.consumer.stamps import Stamped
from kept.errors import FixConfiguration, KeptError, OutcomeUnknown, Refused, TryAgain
from kept.progress import Identity, Range, Source
from kept.stores import OWN_EFFECTS, DeadLetter, DeadLetters, Messages, PostgresProgress

logger = logging.getLogger("kept")
IDLE = 0.5
PAUSE = 0.2
SHOWN_EVERY = 1.0
GIVEN_UP_AFTER = 300.0
ASSIGNED_WITHIN = 240.0
"""Below max.poll.interval.ms, for meanwhile the group is not heard."""
Connection: TypeAlias = "psycopg.Connection[Any]"
Apply: TypeAlias = Callable[[Connection, Sequence[Record]], object]
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Effect:
    """What is done with records: a function of one, of several, or else the messages table."""

    each: Callable[[Connection, Record], object] | None
    together: Apply | None
    table: str

    def __post_init__(self) -> None:
        if self.each is not None and self.together is not None:
            raise FixConfiguration("two effects were given", way_out="give `each` or `together`, not both")


class IntoPostgresLoop:
    """Takes records, applies them inside a chunk of the store, and goes on from what is recorded there."""

    def __init__(self, member: Membership, store: PostgresProgress, sources: Sources, seeding: Seeding) -> None:
        self._member = member
        self._store = store
        self._sources = sources
        self._seeding = seeding
        self._letters = DeadLetters(store.pipeline)
        self._apply: Apply = _nothing
        self._topic_ids: dict[str, str] = {}
        self._cluster_id = ""
        self._next: dict[Place, int] = {}
        self._epochs: dict[Place, int] = {}
        self._pace = Pace()
        self._waiting: list[Record] = []
        self._assignments = 0
        self._must_settle = False
        self._failing_since: float | None = None
        self._in_vain = False
        self._show_at = 0.0
        self._last_shown: dict[Place, Next] = {}
        self._stopping = False

    def prepare(self, effect: Effect) -> None:
        """Make what is missing in the database, before the first record."""
        self._store.prepare(self._letters)
        self._store.sink = OWN_EFFECTS
        if effect.together is not None:
            self._apply = effect.together
        elif effect.each is not None:
            self._apply = partial(_one_by_one, effect.each)
        else:
            messages = Messages(effect.table)
            self._store.sink = messages.sink
            self._store.prepare(messages)
            self._apply = lambda connection, records: messages.write(connection, Stamped(records, self._topic_ids))

    def run(self, retry: Retry) -> None:
        """Until `stop`; every chunk is committed before the next is taken."""
        while not self._stopping:
            try:
                if self._must_settle:
                    self._settle()
                records = self._take()
                if records:
                    self._chunk(records, retry)
                else:
                    self._failing_since = None
                self._show()
            except (TryAgain, OutcomeUnknown) as reason:
                self._heed(reason)

    def stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        """Show Kafka where we stand, and leave."""
        try:
            self._show_now()
        finally:
            try:
                self._member.leave()
            finally:
                self._store.close()

    def assigned(self, places: Sequence[Place]) -> Mapping[Place, Next]:
        """Ours in the group, and from now on in the database: whoever had them before is fenced there."""
        self._assignments += 1
        deadline = time.monotonic() + ASSIGNED_WITHIN
        self._cluster_id = self._cluster_id or self._patiently(deadline, self._sources.cluster_id)
        positions = {}
        for topic in dict.fromkeys(topic for topic, _ in places):
            numbers = [number for name, number in places if name == topic]
            self._patiently(deadline, partial(self._seeding.seed, self._store, topic, numbers, self._cluster_id))
            taken = self._patiently(deadline, partial(self._store.take_over, topic, numbers))
            for number, progress in taken.items():
                positions[topic, number] = Next(progress.position.next_offset, progress.identity.leader_epoch)
        self._next |= {place: position.offset for place, position in positions.items()}
        self._epochs |= {place: position.leader_epoch for place, position in positions.items()}
        return positions

    def revoked(self, places: Sequence[Place]) -> None:
        self._show_now()
        self.lost(places)

    def lost(self, places: Sequence[Place]) -> None:
        self._assignments += 1
        self._waiting = [record for record in self._waiting if record.place not in places]
        for topic, number in places:
            self._store.forget(topic, [number])
            self._next.pop((topic, number), None)
            self._epochs.pop((topic, number), None)

    def _take(self) -> list[Record]:
        """The next records, as many as are done in one transaction."""
        records, self._waiting = self._waiting, []
        if not records:
            records = self._member.take(self._pace.most, IDLE)
        share = self._pace.share(records)
        self._waiting = records[share:]
        return records[:share]

    def _chunk(self, records: list[Record], retry: Retry) -> None:
        """One transaction. An effect that raises is tried again with the whole chunk, then found and buried."""
        self._must_settle = True  # whatever ends this but a commit: go on from what is recorded
        topic_ids = self._sources.ask_topic_ids(sorted({topic for topic, _ in self._next}))
        last = last_of_each(records)
        self._topic_ids = topic_ids()
        sources = {place: self._source(place, record) for place, record in last.items()}
        delays = list(retry.delays())
        assignments = self._assignments
        for number, delay in enumerate(delays):
            try:
                self._write(records, last, sources, self._apply)
            except (KeptError, psycopg.Error):
                raise
            except Exception as error:  # noqa: BLE001 - whatever the effect raises: it is tried again, and refused at last
                logger.warning("an effect raised, and is tried again (%d of %d): %r", number + 1, len(delays), error)
            else:
                return
            self._stay_member(delay)
            if self._assignments != assignments or self._stopping:
                return  # not all of it is ours any more: what is, is read again
        self._write(records, last, sources, _refusing(self._apply))

    def _write(
        self, records: list[Record], last: Mapping[Place, Record], sources: Mapping[Place, Source], apply: Apply
    ) -> None:
        ranges = [
            Range(*place, self._next[place], record.offset + 1, self._epoch(place, record))
            for place, record in last.items()
        ]
        began, done = time.monotonic(), False
        try:
            with self._store.chunk(ranges, sources) as chunk:
                buried = self._letters.apply_or_bury(chunk.connection, records, apply, _letter)
            done = True
        finally:
            self._pace.took(len(records), time.monotonic() - began, done=done)
        for place, record in last.items():
            self._next[place] = record.offset + 1
            self._epochs[place] = self._epoch(place, record)
        self._must_settle = False
        self._failing_since = None
        for letter in buried:
            logger.warning("%s[%d]@%d was buried: %s", letter.topic, letter.partition, letter.offset, letter.reason)

    def _epoch(self, place: Place, record: Record) -> int:
        return max(self._epochs[place], record.leader_epoch)

    def _source(self, place: Place, record: Record) -> Source:
        """The source as it is now: asked after the records were read, so another topic of the name shows (rule 3).

        Cut logs and deleted records show in the client, which begins with the stored leader epoch and stops.
        """
        identity = Identity(self._cluster_id, self._topic_ids[place[0]], self._epoch(place, record))
        return Source(identity, 0, record.offset + 1, record.offset + 1)

    def _settle(self) -> None:
        """Read what is recorded, once whatever was in doubt has ended, and go on from there."""
        self._waiting = []
        if self._next:
            recorded = self._store.settle(list(self._next))
            self._next = {place: progress.position.next_offset for place, progress in recorded.items()}
            self._epochs = {place: progress.identity.leader_epoch for place, progress in recorded.items()}
            self._member.seek({place: Next(offset, self._epochs[place]) for place, offset in self._next.items()})
        self._must_settle = False

    def _heed(self, reason: KeptError) -> None:
        """Go on from what is recorded; when that is in vain for long, it is told."""
        self._must_settle = True
        self._failing_since = self._failing_since or time.monotonic()
        if self._stopping:
            return
        logger.warning("going on from the recorded progress: %s", reason.what)
        if self._in_vain or time.monotonic() - self._failing_since > GIVEN_UP_AFTER:
            raise TryAgain(
                f"nothing could be committed for {time.monotonic() - self._failing_since:.0f} s: {reason.what}",
                way_out="see that Postgres and the brokers run, then start it again: it goes on where it was",
            ) from reason
        self._stay_member(IDLE)

    def _stay_member(self, seconds: float) -> None:
        """Wait, and hear the group meanwhile; nothing is read but a record that was on its way already."""
        deadline = time.monotonic() + seconds
        self._member.pause([])
        try:
            while (left := deadline - time.monotonic()) > 0 and not self._stopping:
                came = self._member.take(1, min(left, IDLE))  # partitions may go meanwhile, and what waits of them
                self._waiting = [*self._waiting, *came]
        finally:
            self._member.resume([])

    def _patiently(self, deadline: float, ask: Callable[[], Answer]) -> Answer:
        """Partitions are not given back for a database that is away for a moment.

        Inside an assignment there is no other way than to wait: the client would go on from the group's offsets.
        """
        while True:
            try:
                return ask()
            except TryAgain as reason:
                if self._stopping or time.monotonic() > deadline:
                    self._in_vain = True
                    raise
                logger.warning("taking over partitions: %s", reason.what)
                time.sleep(PAUSE)

    def _show(self) -> None:
        """A copy of the progress for lag tools, now and then; nobody reads on from it."""
        if time.monotonic() < self._show_at or self._member.committing:
            return
        self._show_at = time.monotonic() + SHOWN_EVERY
        shown = self._shown()
        if shown != self._last_shown:
            self._last_shown = shown
            if shown:
                self._member.commit_later(shown, self._was_shown)

    def _was_shown(self, failure: KeptError | None) -> None:
        if failure is not None:
            self._last_shown = {}

    def _show_now(self) -> None:
        """The copy, at the last moment; without it lag tools show a little too much, and that is all."""
        shown = self._shown()
        if shown:
            with suppress(KeptError):
                self._member.commit(shown)

    def _shown(self) -> dict[Place, Next]:
        return {place: Next(offset) for place, offset in self._next.items() if place in self._member.owned}


def open_loop(member: Membership, sources: Sources, beginning: Beginning, group: str, dsn: str) -> IntoPostgresLoop:
    """A loop with its store, where its progress is moved by hand too."""
    member.skipping = partial(_move_by_hand, group)
    return IntoPostgresLoop(member, PostgresProgress(dsn, group), sources, Seeding(member, beginning, sources))


def _move_by_hand(pipeline: str, place: Place, first: int) -> str:
    """For a person, who decides whether to run it."""
    which = f"pipeline = '{pipeline}' AND topic = '{place[0]}' AND partition = {place[1]}"
    return f"UPDATE kept_progress SET next_offset = {first}, owner = 'by hand' WHERE {which}"  # noqa: S608


def _nothing(_connection: Connection, _records: Sequence[Record]) -> None:
    raise FixConfiguration("no effect was prepared", way_out="call prepare first")


def _one_by_one(
    effect: Callable[[Connection, Record], object], connection: Connection, records: Sequence[Record]
) -> None:
    for record in records:
        effect(connection, record)


def _refusing(apply: Apply) -> Apply:
    """The last attempt: an effect that raises refuses its record, and halving finds which one that is."""

    def applied(connection: Connection, records: Sequence[Record]) -> None:
        try:
            apply(connection, records)
        except (KeptError, psycopg.Error):
            raise
        except Exception as error:
            raise Refused(f"{type(error).__name__}: {error}", way_out="see the dead letter") from error

    return applied


def _letter(record: Record, reason: str) -> DeadLetter:
    return DeadLetter(record.topic, record.partition, record.offset, record.key, record.value, record.headers, reason)
