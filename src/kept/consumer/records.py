"""A record as it is in the log, seen through the client's own message: nothing is copied until it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from confluent_kafka import Message

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
Place: TypeAlias = tuple[str, int]
"""A source partition: topic and number."""


class Record(tuple[Message, "bytes | None"]):
    """One record: where it stands, and what it holds.

    A tuple of the client's message and its value, because tuples are made and read without a Python call each.
    """

    __slots__ = ()

    def __new__(cls, message: Message) -> Record:
        return tuple.__new__(cls, (message, message.value()))

    if TYPE_CHECKING:

        @property
        def value(self) -> bytes | None: ...

    else:
        value = property(itemgetter(1))

    @property
    def topic(self) -> str:
        return self[0].topic()  # type: ignore[return-value]

    @property
    def partition(self) -> int:
        return self[0].partition()  # type: ignore[return-value]

    @property
    def offset(self) -> int:
        return self[0].offset()  # type: ignore[return-value]

    @property
    def place(self) -> Place:
        """The source partition that it comes from."""
        return self[0].topic(), self[0].partition()  # type: ignore[return-value]

    @property
    def leader_epoch(self) -> int:
        """Under which leader it was written; -1 where the broker does not say."""
        epoch = self[0].leader_epoch()
        return -1 if epoch is None else epoch

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970, as the topic keeps them (creation or append time)."""
        return self[0].timestamp()[1]

    @property
    def key(self) -> bytes | None:
        return self[0].key()

    @property
    def headers(self) -> Headers:
        found = self[0].headers() or []
        pairs = found.items() if isinstance(found, dict) else found
        return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)

    def header(self, name: str) -> bytes | None:
        """The first header of this name that has a value."""
        for found, value in self[0].headers() or ():  # type: ignore[str-unpack]
            if found == name and value is not None:
                return value.encode() if isinstance(value, str) else value
        return None

    def __repr__(self) -> str:
        return f"<Record {self.topic}[{self.partition}]@{self.offset}>"


_message_of = itemgetter(0)


def records_of(messages: Sequence[Message]) -> list[Record]:
    """A record for each message."""
    pairs = zip(messages, map(Message.value, messages), strict=True)
    return list(map(tuple.__new__, repeat(Record), pairs))


def last_of_each(records: Sequence[Record]) -> dict[Place, Record]:
    """The last record of each partition; records of one partition come in their order."""
    messages = list(map(_message_of, records))
    topics = set(map(Message.topic, messages))
    if len(topics) == 1:  # by number alone, in half the time
        (topic,) = topics
        by_number = dict(zip(map(Message.partition, messages), records, strict=True))
        return {(topic, number): record for number, record in by_number.items()}  # type: ignore[misc]
    places = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
    return dict(zip(places, records, strict=True))  # type: ignore[arg-type]
