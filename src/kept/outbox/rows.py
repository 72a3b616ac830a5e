"""The rows of a journal as they stand on the disk: a record in one piece, the state, and a checksum of each. Pure.

A checksum begins with the identity of the journal, the kind of the row and its position, so that a row found in the
ruins of a file is known to be ours, whole, and where it belongs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

from kept.outbox.backlog import Entry

RECORD, REFUSED, STATE = b"record", b"refused", b"state"
OVERHEAD = 32
"""Bytes that a row costs besides its body, for the bounds."""
_NO_VALUE = 0xFFFFFFFF
_HEAD = struct.Struct("<qq")
"""Tag, and the time at which it was written: the same for all records of one commit."""
_FIXED = struct.Struct("<qiHiiI")
"""Timestamp, partition, and the lengths of topic, key, value and headers; -1 is none."""
_LENGTHS = struct.Struct("<II")
HEAD = _HEAD.size
_BEGIN = HEAD + _FIXED.size
_NOT_A_ROW = (struct.error, TypeError, AttributeError, ValueError, IndexError)


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


def packed(
    topic: str, key: bytes | None, value: bytes | None, headers: bytes, partition: int | None, timestamp: int
) -> bytes:
    """A record in one piece, without its head, which is made when it is written."""
    name = topic.encode()
    lengths = (
        len(name),
        -1 if key is None else len(key),
        -1 if value is None else len(value),
        len(headers),
    )
    fixed = _FIXED.pack(timestamp, -1 if partition is None else partition, *lengths)
    return b"".join((fixed, name, key or b"", value or b"", headers))


def head(tag: int, written: int) -> bytes:
    return _HEAD.pack(tag, written)


def tag_of(body: bytes) -> int:
    return int(_HEAD.unpack_from(body)[0])


def written_of(body: bytes) -> int:
    """Milliseconds since 1970."""
    return int(_HEAD.unpack_from(body)[1])


def entry_of(position: int, body: bytes) -> Entry:
    """A record as its relay needs it."""
    timestamp, partition, topic, key, value, headers = _FIXED.unpack_from(body, HEAD)
    at = _BEGIN + topic
    name = body[_BEGIN:at].decode()
    after_key = at + key if key > 0 else at
    after_value = after_key + value if value > 0 else after_key
    fields = (
        position,
        name,
        None if key < 0 else body[at:after_key],
        None if value < 0 else body[after_key:after_value],
        unpack_headers(body[after_value:]) if headers else [],
        None if partition < 0 else partition,
        timestamp,
        _HEAD.unpack_from(body)[0],
    )
    return tuple.__new__(Entry, fields)  # done for every record: half the time of a call with arguments


def checksum(start: int, position: int, body: bytes) -> int:
    return crc32(body, (start + position) & 0xFFFFFFFF)


def is_whole(row: Sequence[Any], start: int) -> bool:
    """Whether every byte of a record (position, body, checksum) is as it was written; strange types are not."""
    try:
        return bool(checksum(start, row[0], row[1]) == row[2])
    except _NOT_A_ROW:
        return False


def refused_row(position: int, body: bytes, reason: str, refused: int, start: int) -> tuple[object, ...]:
    """The row of a refused record: position, body, a checksum over everything, the reason, and when."""
    return position, body, _refused_sum(position, body, reason, refused, start), reason, refused


def is_whole_refused(row: Sequence[Any], start: int) -> bool:
    """The same as `is_whole`, for a refused record."""
    try:
        return bool(_refused_sum(row[0], row[1], row[3], row[4], start) == row[2])
    except _NOT_A_ROW:
        return False


def _refused_sum(position: int, body: bytes, reason: str, refused: int, start: int) -> int:
    return crc32(f"{reason}\0{refused}".encode(), checksum(start, position, body))


def pack_headers(headers: Sequence[tuple[str, str | bytes | None]]) -> bytes:
    """Each header's lengths, name and value; no value at all is told from an empty one."""
    parts: list[bytes] = []
    for name, value in headers:
        encoded = name.encode()
        content = value.encode() if isinstance(value, str) else value
        lengths = _LENGTHS.pack(len(encoded), _NO_VALUE if content is None else len(content))
        parts += [lengths, encoded, content or b""]
    return b"".join(parts)


def unpack_headers(packed: bytes) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(packed):
        name, value = _LENGTHS.unpack_from(packed, at)
        at += _LENGTHS.size
        text = packed[at : at + name].decode()
        at += name
        if value == _NO_VALUE:
            headers.append((text, None))
        else:
            headers.append((text, packed[at : at + value]))
            at += value
    return headers
