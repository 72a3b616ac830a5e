"""At most once: progress first, then the effect. A crash in between loses the effect, and never repeats one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from kept.consumer.batch import Batch
from kept.consumer.beginning import Beginning
from kept.consumer.hand import Hand
from kept.consumer.identities import Identities
from kept.consumer.membership import Membership
from kept.consumer.policies import Asynchronously, Policy, together
from kept.consumer.positions import Next, after, at
from kept.consumer.records import Place, Record
from kept.errors import Fenced, FixConfiguration, KeptError, TryAgain

IDLE = 0.5
SERVED_EVERY = 1.0
BETWEEN_TRIES = 0.1
HEARD_WITHIN = 10.0
RECORDED_WITHIN = 60.0


class AtMostOnceLoop:
    """Hands out only records whose progress is recorded; one that was handed out is never handed out again.

    Records that were committed and not yet handed out are un-read when their partition is given away and at the
    end: their progress is set back, so that only a crash loses any.
    """

    def __init__(self, member: Membership, policy: Policy, beginning: Beginning, identities: Identities) -> None:
        self._member = member
        self._identities = identities
        member.note, member.doubted = identities.note, identities.doubt
        self._beginning = beginning
        self._together = together(policy)
        self._on_failure = policy.on_failure if isinstance(policy, Asynchronously) else None
        self._asynchronous = isinstance(policy, Asynchronously)
        self._hand = Hand()  # committed, to be handed out
        self._pending: list[Record] = []  # their commit is under way
        self._ahead: list[Record] = []  # taken while the member was served, not committed
        self._told: KeptError | None = None
        self._failing_since: float | None = None
        self._stopping = False
        self._closed = False
        self._unsettled = False  # records may have been taken, or committed, that did not reach the hand
        self._aside = False  # partitions were paused that have records in hand
        self._serve_at = 0.0

    def records(self) -> Iterator[Record]:
        hand = self._hand
        now = time.monotonic
        self.begin()
        while not self._stopping:
            if hand.empty():
                self._refill()
                continue
            record = hand.records[hand.at]
            hand.at += 1  # before it is handed out: whatever the body does, it was this one's only time
            yield record
            if now() >= self._serve_at:
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
        """The next records, for the only time, as soon as there are any; None once it was stopped."""
        hand = self._hand
        while not self._stopping:
            if not hand.empty():
                batch = Batch(hand.records[hand.at : hand.at + most])
                hand.at += len(batch)
                return batch
            self._refill()
        return None

    def leave(self, batch: Batch) -> None:
        """The batch was worked on, or nobody got it: then it is still to be handed out."""
        if batch.unseen:
            self._hand.at -= len(batch)
        elif batch.is_partial:
            raise FixConfiguration(
                "at-most-once acknowledges nothing: a record is done before it is handed out",
                way_out="leave the batch without acknowledging, or choose at-least-once",
            )
        if time.monotonic() >= self._serve_at:
            self._between()

    @property
    def stopping(self) -> bool:
        return self._stopping

    def stop(self) -> None:
        self._stopping = True

    def wait(self, seconds: float, record: Record) -> bool:  # noqa: ARG002 - committed: ours, whoever owns it now
        """Stay a member for so long, or until `stop`."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not self._stopping:
            self._serve()
            time.sleep(min(left, IDLE))
        return not self._stopping

    def reposition(self, positions: Mapping[Place, Next]) -> None:  # noqa: ARG002 - refused, whatever they are
        raise FixConfiguration(
            "at-most-once does not read again what it has handed out",
            way_out="`kept groups reset` moves a group that has no members; or read under another group",
        )

    def set_aside(self) -> None:
        """Partitions were paused: what is in hand of them is un-read, and read again later."""
        self._aside = True
        self._serve_at = 0.0

    def close(self) -> None:
        """Un-read what was not handed out, and leave."""
        self.stop()
        self._closed = True
        try:
            self._member.hear_out(HEARD_WITHIN)
            self._un_read([*self._member.owned])
        finally:
            self._member.leave()

    def assigned(self, places: Sequence[Place]) -> Mapping[Place, Next]:
        """What is in hand of these is from before they were lost: others went on behind it, it cannot be un-read."""
        self._hand.put_back(places)
        self._pending = [record for record in self._pending if record.place not in places]
        self._identities.came(places, self._member.owned)
        positions = self._beginning.positions(places)
        self._identities.refuse_foreign(positions)
        return positions

    def revoked(self, places: Sequence[Place]) -> None:
        self._un_read(places)

    def lost(self, places: Sequence[Place]) -> None:
        """What is in hand was committed by us: nobody else does it, and we still may. The rest is not ours."""
        self._ahead = [record for record in self._ahead if record.place not in places]

    def _settle(self) -> None:
        """An error or an interrupt came between taking, committing and the hand: what is recorded tells."""
        self._member.hear_out(HEARD_WITHIN)
        recorded = self._beginning.positions(sorted(self._member.owned))
        known = {id(record) for record in self._hand.records}
        committed = self._hand.records[self._hand.at :]
        pending = [each for each in self._pending if id(each) not in known and each.place in recorded]
        self._hand.clear()
        self._hand.add(
            record
            for record in committed + pending
            if record.place not in recorded or record.offset < recorded[record.place].offset
        )
        self._pending, self._ahead, self._told = [], [], None
        self._member.seek(recorded)
        self._unsettled = False

    def _put_aside(self) -> None:
        self._unsettled = True
        self._member.seek(self._un_read([place for place in self._member.owned if self._member.is_paused(place)]))
        self._unsettled = self._aside = False

    def _between(self) -> None:
        """Between two records: the member is heard of, however long they take."""
        if self._closed:
            return
        self._identities.look()
        if self._aside:
            self._put_aside()
        if not self._hand.empty():
            self._serve()
        self._serve_at = time.monotonic() + SERVED_EVERY

    def _serve(self) -> None:
        """Let the client do what is due; a record at most comes with it, however many there are."""
        before, self._unsettled = self._unsettled, True
        self._take_ahead(1, 0)
        self._unsettled = before

    def _refill(self) -> None:
        """Bring committed records into the hand."""
        self._identities.look()
        self._unsettled = True
        if not self._asynchronous:
            self._commit(self._taken(IDLE))
        else:
            if not self._pending:
                self._commit_later(self._taken(IDLE))
            self._hear_of_pending()
            if not self._pending:
                self._commit_later(self._taken(0))  # while those in hand are handed out
        self._unsettled = False
        self._serve_at = time.monotonic() + SERVED_EVERY

    def _taken(self, wait: float) -> list[Record]:
        more = self._together - len(self._ahead)
        if more > 0:
            self._take_ahead(more, 0 if self._ahead else wait)
        taken, self._ahead = self._ahead, []
        return taken

    def _take_ahead(self, most: int, wait: float) -> None:
        """What waits is looked at afterwards: partitions may go meanwhile, and their records with them."""
        came = self._member.take(most, wait)
        self._ahead = [*self._ahead, *came]

    def _commit(self, records: list[Record]) -> None:
        if not records:
            return
        self._pending = records
        try:
            self._member.commit(_behind(records))
        except KeptError as error:
            self._pending = []
            self._not_committed(records, error)
        else:
            self._failing_since = None
            self._hand.add(records)
            self._pending = []

    def _commit_later(self, records: list[Record]) -> None:
        if records:
            self._pending = records
            self._member.commit_later(_behind(records), self._hear)

    def _hear(self, error: KeptError | None) -> None:
        self._told = error

    def _hear_of_pending(self) -> None:
        pause = 0.001
        while self._member.committing:
            if self._stopping:
                return  # un-read at the end
            self._serve()  # brings a record at most, so that no more are hoarded the longer it takes
            if self._member.committing:
                time.sleep(pause)
                pause = min(BETWEEN_TRIES, pause * 2)
        pending, error = self._pending, self._told
        self._told = None
        if error is None:
            self._failing_since = None
            self._hand.add(pending)
            self._pending = []
            return
        self._pending = []
        if self._on_failure is not None:
            self._on_failure(error)
        ahead, self._ahead = self._ahead, []
        self._not_committed(pending + ahead, error)

    def _not_committed(self, records: list[Record], error: KeptError) -> None:
        """Un-read: these were not handed out, so they may be committed again, whatever became of the first time."""
        if not isinstance(error, (Fenced, TryAgain)):
            raise error
        self._failing_since = self._failing_since or time.monotonic()
        if time.monotonic() - self._failing_since > RECORDED_WITHIN:
            raise error
        self._member.seek({place: at(record) for place, record in _first(records).items()})
        self._serve()  # a rebalance may be what is in the way
        time.sleep(BETWEEN_TRIES)

    def _un_read(self, places: Sequence[Place]) -> dict[Place, Next]:
        """Set the progress of these partitions back to the first record that was not handed out.

        Once that was asked for, these records are out of our hands, whatever the answer: it may be about the second
        time that the client asked, when a new owner has done them already.
        """
        waiting = [*self._hand.records[self._hand.at :], *self._pending]
        back = {place: at(record) for place, record in _first(waiting).items() if place in places}
        ahead = {place: at(record) for place, record in _first(self._ahead).items() if place in places}
        self._ahead = [record for record in self._ahead if record.place not in places]
        if back and not self._member.is_member:
            return ahead  # nobody is asked, so nothing is set back: they stay ours to hand out
        self._forget(places)
        with suppress(KeptError):
            if back:
                self._member.commit(back)
        return {**ahead, **back}

    def _forget(self, places: Sequence[Place]) -> None:
        self._hand.put_back(places)
        self._pending = [record for record in self._pending if record.place not in places]


def _behind(records: Sequence[Record]) -> dict[Place, Next]:
    last = {record.place: record for record in records}
    return {place: after(record) for place, record in last.items()}


def _first(records: Sequence[Record]) -> dict[Place, Record]:
    first: dict[Place, Record] = {}
    for record in records:
        first.setdefault(record.place, record)
    return first
