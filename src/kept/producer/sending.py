"""The producer: one guarantee, asynchronous sends with a handle each, and transactions that are whole or absent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from kept.errors import FixConfiguration, KeptError, NotPersisted, OutcomeUnknown, TransactionAborted
from kept.guarantees import AtMostOnce, ExactlyOnce, Guarantee, merge, producer_settings
from kept.producer.book import Book
from kept.producer.clients import make_client
from kept.producer.delivery import Delivery
from kept.producer.fates import error_of
from kept.producer.transactions import Transactions

ROOM_WITHIN = 60.0
ANY_PARTITION = -1
Headers = Mapping[str, str | bytes | None] | list[tuple[str, str | bytes | None]]


class Producer:
    """Sends records under a guarantee; settings that weaken it are refused.

    What a producer alone cannot promise, under any guarantee: that an application which restarts does
    not send again what it had sent. That takes a source position or the outbox.
    """

    def __init__(self, bootstrap: str, guarantee: Guarantee, **overrides: object) -> None:
        self.guarantee = guarantee
        self._settings = {
            "log_level": 0,
            **merge(producer_settings(guarantee), overrides),
            "bootstrap.servers": bootstrap,
        }
        self._book = Book()
        client = make_client(self._settings)  # under exactly-once only to see that the settings hold
        self._client = None if isinstance(guarantee, ExactlyOnce) else client
        self._transactions: Transactions | None = None

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Hand one record over; a full buffer is waited for, up to a minute, and never drops anything.

        The handle tells the record's fate, a refusal too. Inside a transaction a refusal is raised at once.
        """
        client = self._client
        if client is None:
            raise FixConfiguration(
                "under exactly-once a record is sent inside a transaction, and none is open",
                way_out="write `with producer.transaction():` around it",
            )
        may_be_resent = not isinstance(self.guarantee, AtMostOnce)
        delivery = Delivery(topic, partial(_serve, client), self._book, may_be_resent=may_be_resent)
        produce = partial(
            client.produce,
            topic,
            value,
            key,
            partition=ANY_PARTITION if partition is None else partition,
            timestamp=timestamp or 0,
            headers=list(headers.items()) if isinstance(headers, Mapping) else headers,
            on_delivery=delivery.report,
        )
        deadline = time.monotonic() + ROOM_WITHIN
        while True:
            try:
                produce()
            except BufferError:
                if time.monotonic() > deadline:
                    raise _no_room(topic) from None
                _serve(client, 0.05)
            except KafkaException as failure:
                if isinstance(self.guarantee, ExactlyOnce):
                    raise _not_whole(failure.args[0], topic) from failure
                delivery.refused(failure.args[0])
                return delivery
            else:
                _serve(client, 0)
                return delivery

    @contextmanager
    def transaction(self, *, within: float = 60.0) -> Iterator[None]:
        """All or nothing, across topics and partitions: commits when the block is left, aborts when it raises."""
        if not isinstance(self.guarantee, ExactlyOnce):
            raise FixConfiguration(
                f"{self.guarantee.word} has no transactions", way_out="choose kept.ExactlyOnce('a-name')"
            )
        if self._client is not None:
            raise FixConfiguration("a transaction is open already", way_out="leave it before you begin another")
        if self._transactions is None:
            self._transactions = Transactions(self._settings)
        transaction = self._transactions.open(within)
        self._client, self._book = transaction.client, Book()
        try:
            try:
                yield
            except BaseException:
                if not transaction.abort(within):
                    self._transactions.refuse_if_succeeded(within)
                raise
            transaction.commit(within)
        except TransactionAborted as aborted:
            if self._book.refusal is not None and not self._book.refusal.retriable:
                raise self._book.refusal from aborted  # begun again it would meet the same record
            raise
        finally:
            self._client, self._book = None, Book()  # what failed in it was told by its end

    def flush(self, timeout: float = 60.0) -> int:
        """Wait until nothing is under way; how many records still are when the time is over."""
        deadline = time.monotonic() + timeout
        left = 0 if self._client is None else 1
        while self._client is not None and left and time.monotonic() < deadline:
            left = int(self._client.flush(0.1))  # in slices, so that Ctrl-C gets through
        return left

    def close(self, timeout: float = 60.0) -> None:
        """Flush, and say so when records are left under way, or failed without anybody having asked."""
        left = self._let_go(timeout)
        if left:
            raise OutcomeUnknown(
                f"{left} records were still under way after {timeout:.0f} s",
                way_out="close with a longer time-out while the brokers are away",
            )
        if complaint := self._book.complaint():
            raise complaint

    def _let_go(self, timeout: float) -> int:
        """End what runs in the background, and flush; how many records are still under way."""
        if self._transactions is not None:
            self._transactions.close()
        return self.flush(timeout)

    def forget(self) -> None:
        """Leave nothing of an exactly-once name behind in the cluster, when no process will ever use it again."""
        if self._transactions is not None:
            self._transactions.forget()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._let_go(60.0)  # what broke the block is told; it is not hidden by what was left


def _serve(client: Client, timeout: float) -> None:
    """Bring in reports. A client that was fenced raises here too; its records and its commit tell the same better."""
    with suppress(KafkaException):
        client.poll(timeout)


def _not_whole(error: KafkaError, topic: str) -> KeptError:
    """A transaction without one of its records is not whole: the block is left by this error, and aborted."""
    if error.code() == KafkaError._STATE:
        return TransactionAborted(
            f"the transaction cannot go on: {error.str()}", way_out="run the block again: nothing of it is visible"
        )
    return error_of(error, topic, may_have_been_resent=False)


def _no_room(topic: str) -> NotPersisted:
    return NotPersisted(
        f"the buffer stayed full for {ROOM_WITHIN:.0f} s: the brokers take nothing for {topic}",
        way_out="send it again later; queue.buffering.max.messages and .kbytes set the buffer's size",
        retriable=True,
    )
