"""The rows of a journal as they stand on the disk: records in packs, the state, and a checksum of each. Pure.

Records that are written together stand together, some kilobytes in a row: to read or delete a row costs about the same
whether it holds one of them or a hundred. Their positions follow each other; the row has that of the last. A checksum
begins with the identity of the journal, the kind of the row and its position, so that a row found in the ruins of a
file is known to be ours, whole, and where it belongs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

from kept.outbox.backlog import Entry

RECORD, REFUSED, STATE = b"record", b"refused", b"state"
OVERHEAD = 32
"""Bytes that a record costs besides its content, for the bounds."""
PACK = 12 << 10
"""Bytes that a row holds, about: a bad page takes the whole row with it."""
_NO_VALUE = 0xFFFFFFFF
_HEAD = struct.Struct("<qqI")
"""Tag and time at which they were written, the same for all records of one commit; and how many there are."""
_FIXED = struct.Struct("<qiHiiI")
"""Timestamp, partition, and the lengths of topic, key, value and headers; -1 is none."""
_LENGTHS = struct.Struct("<II")
HEAD = _HEAD.size
RecordRow: TypeAlias = tuple[int, bytes, int]
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
    """A record in one piece; it says itself how long it is."""
    name = topic.encode()
    lengths = (
        len(name),
        -1 if key is None else len(key),
        -1 if value is None else len(value),
        len(headers),
    )
    fixed = _FIXED.pack(timestamp, -1 if partition is None else partition, *lengths)
    return b"".join((fixed, name, key or b"", value or b"", headers))


def packs(first: int, contents: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Records that follow each other from a position on, as rows: the last position of each, and what it holds."""
    begun = size = 0
    for number, content in enumerate(contents):
        size += len(content)
        if size >= PACK or number + 1 == len(contents):
            yield first + number, contents[begun : number + 1]
            begun, size = number + 1, 0


def pack(tag: int, written: int, contents: Sequence[bytes]) -> bytes:
    """The body of a row."""
    return b"".join((_HEAD.pack(tag, written, len(contents)), *contents))


def record_rows(start: int, head: tuple[int, int], first: int, contents: Sequence[bytes]) -> Iterator[RecordRow]:
    """The rows of records that follow each other from a position on: position, body and checksum of each.

    `start` is the seed of their checksums, `head` their tag and the time at which they were written."""
    for last, some in packs(first, contents):
        body = pack(*head, some)
        yield last, body, checksum(start, last, body)


def head_of(body: bytes) -> tuple[int, int]:
    """Tag and time."""
    tag, written, _ = _HEAD.unpack_from(body)
    return tag, written


def tag_of(body: bytes) -> int:
    return int(_HEAD.unpack_from(body)[0])


def written_of(body: bytes) -> int:
    """Milliseconds since 1970."""
    return int(_HEAD.unpack_from(body)[1])


def count_of(body: bytes) -> int:
    return int(_HEAD.unpack_from(body)[2])


def contents_of(last: int, body: bytes) -> dict[int, bytes]:
    """Each record of a row in one piece, by its position."""
    contents, at = {}, HEAD
    for position in range(last - count_of(body) + 1, last + 1):
        *_, topic, key, value, headers = _FIXED.unpack_from(body, at)
        end = at + _FIXED.size + topic + max(key, 0) + max(value, 0) + headers
        contents[position] = body[at:end]
        at = end
    return contents


def entries_of(last: int, body: bytes) -> list[Entry]:
    """The records of a row as their relay needs them. This is done for every record: it is written for speed."""
    tag, _, count = _HEAD.unpack_from(body)
    entries, at, fixed = [], HEAD, _FIXED.size
    for position in range(last - count + 1, last + 1):
        timestamp, partition, topic, key, value, headers = _FIXED.unpack_from(body, at)
        begin = at + fixed
        after_topic = begin + topic
        after_key = after_topic + key if key > 0 else after_topic
        after_value = after_key + value if value > 0 else after_key
        at = after_value + headers
        fields = (
            position,
            _name(body[begin:after_topic]),
            None if key < 0 else body[after_topic:after_key],
            None if value < 0 else body[after_key:after_value],
            unpack_headers(body[after_value:at]) if headers else (),
            None if partition < 0 else partition,
            timestamp,
            tag,
        )
        entries.append(tuple.__new__(Entry, fields))
    return entries


@lru_cache(1000)
def _name(topic: bytes) -> str:
    return topic.decode()


def checksum(start: int, position: int, body: bytes) -> int:
    return crc32(body, (start + position) & 0xFFFFFFFF)


def is_whole(row: Sequence[Any], start: int) -> bool:
    """Whether every byte of a row (position, body, checksum) is as it was written; strange types are not."""
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
