"""The handle of one record on its way: what became of it, once that is known."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import KafkaError, Message

from kept.errors import KeptError, OutcomeUnknown
from kept.producer.book import Book
from kept.producer.fates import error_of


@dataclass(frozen=True)
class Receipt:
    """Where a persisted record is."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Serves(Protocol):
    """Whatever brings the answers in while somebody waits."""

    def __call__(self, timeout: float) -> object: ...


class Delivery:
    """One record under way. Three fates: a receipt, `NotPersisted`, or `OutcomeUnknown`."""

    __slots__ = ("_book", "_fate", "_heard", "_resent", "_serve", "topic")

    def __init__(self, topic: str, serve: Serves, book: Book, *, may_be_resent: bool) -> None:
        self.topic = topic
        self._serve: Serves | None = serve
        self._book = book
        self._resent = may_be_resent
        self._heard = False
        self._fate: Receipt | KeptError | None = None

    def done(self) -> bool:
        return self._fate is not None

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the fate; a record still under way after `timeout` has no known fate yet."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._fate is None:
            assert self._serve is not None  # noqa: S101 - let go of together with the fate
            left = 0.1 if deadline is None else min(0.1, deadline - time.monotonic())
            if left <= 0:
                raise OutcomeUnknown(
                    f"the record for {self.topic} is still under way after {timeout} s",
                    way_out="ask again: result() may be called as often as you like",
                )
            self._serve(left)
        if isinstance(self._fate, Receipt):
            return self._fate
        if not self._heard:
            self._heard = True
            self._book.heard()
        raise self._known_error()

    def _known_error(self) -> KeptError:
        assert isinstance(self._fate, KeptError)  # noqa: S101 - the loop above ends with a fate
        return self._fate

    def refused(self, error: KafkaError) -> None:
        """The client did not even take it."""
        self._fail(error_of(error, self.topic, may_have_been_resent=False))

    def report(self, error: KafkaError | None, message: Message) -> None:
        """What the client calls when it knows."""
        if error is not None:
            self._fail(error_of(error, self.topic, may_have_been_resent=self._resent))
            return
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None or offset < 0:
            self._settle(
                OutcomeUnknown(
                    f"nobody acknowledged the record for {self.topic}: it was sent with acks=0",
                    way_out="choose acks=1 or a stronger guarantee where the fate matters",
                )
            )
            self._heard = True  # it was asked for: closing does not complain of it
            return
        self._settle(Receipt(self.topic, partition, offset, message.timestamp()[1]))

    def _fail(self, error: KeptError) -> None:
        self._book.failed(error)
        self._settle(error)

    def _settle(self, fate: Receipt | KeptError) -> None:
        self._fate = fate
        self._serve = None  # a handle that is kept must not keep a client with its threads alive
