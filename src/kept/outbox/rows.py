"""The rows of a journal as they stand on the disk: content, state, and a checksum over every byte of both. Pure.

A checksum begins with the journal's identity and the kind of the row, so that a row which was found in the ruins of a
file is known to be ours, whole, and of which table.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

from kept.outbox.backlog import Entry

RECORD, REFUSED, STATE = b"record", b"refused", b"state"
NO_VALUE = 0xFFFFFFFF
OVERHEAD = 64
"""Bytes that a row costs besides its content, for the bounds."""
_FIXED = struct.Struct("<qqqqqqqqq")
_LENGTHS = struct.Struct("<II")


class Content(NamedTuple):
    """What a person gave, ready to be written."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: bytes
    partition: int | None
    timestamp: int

    @property
    def size(self) -> int:
        return OVERHEAD + len(self.topic) + len(self.key or b"") + len(self.value or b"") + len(self.headers)


class Row(NamedTuple):
    """A record in the journal; the columns of the tables `records` and, with a reason, `refused`."""

    position: int
    tag: int
    written: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: bytes
    partition: int | None
    timestamp: int
    size: int
    checksum: int

    def entry(self) -> Entry:
        headers = unpack_headers(self.headers) if self.headers else []
        return Entry(self.position, self.topic, self.key, self.value, headers, self.partition, self.timestamp, self.tag)


class State(NamedTuple):
    """The one row of the table `state`: who the journal is, how much it holds, how far its relays came."""

    identity: str
    born: int
    end: int = 0
    records: int = 0
    bytes: int = 0
    generation: int = 0
    owner: str = ""
    confirmed: int = 0
    confirmed_tag: int = 0
    attempted: int = 0
    salvaged: int = 0
    """Up to here, a record that is missing may have been lost with a damaged file."""

    def checksum(self) -> int:
        return crc32(repr(tuple(self)).encode(), seed(self.identity, STATE))


def seed(identity: str, kind: bytes) -> int:
    """What every checksum of one table of one journal begins with."""
    return crc32(kind + identity.encode())


def checksum(start: int, row: Sequence[Any]) -> int:
    """Over the content of a row and the length of each part: `row` is a `Row`, with or without its checksum."""
    position, tag, written, topic, key, value, headers, partition, timestamp, size, *_ = row
    fixed = _FIXED.pack(
        position,
        tag,
        written,
        -1 if partition is None else partition,
        timestamp,
        size,
        -1 if key is None else len(key),
        -1 if value is None else len(value),
        len(headers),
    )
    return crc32(b"".join((fixed, topic.encode(), key or b"", value or b"", headers)), start)


def sealed(content: Content, position: int, tag: int, written: int, start: int) -> tuple[object, ...]:
    """The row for a record, with its checksum: a plain tuple, since one is made for every record."""
    topic, key, value, headers, partition, timestamp = content
    row = (position, tag, written, topic, key, value, headers, partition, timestamp, content.size)
    return (*row, checksum(start, row))


def is_whole(row: Sequence[Any], start: int) -> bool:
    """Whether every byte of a row is as it was written; columns of strange types are not."""
    try:
        return bool(checksum(start, row) == row[10])
    except (struct.error, TypeError, AttributeError, ValueError, IndexError):
        return False


def refused_row(row: Sequence[Any], reason: str, refused: int, start: int) -> tuple[object, ...]:
    """The row of a refused record: its content, a checksum over content, reason and time, and both."""
    return (*row[:10], _refused_sum(row, reason, refused, start), reason, refused)


def is_whole_refused(row: Sequence[Any], start: int) -> bool:
    """The same as `is_whole`, for a refused record."""
    try:
        return bool(_refused_sum(row, row[11], row[12], start) == row[10])
    except (struct.error, TypeError, AttributeError, ValueError, IndexError):
        return False


def _refused_sum(row: Sequence[Any], reason: str, refused: int, start: int) -> int:
    return crc32(f"{reason}\0{refused}".encode(), checksum(start, row))


def pack_headers(headers: Sequence[tuple[str, str | bytes | None]]) -> bytes:
    """Each header's lengths, name and value; no value at all is told from an empty one."""
    parts: list[bytes] = []
    for name, value in headers:
        encoded = name.encode()
        content = value.encode() if isinstance(value, str) else value
        parts += [
            _LENGTHS.pack(len(encoded), NO_VALUE if content is None else len(content)),
            encoded,
            content or b"",
        ]
    return b"".join(parts)


def unpack_headers(packed: bytes) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(packed):
        name, value = _LENGTHS.unpack_from(packed, at)
        at += _LENGTHS.size
        text = packed[at : at + name].decode()
        at += name
        if value == NO_VALUE:
            headers.append((text, None))
        else:
            headers.append((text, packed[at : at + value]))
            at += value
    return headers
