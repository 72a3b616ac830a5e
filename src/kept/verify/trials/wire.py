"""Questions that the client library does not know, asked of a broker by Kafka's own bytes: three, and no more."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeVar

from kept.errors import TryAgain
from kept.verify.proxy.apis import Api

ANSWERS_WITHIN = 15.0
CLIENT = b"kept-verify"
NUMBER = 1
ONGOING = "Ongoing"
Item = TypeVar("Item")


class Answer:
    """The bytes of an answer, read from front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
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


@dataclass(frozen=True)
class OpenTransaction:
    """Who keeps the readers of a partition from going on, and from where."""

    transactional_id: str
    producer_id: int
    first_offset: int


def delete_position(address: str, group: str, topic: str, partition: int) -> None:
    """Take away the position of a group on one partition, as expiry does. The address is its coordinator's."""
    body = _text(group) + struct.pack(">i", 1) + _text(topic) + struct.pack(">ii", 1, partition)
    answer = _asked(address, Api.OFFSET_DELETE, body, flexible=False)
    error = answer.short()
    if error:
        raise TryAgain(f"the position of {group} was not deleted: error {error} of Kafka's", way_out="run it again")


def open_transactions(leader: str, brokers: Collection[str], topic: str, partition: int) -> Iterator[OpenTransaction]:
    """Those that are open on a partition: its leader knows the producers, the coordinators know their names."""
    names = {number: name for broker in brokers for name, number in _ongoing(broker)}
    for producer, first in _producers(leader, topic, partition):
        if first >= 0:
            yield OpenTransaction(names.get(producer, ""), producer, first)


def _ongoing(broker: str) -> list[tuple[str, int]]:
    """The transactions that this broker coordinates: the name and the number of each one's producer."""
    answer = _asked(broker, Api.LIST_TRANSACTIONS, _several([_compact(ONGOING)]) + _several([]) + b"\0", flexible=True)
    answer.whole()
    answer.short()
    answer.several(answer.text)

    def transaction() -> tuple[str, int]:
        name, producer = answer.text(), answer.long()
        answer.text()
        answer.tags()
        return name, producer

    return answer.several(transaction)


def _producers(leader: str, topic: str, partition: int) -> list[tuple[int, int]]:
    """Who writes into a partition, and where its transaction begins: -1 for who has none."""
    body = _several([_compact(topic) + _several([struct.pack(">i", partition)]) + b"\0"]) + b"\0"
    answer = _asked(leader, Api.DESCRIBE_PRODUCERS, body, flexible=True)

    def producer() -> tuple[int, int]:
        number = answer.long()
        answer.whole()
        answer.whole()
        answer.long()
        answer.whole()
        first = answer.long()
        answer.tags()
        return number, first

    def part() -> list[tuple[int, int]]:
        answer.whole()
        answer.short()
        answer.text()
        found = answer.several(producer)
        answer.tags()
        return found

    def each() -> list[tuple[int, int]]:
        answer.text()
        found = [one for parts in answer.several(part) for one in parts]
        answer.tags()
        return found

    answer.whole()
    return [one for found in answer.several(each) for one in found]


def _asked(address: str, api: Api, body: bytes, *, flexible: bool) -> Answer:
    header = struct.pack(">hhi", api.value, 0, NUMBER) + struct.pack(">h", len(CLIENT)) + CLIENT + b"\0" * flexible
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), ANSWERS_WITHIN) as there:
            there.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
            (length,) = struct.unpack(">i", _exactly(there, 4))
            answer = Answer(_exactly(there, length))
    except OSError as error:
        raise TryAgain(f"{address} does not answer {api.name}: {error}", way_out="run it again") from error
    answer.whole()
    if flexible:
        answer.tags()
    return answer


def _exactly(there: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = there.recv(length - len(data))
        if not more:
            raise ConnectionError("the connection was closed")
        data += more
    return data


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _compact(text: str) -> bytes:
    return _varint(len(text.encode()) + 1) + text.encode()


def _several(items: Collection[bytes]) -> bytes:
    return _varint(len(items) + 1) + b"".join(items)


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)
