"""Kafka's frames: a length, then for a request its api, version, correlation id and client; for a response the id."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

from kept.verify.proxy.apis import Api
from kept.verify.proxy.frames import LARGEST, Direction, Frame, NotUnderstood

LENGTH = struct.Struct(">i")
REQUEST_HEADER = struct.Struct(">ihhih")  # length, api key, api version, correlation id, length of the client id
RESPONSE_HEADER = struct.Struct(">ii")  # length, correlation id
# Requests without a response (Produce with acks=0) are never taken off the list, so the list has an end.
MOST_ASKED = 4096


class Cutter:
    """Collects bytes until a frame is whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def rest(self) -> bytes:
        return bytes(self._buffer)

    def cut(self, data: bytes) -> list[bytes]:
        """The frames that these bytes complete, each with its length in front."""
        buffer = self._buffer
        buffer += data
        frames, start = [], 0
        while len(buffer) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, start)
            if not 4 <= length <= LARGEST:
                raise NotUnderstood(f"a Kafka frame of {length} bytes: this is not Kafka, or it is encrypted")
            end = start + LENGTH.size + length
            if len(buffer) < end:
                break
            frames.append(bytes(memoryview(buffer)[start:end]))
            start = end
        del buffer[:start]
        return frames


@dataclass(frozen=True)
class Asked:
    """A request that the broker has and may answer."""

    number: int
    kind: int
    client: str | None
    version: int | None
    wanted: bool


class KafkaConversation:
    """One connection of a Kafka client: names each response by the request that it answers."""

    def __init__(self) -> None:
        self._cutters = {direction: Cutter() for direction in Direction}
        self._asked: deque[Asked] = deque(maxlen=MOST_ASKED)

    def cut(self, direction: Direction, data: bytes) -> list[Frame]:
        read = _request if direction is Direction.REQUEST else self._response
        return [read(frame) for frame in self._cutters[direction].cut(data)]

    def rest(self, direction: Direction) -> bytes:
        return self._cutters[direction].rest

    def forwarded(self, request: Frame, *, wanted: bool = True) -> None:
        if request.number is not None and isinstance(request.kind, int):
            self._asked.append(Asked(request.number, request.kind, request.client, request.version, wanted))

    def _response(self, data: bytes) -> Frame:
        """A broker answers in the order it was asked: what was skipped had no response (acks=0)."""
        (_, number) = RESPONSE_HEADER.unpack_from(data)
        if any(asked.number == number for asked in self._asked):
            while (asked := self._asked.popleft()).number != number:
                pass
            return Frame(Direction.RESPONSE, data, asked.kind, number, asked.client, asked.version, asked.wanted)
        return Frame(Direction.RESPONSE, data, None, number)


def _request(data: bytes) -> Frame:
    if len(data) < REQUEST_HEADER.size:
        raise NotUnderstood(f"a Kafka request of {len(data)} bytes: too short for its header")
    (_, key, version, number, size) = REQUEST_HEADER.unpack_from(data)
    client = data[REQUEST_HEADER.size : REQUEST_HEADER.size + size].decode(errors="replace") if size >= 0 else None
    return Frame(Direction.REQUEST, data, Api.of(key), number, client, version)
