"""The raw bytes of a SQLite file: what can still be read when SQLite itself refuses, or would silently leave out.

SQLite reads a write-ahead log up to its first bad frame and drops the rest without a word, although commits may stand
behind it. So the log is looked at here, before SQLite sees it; and the rows of a damaged file are gathered by page.
Only the format matters here; whether a row is ours and whole, its checksum tells. (www.sqlite.org/fileformat.html)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Fetch: TypeAlias = Callable[[int], bytes]
"""Gives a page by its number; an empty one where there is none."""
Cell: TypeAlias = tuple[int, list[object]]
"""A row's id and its columns."""

MAGIC = b"SQLite format 3\0"
PAGE = 4096
"""Journals are made with this page size; a damaged header is not asked for it."""
_LEAF = 0x0D
_LOG_HEADER, _FRAME_HEADER = 32, 24
_FRAME = _FRAME_HEADER + PAGE
_LITTLE, _BIG = 0x377F0682, 0x377F0683
_UNREADABLE = (struct.error, IndexError, ValueError, UnicodeDecodeError)


@dataclass
class Log:
    """A write-ahead log: by page number, where in the file the newest content of the page stands."""

    seen: dict[int, int] = field(default_factory=dict)
    """Of every transaction that SQLite would see."""
    beyond: dict[int, int] = field(default_factory=dict)
    """Of transactions that end behind a bad frame, and that SQLite would leave out."""


def read_log(data: bytes) -> Log:
    """Look through a write-ahead log as SQLite would, and then on, past the first bad frame."""
    log = Log()
    if len(data) < _LOG_HEADER + _FRAME:
        return log
    magic, *_, salt1, salt2, sum1, sum2 = struct.unpack_from(">8I", data)
    order = "<" if magic == _LITTLE else ">"
    running = _summed(data[:24], order, (0, 0))
    sound = magic in (_LITTLE, _BIG) and running == (sum1, sum2)
    # The first frame always belongs to the present round of the log; frames of an earlier round have other salts.
    salts = (salt1, salt2) if sound else struct.unpack_from(">2I", data, _LOG_HEADER + 8)
    unfinished: dict[int, int] = {}
    for at in range(_LOG_HEADER, len(data) - _FRAME + 1, _FRAME):
        page, commits, salt1, salt2, sum1, sum2 = struct.unpack_from(">6I", data, at)
        content = at + _FRAME_HEADER
        if sound:
            running = _summed(data[at : at + 8], order, running)
            running = _summed(data[content : content + PAGE], order, running)
            sound = (salt1, salt2) == salts and running == (sum1, sum2)
        if (salt1, salt2) != salts:
            continue
        unfinished[page] = content
        if commits:
            (log.seen if sound else log.beyond).update(unfinished)
            unfinished = {}
    return log


def _summed(data: bytes, order: str, start: tuple[int, int]) -> tuple[int, int]:
    one, two = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return one, two


def cells(page: bytes, fetch: Fetch) -> Iterator[Cell]:
    """The rows of a table's leaf page that can be read; anything else has none."""
    if len(page) < PAGE or page[0] != _LEAF:
        return
    (count,) = struct.unpack_from(">H", page, 3)
    for number in range(min(count, PAGE // 4)):
        try:
            (at,) = struct.unpack_from(">H", page, 8 + 2 * number)
            yield _cell(page, at, fetch)
        except _UNREADABLE:
            continue


def _cell(page: bytes, at: int, fetch: Fetch) -> Cell:
    length, at = _number(page, at)
    row, at = _number(page, at)
    here = _kept_here(length)
    payload = page[at : at + here]
    if here < length:
        (following,) = struct.unpack_from(">I", page, at + here)
        payload += _overflowed(following, length - here, fetch)
    if len(payload) != length:
        raise ValueError("cut short")
    return row, _columns(payload)


def _kept_here(length: int) -> int:
    """How much of a row stands in its own page; the rest is in a chain of others."""
    if length <= PAGE - 35:
        return length
    least = (PAGE - 12) * 32 // 255 - 23
    here = least + (length - least) % (PAGE - 4)
    return here if here <= PAGE - 35 else least


def _overflowed(page: int, length: int, fetch: Fetch) -> bytes:
    parts: list[bytes] = []
    while length > 0:
        content = fetch(page)
        (page,) = struct.unpack_from(">I", content)
        parts.append(content[4 : 4 + length])
        length -= PAGE - 4
    return b"".join(parts)


def _columns(payload: bytes) -> list[object]:
    size, at = _number(payload, 0)
    body, columns = size, []
    while at < size:
        kind, at = _number(payload, at)
        value, body = _value(payload, kind, body)
        columns.append(value)
    return columns


_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


def _value(payload: bytes, kind: int, at: int) -> tuple[object, int]:
    if kind == 0:
        return None, at
    if kind in (8, 9):
        return kind - 8, at
    if kind in _INTEGER_BYTES:
        end = at + _INTEGER_BYTES[kind]
        return int.from_bytes(payload[at:end], "big", signed=True), end
    if kind < 12:
        raise ValueError("no such kind of value in our tables")
    end = at + (kind - 12) // 2
    if end > len(payload):
        raise ValueError("cut short")
    return (payload[at:end].decode() if kind % 2 else payload[at:end]), end


def _number(data: bytes, at: int) -> tuple[int, int]:
    """SQLite's number of one to nine bytes."""
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    value = value << 8 | data[at]
    return (value - (1 << 64) if value >> 63 else value), at + 1
