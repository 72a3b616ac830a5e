"""A record as it is in the log, seen through the client's own message: nothing is copied until it is asked for."""

from __future__ import annotations

from typing import TypeAlias

from confluent_kafka import Message

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
Place: TypeAlias = tuple[str, int]
"""A source partition: topic and number."""


class Record:
    """One record: where it stands, and what it holds."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    @property
    def topic(self) -> str:
        return self._message.topic()  # type: ignore[return-value]

    @property
    def partition(self) -> int:
        return self._message.partition()  # type: ignore[return-value]

    @property
    def offset(self) -> int:
        return self._message.offset()  # type: ignore[return-value]

    @property
    def place(self) -> Place:
        """The source partition that it comes from."""
        return self._message.topic(), self._message.partition()  # type: ignore[return-value]

    @property
    def leader_epoch(self) -> int:
        """Under which leader it was written; -1 where the broker does not say."""
        epoch = self._message.leader_epoch()
        return -1 if epoch is None else epoch

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970, as the topic keeps them (creation or append time)."""
        return self._message.timestamp()[1]

    @property
    def key(self) -> bytes | None:
        return self._message.key()

    @property
    def value(self) -> bytes | None:
        return self._message.value()

    @property
    def headers(self) -> Headers:
        found = self._message.headers() or []
        pairs = found.items() if isinstance(found, dict) else found
        return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)

    def header(self, name: str) -> bytes | None:
        """The first header of this name that has a value."""
        for found, value in self._message.headers() or ():  # type: ignore[str-unpack]
            if found == name and value is not None:
                return value.encode() if isinstance(value, str) else value
        return None

    def __repr__(self) -> str:
        return f"<Record {self.topic}[{self.partition}]@{self.offset}>"
