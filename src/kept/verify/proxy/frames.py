"""A frame: one whole message on its way through the proxy, and what cuts a stream of bytes into such."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

# What a frame is, as rules name it: an Api of Kafka (or its bare number), a Command of Postgres (or its text).
Kind = int | str
LARGEST = 100 << 20  # what a Kafka broker takes (socket.request.max.bytes): the bound of a connection's memory


class Direction(Enum):
    """Which way a frame goes."""

    REQUEST = "request"  # from the client to the server
    RESPONSE = "response"  # from the server to the client


@dataclass(frozen=True)
class Frame:
    """One message with its very bytes; without a kind it is nothing that a rule could name."""

    direction: Direction
    data: bytes
    kind: Kind | None = None
    number: int | None = None  # the correlation id, where the protocol has one
    client: str | None = None
    version: int | None = None  # of the api, as the client speaks it
    wanted: bool = True  # False: an answer to something that the client asked only once, or not at all


class NotUnderstood(Exception):
    """These bytes are not the protocol that the proxy was told to expect."""


class Conversation(Protocol):
    """What one connection's bytes mean; knows the protocol and does no I/O."""

    def cut(self, direction: Direction, data: bytes) -> list[Frame]:
        """The frames that are whole now that these bytes arrived."""

    def rest(self, direction: Direction) -> bytes:
        """The beginning of a frame that has no end yet."""

    def forwarded(self, request: Frame, *, wanted: bool = True) -> None:
        """A request went to the server: its response may come now."""
