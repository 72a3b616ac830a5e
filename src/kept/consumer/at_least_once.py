"""At least once: the effect first, then its progress. A crash in between repeats the effect, and never skips one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from kept.consumer.batch import Batch
from kept.consumer.beginning import Beginning
from kept.consumer.hand import Hand
from kept.consumer.membership import Membership, Next, after, at
from kept.consumer.policies import (
    Asynchronously,
    Policy,
    records_between,
    seconds_between,
    together,
)
from kept.consumer.records import Place, Record
from kept.errors import Fenced, KeptError, TryAgain

IDLE = 0.5
SERVED_EVERY = 1.0
"""A member is heard of at least so often, however long its records take."""
RECORDED_WITHIN = 60.0
RECORDED_BEFORE_GIVEN_AWAY_WITHIN = 10.0


class AtLeastOnceLoop:
    """Hands records out; one is done when the next is asked for, and progress follows by the policy."""

    def __init__(self, member: Membership, policy: Policy, beginning: Beginning) -> None:
        self._member = member
        self._policy = policy
        self._beginning = beginning
        self._hand = Hand()
        self._stopping = False
        self._not_recorded = 0
        self._most = records_between(policy)
        self._seconds = seconds_between(policy)
        self._commit_at = time.monotonic() + self._seconds
        self._serve_at = self._look_at = 0.0

    def records(self) -> Iterator[Record]:
        hand, now = self._hand, time.monotonic
        records = hand.records  # the same list for good
        is_counted = self._most < math.inf
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
        hand = self._hand
        while not self._stopping:
            if hand.empty():
                self._refill(most)
                continue
            batch = Batch(hand.records[hand.at : hand.at + most])
            yield batch
            self._not_recorded += hand.batch_done(batch)
            if self._not_recorded >= self._most or time.monotonic() >= self._look_at:
                self._between()

    def owns(self, record: Record) -> bool:
        return record.place in self._member.owned

    def stop(self) -> None:
        self._stopping = True
        self._look_at = 0.0

    def wait(self, seconds: float) -> None:
        """Stay a member for so long, or until `stop`."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not self._stopping:
            self._serve(min(left, IDLE))

    def _serve(self, seconds: float) -> None:
        self._hand.add(self._member.take(1, seconds))

    def reposition(self, positions: Mapping[Place, Next]) -> None:
        """Go on from elsewhere, and record that as the progress."""
        self._hand.drop(positions)
        self._member.seek(positions)
        self._member.commit(positions)

    def set_aside(self, places: Sequence[Place]) -> None:
        """Hand nothing of these out; what is in hand is read again later."""
        again = {place: at(record) for place, record in self._hand.first_not_done().items() if place in places}
        self._hand.put_back(again)
        self._member.seek(again)

    def close(self) -> None:
        """Record what is done, and leave."""
        try:
            self._record_at_last(RECORDED_WITHIN)
        finally:
            self._member.leave()

    def assigned(self, places: Sequence[Place]) -> Mapping[Place, Next]:
        return self._beginning.positions(places)

    def revoked(self, places: Sequence[Place]) -> None:
        with suppress(KeptError):  # the next owner does again what could not be recorded
            self._record_at_last(RECORDED_BEFORE_GIVEN_AWAY_WITHIN)
        self._hand.drop(places)

    def lost(self, places: Sequence[Place]) -> None:
        self._hand.drop(places)

    def _refill(self, most: int) -> None:
        self._hand.add(self._member.take(most, min(IDLE, max(0.0, self._commit_at - time.monotonic()))))
        self._serve_at = time.monotonic() + SERVED_EVERY
        self._between()

    def _between(self) -> None:
        """Between two records: what is due?"""
        now = time.monotonic()
        if self._not_recorded >= self._most or now >= self._commit_at:
            if isinstance(self._policy, Asynchronously):
                self._record_later(self._policy.on_failure)
            else:
                self._record()
            self._commit_at = time.monotonic() + self._seconds
        if now >= self._serve_at and not self._hand.empty():
            self._serve(0)
            self._serve_at = time.monotonic() + SERVED_EVERY
        self._look_at = 0.0 if self._stopping else min(self._commit_at, self._serve_at)

    def _record(self) -> None:
        """Record what is done, and wait for it; hands nothing out until it is."""
        deadline = time.monotonic() + RECORDED_WITHIN
        while True:
            try:
                self._commit()
            except TryAgain:
                if time.monotonic() > deadline:
                    raise
                self._serve(0.1)  # a rebalance may be what is in the way
            else:
                return

    def _record_at_last(self, within: float) -> None:
        """Record what is done where the member cannot be served: when partitions go, and at the end."""
        deadline = time.monotonic() + within
        while True:
            try:
                self._commit()
            except TryAgain:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def _commit(self) -> None:
        progress = dict(self._hand.last_done())
        self._not_recorded = 0
        if not progress:
            return
        try:
            self._member.commit({place: after(record) for place, record in progress.items()})
        except Fenced:
            return  # not ours any more: the new owner does it again; the client learns it with its next answer
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
