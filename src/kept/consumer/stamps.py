"""Records as the messages table takes them: the idempotency key of each, and its value."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TypeAlias, overload

import psycopg
from psycopg.pq import Format

from kept.consumer.records import Record
from kept.progress import keys

Pair: TypeAlias = tuple[uuid.UUID, bytes | None]
_UUID = psycopg.adapters.types["uuid"].oid
_parsed = psycopg.adapters.get_loader(_UUID, Format.TEXT)
if _parsed is None:
    raise ImportError("psycopg knows no uuid")
_load = _parsed(_UUID).load
"""psycopg's own, in C where it can be: uuid.UUID() takes longer over a stamp than all the rest over its record."""


class Stamped(Sequence[Pair]):
    """Keys and values, made when they are asked for: while Postgres works on some, the next are made.

    A record without a stamp is known by its place in the log.
    """

    def __init__(self, records: Sequence[Record], topic_ids: Mapping[str, str]) -> None:
        self._records = records
        self._topic_ids = topic_ids

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, at: int) -> Pair: ...
    @overload
    def __getitem__(self, at: slice) -> list[Pair]: ...
    def __getitem__(self, at: int | slice) -> Pair | list[Pair]:
        if isinstance(at, int):
            return self._pairs([self._records[at]])[0]
        return self._pairs(self._records[at])

    def _pairs(self, records: Sequence[Record]) -> list[Pair]:
        found = []
        for record in records:
            stamp, value = record.header(keys.NAME), record.value
            try:
                key = None if stamp is None else _load(stamp)
            except ValueError:
                key = None
            found.append((key or self._key(record, stamp), value))
        return found

    def _key(self, record: Record, stamp: bytes | None) -> uuid.UUID:
        """The key where the header does not tell it at once: unusual writing, a JSON field, or the place."""
        headers = [] if stamp is None else [(keys.NAME, stamp)]
        return keys.read(headers, record.value) or keys.of_position(
            self._topic_ids[record.topic], record.partition, record.offset
        )
