"""The records in hand: taken from Kafka, handed out in order, and done in that order per partition. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kept.consumer.batch import Batch
from kept.consumer.records import Place, Record, last_of_each

KEPT_BEHIND = 1000
"""A hand that never runs empty forgets what is done after so many records."""


class Hand:
    """Records taken and not yet done. `at` is how many of them are done; the next one to hand out stands there."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.at = 0
        self._counted = 0
        self._done: dict[Place, Record] = {}
        self._ahead: dict[Place, list[Record]] = {}  # acknowledged behind one that is not done

    def empty(self) -> bool:
        return self.at >= len(self.records)

    def add(self, records: Iterable[Record]) -> None:
        if self.empty() or self.at >= KEPT_BEHIND:
            self._count()
            del self.records[: self.at]
            self.at = self._counted = 0
        self.records.extend(records)

    def has_next(self, record: Record) -> bool:
        """Whether the record that was handed out was not taken out of the hand meanwhile."""
        return self.at < len(self.records) and self.records[self.at] is record

    def now_done(self, record: Record) -> bool:
        """The record that was handed out is done; False when it was taken out of the hand meanwhile."""
        if self.has_next(record):
            self.at += 1
            return True
        return False

    def batch_done(self, batch: Batch) -> int:
        """What of the batch is done; the rest stays in hand, in its order. Returns how many are done."""
        if not batch.is_partial and self._is_next(batch):
            self.at += len(batch)
            return len(batch)
        here = {id(record) for record in self.records[self.at : self.at + len(batch)]}
        here &= {id(record) for record in batch}
        left = [record for record in batch.left() if id(record) in here]
        self._count()
        first: dict[Place, int] = {}
        for record in left:
            first.setdefault(record.place, record.offset)
        waiting = {id(record) for record in left}
        done_records = [record for record in batch if id(record) in here and id(record) not in waiting]
        for record in done_records:
            if record.offset > first.get(record.place, record.offset):
                self._ahead.setdefault(record.place, []).append(record)
            else:
                self._done[record.place] = record
        self.records[self.at : self.at + len(here)] = left
        return len(done_records)

    def _is_next(self, batch: Batch) -> bool:
        """Whether nothing was taken out of the hand since the batch was made: then its ends are where they were."""
        last = self.at + len(batch) - 1
        return last < len(self.records) and self.records[self.at] is batch[0] and self.records[last] is batch[-1]

    def last_done(self) -> dict[Place, Record]:
        """The last record that is done with all before it, of each partition with progress to record."""
        self._count()
        return self._done

    def recorded(self, progress: dict[Place, Record]) -> None:
        """This progress is recorded; what was done since is not."""
        for place, record in progress.items():
            if self._done.get(place) is record:
                del self._done[place]

    def drop(self, places: Collection[Place]) -> None:
        """These partitions are no longer ours, or are read from elsewhere: neither their records nor their progress."""
        self.put_back(places)
        for place in places:
            self._done.pop(place, None)

    def put_back(self, places: Collection[Place]) -> None:
        """Take the records of these partitions out of the hand: they will be read again."""
        self._count()
        self.records[self.at :] = [record for record in self.records[self.at :] if record.place not in places]
        for place in places:
            self._ahead.pop(place, None)

    def clear(self) -> None:
        """Take everything out that is not done: all of it will be read again."""
        self._count()
        self.records.clear()
        self.at = self._counted = 0
        self._ahead.clear()

    def first_not_done(self) -> dict[Place, Record]:
        """Where each partition must be read from again if what is in hand is thrown away."""
        first: dict[Place, Record] = {}
        for record in self.records[self.at :]:
            first.setdefault(record.place, record)
        return first

    def _count(self) -> None:
        if self._counted < self.at:
            self._done.update(last_of_each(self.records[self._counted : self.at]))
            self._counted = self.at
        if self._ahead:
            self._catch_up()

    def _catch_up(self) -> None:
        """Records acknowledged early are done once everything before them is."""
        waiting = self.first_not_done()
        for place, ahead in list(self._ahead.items()):
            limit = waiting[place].offset if place in waiting else None
            reached = [record for record in ahead if limit is None or record.offset < limit]
            if not reached:
                continue
            last = max(reached, key=lambda record: record.offset)
            before = self._done.get(place)
            if before is None or before.offset < last.offset:
                self._done[place] = last
            self._ahead[place] = [record for record in ahead if record not in reached]
            if not self._ahead[place]:
                del self._ahead[place]
