"""The producer: one guarantee, asynchronous sends with a handle each, and transactions that are whole or absent."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from confluent_kafka import KafkaError, KafkaException

from kept.errors import FixConfiguration, KeptError, OutcomeUnknown, TransactionAborted
from kept.guarantees import AtMostOnce, ExactlyOnce, Guarantee, merge, producer_settings
from kept.producer.book import Book
from kept.producer.clients import make_client
from kept.producer.delivery import Delivery
from kept.producer.fates import NoRoom, error_of, would_end_the_same
from kept.producer.inside import TransactionRoute, fate_of, left_by
from kept.producer.joining import Joining
from kept.producer.redoing import Content
from kept.producer.routes import ClientRoute
from kept.producer.stamping import HeaderList, Headers, Text, chosen, stamped
from kept.producer.transactions import Transactions

ANY_PARTITION = -1
_TEXT = (bytes, str, type(None))


class Producer:
    """Sends records under a guarantee; settings that weaken it are refused.

    `stamp` gives every record an idempotency key, in a header and in a JSON object also as a field: "uuid" tells
    two sendings apart, "content" gives the same content the same key, a function of topic, key and value decides
    by itself. A record that bears a key already keeps it.

    What a producer alone cannot promise, under any guarantee: that an application which restarts does not send
    again what it had sent. Exactly-once keeps this process from repeating a record; whether a record was sent by
    the process before it, only a source position or the outbox knows, or a reader that looks at the stamp.
    """

    room_within = 60.0
    """Seconds that `send` waits for while the buffer is full; with 0 it raises at once, for whoever waits elsewhere."""

    def __init__(self, bootstrap: str, guarantee: Guarantee, *, stamp: object = None, **overrides: object) -> None:
        # `stamp` is typed as loosely as the overrides beside it: otherwise `**settings` would not pass a type checker.
        self.guarantee = guarantee
        self._stamp = chosen(stamp)
        self._settings = {
            "log_level": 0,
            **merge(producer_settings(guarantee), overrides),
            "bootstrap.servers": bootstrap,
        }
        client = make_client(self._settings)  # under exactly-once only to see that the settings hold
        self._joining = Joining(lambda: Transactions(self._settings))
        self._book = self._joining.book
        self._route: ClientRoute | None = None
        if not isinstance(guarantee, ExactlyOnce):
            self._route = ClientRoute(client, self._book, may_be_resent=not isinstance(guarantee, AtMostOnce))

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        idempotency_key: uuid.UUID | str | None = None,
    ) -> Delivery:
        """Hand one record over; a full buffer is waited for, up to a minute, and never drops anything.

        The handle tells the record's fate, a refusal too. Inside a transaction a refusal is raised at once.

        Under exactly-once, outside a transaction, the record joins one that the producer opens and commits by
        itself, a tenth of a second later or when somebody asks for a result. Its receipt is given when that commit
        is known. A transaction that was aborted is redone in order, so each record sent is there once; records
        sent one after the other may be committed apart. Where several belong together, write
        `with producer.transaction():`. Only what has a receipt, or was flushed, outlives this process; what it
        sends again after a restart is there again.
        """
        if headers is not None:
            headers = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
        if self._stamp is not None or idempotency_key is not None:
            value, headers = stamped(self._stamp, idempotency_key, topic, key, value, headers or [])
        number = ANY_PARTITION if partition is None else partition
        route = self._route
        if route is None:
            return self._join(topic, value, key, number, timestamp, headers)
        delivery = route.handle(topic, route)
        try:
            if headers is None and timestamp is None:
                route.produce(topic, value, key, number, delivery)
            else:
                route.produce(topic, value, key, number, delivery, timestamp=timestamp or 0, headers=headers)
        except (BufferError, KafkaException) as failure:
            self._not_taken(failure, route, delivery, (value, key, number, timestamp or 0, headers))
        route.until_reports -= 1
        if route.until_reports <= 0:
            route.bring_in_reports()
        return delivery

    def _join(
        self, topic: str, value: Text, key: Text, partition: int, timestamp: int | None, headers: HeaderList | None
    ) -> Delivery:
        """Without a transaction, under exactly-once; its time is that of the call, however often it is sent."""
        if not isinstance(value, _TEXT) or not isinstance(key, _TEXT):
            raise TypeError(f"value and key are bytes, str or None, not {type(value).__name__}, {type(key).__name__}")
        time_of_call = int(time.time() * 1000) if timestamp is None else timestamp
        return self._joining.join(topic, (value, key, partition, time_of_call, headers), self.room_within)

    def _not_taken(self, failure: Exception, route: ClientRoute, delivery: Delivery, content: Content) -> None:
        """The client did not take a record: a full buffer is waited for, anything else is told."""
        deadline = time.monotonic() + self.room_within
        value, key, partition, timestamp, headers = content
        while isinstance(failure, BufferError):
            if time.monotonic() >= deadline:
                raise NoRoom(
                    f"the buffer stayed full, and the brokers take nothing for {delivery.topic}",
                    self.room_within,
                    way_out="send it again later; queue.buffering.max.messages and .kbytes set the buffer's size",
                ) from None
            route.serve(0.05)
            try:
                route.produce(delivery.topic, value, key, partition, delivery, timestamp=timestamp, headers=headers)
            except (BufferError, KafkaException) as again:
                failure = again
            else:
                return
        if isinstance(self.guarantee, ExactlyOnce):
            raise _not_whole(failure.args[0], delivery.topic) from failure
        delivery.refused(failure.args[0])

    @contextmanager
    def transaction(self, *, within: float = 60.0) -> Iterator[None]:
        """All or nothing, across topics and partitions: commits when the block is left, aborts when it raises.

        What was sent before it is committed before it. While it is open, everything that this producer sends, from
        any thread, belongs to it. Its handles tell their fate when it has ended, and not inside the block.
        """
        if not isinstance(self.guarantee, ExactlyOnce):
            raise FixConfiguration(
                f"{self.guarantee.word} has no transactions", way_out="choose kept.ExactlyOnce('a-name')"
            )
        with self._joining.alone(within) as transactions:
            transaction = transactions.open(within)
            book = Book()  # what fails in it is told by its end
            self._route = route = TransactionRoute(transaction.client, book)
            fate: KeptError | None = None
            try:
                try:
                    yield
                except BaseException as error:
                    fate = left_by(error)
                    if not transaction.abort(within):
                        transactions.refuse_if_succeeded(within)
                    raise
                try:
                    transaction.commit(within)
                except BaseException as error:
                    fate = None if transaction.committed else fate_of(error)
                    raise
            except TransactionAborted as aborted:
                raise would_end_the_same(aborted, book.refusal) or aborted from aborted.__cause__
            finally:
                self._route = None
                route.ended(fate)

    def make_room(self, timeout: float) -> None:
        """Wait until some of what was sent has gone, at most so long."""
        route = self._route
        if route is None:
            self._joining.make_room(timeout)
        else:
            route.serve(timeout)

    def flush(self, timeout: float = 60.0) -> int:
        """Wait until nothing is under way; how many records still are when the time is over."""
        return (self._route or self._joining).flush(timeout)

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
        """Flush, and end what runs in the background; how many records are still under way."""
        if isinstance(self.guarantee, ExactlyOnce):
            return self._joining.close(timeout)
        if self._route is not None:
            self._route.close()
        return self.flush(timeout)

    def forget(self) -> None:
        """Leave nothing of an exactly-once name behind in the cluster, when no process will ever use it again."""
        if isinstance(self.guarantee, ExactlyOnce):
            self.flush()
            self._joining.forget()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._let_go(60.0)  # what broke the block is told; it is not hidden by what was left


def _not_whole(error: KafkaError, topic: str) -> KeptError:
    """A transaction without one of its records is not whole: the block is left by this error, and aborted."""
    if error.code() == KafkaError._STATE:
        return TransactionAborted(
            f"the transaction cannot go on: {error.str()}", way_out="run the block again: nothing of it is visible"
        )
    return error_of(error, topic, may_have_been_resent=False)
