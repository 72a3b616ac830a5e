"""The handle of one record on its way: what became of it, once that is known."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from confluent_kafka import KafkaError, Message

from kept.errors import KeptError, OutcomeUnknown
from kept.producer.fates import error_of

if TYPE_CHECKING:
    from kept.producer.book import Book

Place: TypeAlias = tuple[int, int, int]
"""Partition, offset and timestamp: what a receipt is made of, once somebody asks for it."""


@dataclass(frozen=True)
class Receipt:
    """Where a persisted record is."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Route(Protocol):
    """Whatever carries records and brings in what became of them; many handles share one."""

    book: Book
    may_be_resent: bool

    def bring_in(self, delivery: Delivery, timeout: float) -> None:
        """Wait so long for the fate of a record; it may still be unknown afterwards."""


class Delivery:
    """One record under way. Its fate: a receipt, `NotPersisted`, `OutcomeUnknown`, or `Fenced`.

    It is itself what the client calls with its report, and keeps that report until somebody asks. There is one for
    every record, so it does next to nothing before.
    """

    # It is settled once it has no route: until then it has no fate. `_book`: failed, and unheard.
    __slots__ = ("_book", "_fate", "_route", "topic")
    _book: Book | None
    _fate: Message | Place | KeptError

    def __init__(self, topic: str, route: Route) -> None:
        self.topic = topic
        self._route: Route | None = route

    @property
    def settled(self) -> bool:
        """Whether the fate was brought in already."""
        return self._route is None

    @property
    def under_way(self) -> bool:
        """Whether the client still has it, as far as was brought in."""
        return self._route is not None

    def refuse_inside(self) -> None:
        """Raise where waiting would be in vain: inside the transaction whose end is the record's fate."""

    def done(self) -> bool:
        """Whether the fate is known; what has arrived is brought in, and nothing is waited for."""
        if (route := self._route) is not None:
            route.bring_in(self, 0)
        return self.settled

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the fate; a record still under way after `timeout` has no known fate yet.

        The fate of a record in a transaction of yours is known when that has ended: inside the block, asking raises.
        """
        self.refuse_inside()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.settled:
            left = 0.1 if deadline is None else min(0.1, deadline - time.monotonic())
            if left <= 0:
                raise OutcomeUnknown(
                    f"the record for {self.topic} is still under way after {timeout} s",
                    way_out="ask again: result() may be called as often as you like",
                )
            if (route := self._route) is not None:
                route.bring_in(self, left)
        if isinstance(self._fate, Message):
            self._fate = place_of(self._fate) or self.without_place()
        if isinstance(self._fate, tuple):
            return Receipt(self.topic, *self._fate)
        if (book := getattr(self, "_book", None)) is not None:
            book.heard()
            self._book = None
        raise self._fate

    def refused(self, error: KafkaError) -> None:
        """The client did not even take it."""
        self.fail(error_of(error, self.topic, may_have_been_resent=False))

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """What the client calls when it knows."""
        if error is None:
            self._fate = message
            self._route = None
        elif (route := self._route) is not None:
            self.fail(error_of(error, self.topic, may_have_been_resent=route.may_be_resent))

    def without_place(self) -> KeptError:
        """The fate of a record that was reported without a place; it was asked for: closing does not complain of it."""
        return OutcomeUnknown(
            f"nobody acknowledged the record for {self.topic}: it was sent with acks=0",
            way_out="choose acks=1 or a stronger guarantee where the fate matters",
        )

    def fail(self, error: KeptError) -> None:
        """It is not there, or nobody knows: closing tells of it unless somebody asks before."""
        route = self._route
        if route is not None:
            self._book = route.book
            route.book.failed(error)
            self.settle(error)

    def settle(self, fate: Message | KeptError) -> None:
        """The fate is known, and final."""
        self._fate = fate
        self._route = None  # last: others look here. And a handle that is kept must not keep a client alive


def without_place(topic: str) -> OutcomeUnknown:
    """The fate of a record that is there, nobody knows where."""
    return OutcomeUnknown(
        f"the record for {topic} was committed, but where it is was not reported",
        way_out="look for it in the topic; do not send it again",
    )


def place_of(message: Message) -> Place | None:
    """Where a record is; None when nobody acknowledged it."""
    partition, offset = message.partition(), message.offset()
    if partition is None or offset is None or offset < 0:
        return None
    return partition, offset, message.timestamp()[1]
