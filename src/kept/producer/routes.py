"""The way of a record through one client of librdkafka, and of its report back."""

from __future__ import annotations

from contextlib import suppress

from confluent_kafka import KafkaException
from confluent_kafka import Producer as Client

from kept.producer.book import Book
from kept.producer.delivery import Delivery

REPORTS_EVERY = 100
"""So many records are handed over before reports are brought in again: asking costs more than sending."""


class ClientRoute:
    """One client, and the book in which the failures of its records are written."""

    __slots__ = ("_until_reports", "book", "client", "may_be_resent", "produce")

    def __init__(self, client: Client, book: Book, *, may_be_resent: bool) -> None:
        self.client = client
        self.produce = client.produce
        self.book = book
        self.may_be_resent = may_be_resent
        self._until_reports = REPORTS_EVERY

    def bring_in(self, delivery: Delivery, timeout: float) -> None:  # noqa: ARG002 - all that arrived is brought in
        self.serve(timeout)

    def sent_one(self) -> None:
        """A record went out: now and then, reports are brought in."""
        self._until_reports -= 1
        if self._until_reports <= 0:
            self._until_reports = REPORTS_EVERY
            self.serve(0)

    def serve(self, timeout: float) -> None:
        """Bring in reports. A client that was fenced raises here; its records and its commit tell the same better."""
        with suppress(KafkaException):
            self.client.poll(timeout)
