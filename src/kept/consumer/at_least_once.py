"""At least once: the effect first, then its progress. A crash in between repeats the effect, and never skips one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from kept.consumer.batch import Batch
from kept.consumer.beginning import Beginning
from kept.consumer.hand import Hand
from kept.consumer.identities import Identities
from kept.consumer.membership import Membership
from kept.consumer.policies import (
    Asynchronously,
    Policy,
    records_between,
    seconds_between,
    together,
)
from kept.consumer.positions import Next, after, at
from kept.consumer.records import Place, Record
from kept.errors import Fenced, KeptError, TryAgain

IDLE = 0.5
SERVED_EVERY = 1.0
"""A member is heard of at least so often, however long its records take."""
BETWEEN_TRIES = 0.1
HEARD_EVERY = 0.01
RECORDED_WITHIN = 60.0
RECORDED_BEFORE_GIVEN_AWAY_WITHIN = 10.0


class AtLeastOnceLoop:
    """Hands records out; one is done when the next is asked for, and progress follows by the policy."""

    def __init__(self, member: Membership, policy: Policy, beginning: Beginning, identities: Identities) -> None:
        self._member = member
        self._identities = identities
        member.note, member.doubted = identities.note, identities.doubt
        self._policy = policy
        self._beginning = beginning
        self._hand = Hand()
        self._stopping = False
        self._closed = False
        self._unsettled = False  # records may have been taken that did not reach the hand
        self._aside = False  # partitions were paused that have records in hand
        self._not_recorded = 0
        self._most = records_between(policy)
        self._seconds = seconds_between(policy)
        self._commit_at = time.monotonic() + self._seconds
        self._serve_at = self._look_at = 0.0

    def records(self) -> Iterator[Record]:
        hand, now = self._hand, time.monotonic
        records = hand.records  # the same list for good
        is_counted = self._most < math.inf
        self.begin()
        while not self._stopping:
            if hand.at >= len(records):
                self._refill(together(self._policy))
                continue
            record = records[hand.at]
            yield record
            at = hand.at  # as in `hand.now_done`, which would be a call for every record
            if at < len(records) and records[at] is record:
                hand.at = at + 1
                self._not_recorded += 1
            if now() >= self._look_at or (is_counted and self._not_recorded >= self._most):
                self._between()

    def batches(self, most: int) -> Iterator[Batch]:
        self.begin()
        while (batch := self.give(most)) is not None:
            yield batch
            self.leave(batch)

    def begin(self) -> None:
        """A loop begins, perhaps behind one that ended in the middle."""
        if self._unsettled:
            self._settle()
        if self._aside:
            self._put_aside()

    def give(self, most: int) -> Batch | None:
        """The next records that are not done, as soon as there are any; None once it was stopped."""
        hand = self._hand
        while not self._stopping:
            if not hand.empty():
                return Batch(hand.records[hand.at : hand.at + most])
            self._refill(most)
        return None

    def leave(self, batch: Batch) -> None:
        """What the batch says is done is done. A batch that is not left is given again."""
        self._not_recorded += self._hand.batch_done(batch)
        if self._not_recorded >= self._most or time.monotonic() >= self._look_at:
            self._between()

    @property
    def stopping(self) -> bool:
        return self._stopping

    def stop(self) -> None:
        self._stopping = True
        self._look_at = 0.0

    def wait(self, seconds: float, record: Record) -> bool:
        """Stay a member for so long, or until `stop`; whether the record that was handed out is still ours to do.

        A partition that went and came back does not make it ours again: others may have gone on behind it.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not self._stopping and self._hand.has_next(record):
            self._serve()
            time.sleep(min(left, IDLE))
        return not self._stopping and self._hand.has_next(record)

    def reposition(self, positions: Mapping[Place, Next]) -> None:
        """Go on from elsewhere, and record that as the progress."""
        self._hear_out()
        if gone := positions.keys() - self._member.owned:  # while we waited: Kafka would take their positions from us
            raise TryAgain(f"{sorted(gone)} went to another member meanwhile", way_out="replay what is ours now")
        self._member.commit(positions)
        self._hand.drop(positions)
        self._member.seek(positions)

    def set_aside(self) -> None:
        """Partitions were paused: what is in hand of them is read again later, except what is handed out now."""
        self._aside = True
        self._look_at = 0.0

    def close(self) -> None:
        """Record what is done, and leave."""
        self.stop()
        self._closed = True
        try:
            self._member.hear_out(RECORDED_BEFORE_GIVEN_AWAY_WITHIN)
            self._record_at_last(RECORDED_WITHIN, serving=True)
        finally:
            self._member.leave()

    def assigned(self, places: Sequence[Place]) -> Mapping[Place, Next]:
        self._identities.came(places, self._member.owned)
        positions = self._beginning.positions(places)
        self._identities.refuse_foreign(positions)
        return positions

    def revoked(self, places: Sequence[Place]) -> None:
        with suppress(KeptError):  # the next owner does again what could not be recorded
            self._record_at_last(RECORDED_BEFORE_GIVEN_AWAY_WITHIN)
        self._hand.drop(places)

    def lost(self, places: Sequence[Place]) -> None:
        self._hand.drop(places)

    def _settle(self) -> None:
        """An error or an interrupt may have swallowed records on their way into the hand: they are read again."""
        done = {place: after(record) for place, record in self._hand.last_done().items()}
        recorded = self._beginning.positions(sorted(self._member.owned))
        self._hand.clear()
        self._member.seek({**recorded, **done})
        self._unsettled = False

    def _put_aside(self) -> None:
        waiting = self._hand.first_not_done()
        again = {place: at(record) for place, record in waiting.items() if self._member.is_paused(place)}
        self._member.seek(again)
        self._hand.put_back(again)
        self._aside = False

    def _refill(self, most: int) -> None:
        self._take(most, min(IDLE, max(0.0, self._commit_at - time.monotonic())))
        self._between()

    def _take(self, most: int, wait: float) -> None:
        self._unsettled = True
        self._hand.add(self._member.take(most, wait))
        self._unsettled = False
        self._serve_at = time.monotonic() + SERVED_EVERY

    def _serve(self) -> None:
        """Let the client do what is due; a record at most comes with it, however many there are."""
        self._take(1, 0)

    def _hear_out(self) -> None:
        """A commit under way could arrive behind the next one, and undo it."""
        deadline = time.monotonic() + RECORDED_WITHIN
        while self._member.committing and time.monotonic() < deadline:
            self._serve()
            time.sleep(HEARD_EVERY)

    def _between(self) -> None:
        """Between two records: what is due?"""
        if self._closed:
            return
        self._identities.look()
        now = time.monotonic()
        if self._is_due(now):
            if isinstance(self._policy, Asynchronously):
                self._record_later(self._policy.on_failure)
            else:
                self._record()
            self._commit_at = time.monotonic() + self._seconds
        if now >= self._serve_at and not self._hand.empty():
            self._serve()
        if self._aside:
            self._put_aside()
        self._look_at = 0.0 if self._stopping else min(self._commit_at, self._serve_at)

    def _is_due(self, now: float) -> bool:
        """By the count, by the clock, or, where the count alone decides, because no more records came."""
        if self._not_recorded >= self._most or now >= self._commit_at:
            return True
        return self._seconds == math.inf and self._not_recorded > 0 and self._hand.empty()

    def _record(self) -> None:
        """Record what is done, and wait for it; hands nothing out until it is, or is another member's to do."""
        deadline = time.monotonic() + RECORDED_WITHIN
        while True:
            try:
                self._commit()
            except (Fenced, TryAgain):
                if time.monotonic() > deadline:
                    raise
                self._serve()  # a rebalance may be what is in the way, or the news that we are out
                time.sleep(BETWEEN_TRIES)
            else:
                return

    def _record_at_last(self, within: float, *, serving: bool = False) -> None:
        """Record what is done when partitions go, and at the end; only there the member can be served meanwhile."""
        deadline = time.monotonic() + within
        while True:
            try:
                self._commit()
            except Fenced:
                return  # not ours any more: the new owner does it again
            except TryAgain:
                if time.monotonic() > deadline:
                    raise
                if serving:
                    self._serve()  # a rebalance may be what is in the way
                time.sleep(BETWEEN_TRIES)
            else:
                return

    def _commit(self) -> None:
        progress = dict(self._hand.last_done())
        self._not_recorded = 0
        if progress:
            self._member.commit({place: after(record) for place, record in progress.items()})
            self._hand.recorded(progress)

    def _record_later(self, on_failure: Callable[[KeptError], object] | None) -> None:
        """Record without waiting. While one is under way none is sent: a newer one follows, never an older."""
        progress = dict(self._hand.last_done())
        if not progress or self._member.committing:
            return

        def then(error: KeptError | None) -> None:
            if error is None:
                self._hand.recorded(progress)
            elif on_failure is not None:
                on_failure(error)

        self._member.commit_later({place: after(record) for place, record in progress.items()}, then)
        self._not_recorded = 0
