"""The way of a record through one client of librdkafka, and of its report back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import KafkaException
from confluent_kafka import Producer as Client

from kept.errors import FixConfiguration
from kept.producer.book import Book
from kept.producer.clients import flushed
from kept.producer.delivery import Delivery

REPORTS_EVERY = 100
"""So many records are handed over before reports are brought in again: asking costs more than sending."""


class ClientRoute:
    """One client, and the book in which the failures of its records are written."""

    __slots__ = ("book", "client", "handle", "may_be_resent", "produce", "until_reports")

    def __init__(self, client: Client, book: Book, *, may_be_resent: bool, handle: type[Delivery] = Delivery) -> None:
        self.client: Client | None = client
        self.produce: Callable[..., object] = client.produce
        self.handle = handle
        self.book = book
        self.may_be_resent = may_be_resent
        self.until_reports = REPORTS_EVERY  # counted down by whoever sends

    def close(self) -> None:
        """Take nothing more; what is under way may still be flushed."""
        self.produce = _produce_after_close

    def bring_in(self, delivery: Delivery, timeout: float) -> None:  # noqa: ARG002 - all that arrived is brought in
        self.serve(timeout)

    def bring_in_reports(self) -> None:
        """Enough went out since the last time."""
        self.until_reports = REPORTS_EVERY
        self.serve(0)

    def serve(self, timeout: float) -> None:
        """Bring in reports. A client that was fenced raises here; its records and its commit tell the same better."""
        if (client := self.client) is not None:
            with suppress(KafkaException):
                client.poll(timeout)

    def flush(self, timeout: float) -> int:
        """Wait so long for reports; how many are still missing."""
        return 0 if (client := self.client) is None else flushed(client, timeout)


def _produce_after_close(*_content: object, **_more: object) -> None:
    raise FixConfiguration("this producer was closed", way_out="make a new one")
