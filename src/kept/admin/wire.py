"""Kafka's own bytes, for the few questions that the client library does not know; in plain text, to one broker each."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Collection
from enum import IntEnum
from typing import TypeVar

from kept.errors import TryAgain

ANSWERS_WITHIN = 15.0
LARGEST = 64 << 20
"""Bytes of an answer. What a listener for TLS sends back is taken for a far larger number."""
CLIENT = b"kept"
NUMBER = 1
Item = TypeVar("Item")


class Question(IntEnum):
    """Requests by Kafka's numbers; the version of each is 0."""

    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


class Unanswered(TryAgain):
    """The connection was closed, or what came is no answer: the broker goes down, or does not speak plain text here."""


class Answer:
    """The bytes of an answer, read from front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
        if self._at + size > len(self._data):
            raise Unanswered("the answer ends before its end", way_out="ask a broker of Kafka 3.0 or later")
        (found,) = struct.unpack_from(form, self._data, self._at)
        self._at += size
        return int(found)

    def short(self) -> int:
        return self.number(">h")

    def whole(self) -> int:
        return self.number(">i")

    def long(self) -> int:
        return self.number(">q")

    def varint(self) -> int:
        found, shift = 0, 0
        while True:
            byte = self.number(">B")
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7

    def text(self) -> str:
        """A compact string; one that is null is empty."""
        length = max(0, self.varint() - 1)
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def several(self, item: Callable[[], Item]) -> list[Item]:
        """A compact array."""
        return [item() for _ in range(max(0, self.varint() - 1))]

    def tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            size = self.varint()
            self._at += size


def asked(address: str, question: Question, body: bytes, *, flexible: bool = True) -> Answer:
    """The answer of the broker at HOST:PORT, behind its header. `flexible`: with compact strings, and tags."""
    header = struct.pack(">hhih", question, 0, NUMBER, len(CLIENT)) + CLIENT + b"\0" * flexible
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWERS_WITHIN) as there:
            there.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
            answer = Answer(_frame(there))
    except ConnectionRefusedError as error:
        raise _not_there(address, question, error) from error
    except ConnectionError as error:
        raise Unanswered(
            f"{address} does not answer {question.name}: {error}", way_out="see that it runs, and that it is its port"
        ) from error
    except (OSError, ValueError) as error:
        raise _not_there(address, question, error) from error
    answer.whole()
    if flexible:
        answer.tags()
    return answer


def _not_there(address: str, question: Question, error: Exception) -> TryAgain:
    return TryAgain(
        f"no broker answers {question.name} at {address}: {error}",
        way_out="check the address, and that the brokers run",
    )


def _frame(there: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", _exactly(there, 4))
    if not 0 <= length <= LARGEST:
        raise ConnectionError(f"an answer of {length} bytes is none")
    return _exactly(there, length)


def _exactly(there: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = there.recv(length - len(data))
        if not more:
            raise ConnectionError("the connection was closed")
        data += more
    return data


def text(words: str) -> bytes:
    """A string as requests have it that are not flexible."""
    return struct.pack(">h", len(words.encode())) + words.encode()


def compact(words: str) -> bytes:
    return _varint(len(words.encode()) + 1) + words.encode()


def several(items: Collection[bytes]) -> bytes:
    """A compact array."""
    return _varint(len(items) + 1) + b"".join(items)


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)
