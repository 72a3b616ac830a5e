"""The handle of one record on its way: what became of it, once that is known."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import KafkaError, Message

from kept.errors import KeptError, OutcomeUnknown
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

    __slots__ = ("_fate", "_resent", "_serve", "topic")

    def __init__(self, topic: str, serve: Serves, *, may_be_resent: bool) -> None:
        self.topic = topic
        self._serve = serve
        self._resent = may_be_resent
        self._fate: Receipt | KeptError | None = None

    def done(self) -> bool:
        return self._fate is not None

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the fate; a record still under way after `timeout` has no known fate yet."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._fate is None:
            left = 0.1 if deadline is None else min(0.1, deadline - time.monotonic())
            if left <= 0:
                raise OutcomeUnknown(
                    f"the record for {self.topic} is still under way after {timeout} s",
                    way_out="ask again: result() may be called as often as you like",
                )
            self._serve(left)
        if isinstance(self._fate, KeptError):
            raise self._fate
        return self._fate

    def refused(self, error: KafkaError) -> None:
        """The client did not even take it."""
        self._fate = error_of(error, self.topic, may_have_been_resent=False)

    def report(self, error: KafkaError | None, message: Message) -> None:
        """What the client calls when it knows."""
        if error is not None:
            self._fate = error_of(error, self.topic, may_have_been_resent=self._resent)
            return
        partition, offset = message.partition(), message.offset()
        self._fate = Receipt(
            self.topic,
            -1 if partition is None else partition,
            -1 if offset is None else offset,
            message.timestamp()[1],
        )
