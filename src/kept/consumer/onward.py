"""Reading goes onward: what was handed out of a partition is not handed out again unless somebody has gone back.

librdkafka (2.16) pauses everything that a member keeps while a cooperative rebalance goes on, and remembers the place
behind the last record that was taken. A record that is being taken in that very moment is not counted yet: it is handed
out, and fetched once more. Nobody else would notice, for the position behind it is the same both times.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Hashable, Iterable
from operator import itemgetter

from confluent_kafka import Message

from kept.consumer.records import Place, Record

logger = logging.getLogger("kept")
_message_of = itemgetter(0)


class Onward:
    """The first offset of each partition that has not come yet. `one_topic`: there are no others, which is quicker."""

    def __init__(self, *, one_topic: bool) -> None:
        self._one_topic = one_topic
        self._next: defaultdict[Hashable, int] = defaultdict(int)

    def begin(self, place: Place, offset: int) -> None:
        """Whatever came before: it is read from here."""
        self._next[place[1] if self._one_topic else place] = offset

    def first_time(self, records: list[Record]) -> list[Record]:
        """The records without those that came before."""
        messages = list(map(_message_of, records))
        numbers = map(Message.partition, messages)
        topics = map(Message.topic, messages)
        keys: Iterable[Hashable] = numbers if self._one_topic else zip(topics, numbers, strict=True)
        offsets: Iterable[int] = map(Message.offset, messages)  # type: ignore[arg-type]
        upcoming, again = self._next, set()
        for record, key, offset in zip(records, keys, offsets, strict=True):
            if offset < upcoming[key]:
                again.add(id(record))
            else:
                upcoming[key] = offset + 1
        if not again:
            return records
        first = next(record for record in records if id(record) in again)
        logger.warning("the client handed out %d records twice, from %r on: once is enough", len(again), first)
        return [record for record in records if id(record) not in again]
