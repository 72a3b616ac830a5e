"""Carrying entries into Kafka: with the position in one transaction, or first the records and then the position.

Each carrier answers with the fate of what it was given. `RETRY` is always safe: exactly once because nothing of it is
visible, at least once because it may be there twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as Client

from kept.errors import KeptError, OutcomeUnknown, TransactionAborted, TryAgain
from kept.outbox.backlog import WITHOUT_A_MARK, Backlog, Entry
from kept.outbox.beginning import NO_TAG, Found, refuse_a_stranger, where_to_begin
from kept.producer.clients import make_client
from kept.producer.fates import is_refused_together, refused_alone
from kept.producer.marks import Mark, Reached
from kept.producer.transactions import Transaction, Transactions
from kept.progress.poison import Fate

OPENED_WITHIN = 10.0
"""Short, because whoever wants to end the relay waits for it; it is tried again."""
COMMITTED_WITHIN = 60.0
PAUSE = 0.1
LONG = 2.0
HoldUp: TypeAlias = Callable[[KeptError], None]
"""Told what holds the relay up: it waits a moment, or ends the relay if that was asked for (`Stopped`)."""
_TRANSACTION_IS_OVER = {KafkaError._STATE, KafkaError._FATAL, KafkaError._FENCED}


class Stopped(Exception):
    """The relay was told to end while it waited for brokers."""


class Carrier(Protocol):
    """Brings entries into Kafka under one guarantee."""

    why: str
    """Why the last entries were not written."""

    def begin(self) -> int:
        """Take over; the position after which to read."""

    def send(self, entries: Sequence[Entry]) -> Fate:
        """Write these together. `REFUSED`: because of one of them; alone, because of what it is."""

    def refresh(self) -> None:
        """Nothing was sent for long: renew what Kafka would forget."""

    def close(self) -> None:
        """End what runs in the background."""


class Reports:
    """What the client reports of records that failed; of those that did not it says nothing, which is quicker.

    The client holds this object, and nothing that holds the client.
    """

    def __init__(self) -> None:
        self.failure: KafkaError | None = None
        self.refusal: str | None = None

    def begin(self) -> None:
        self.failure = self.refusal = None

    def hear(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed(error, str(message.topic()))

    def failed(self, error: KafkaError, topic: str) -> None:
        """A refusal is about the record or its batch; a topic that is missing is `Destinations`' to judge."""
        self.failure = self.failure or error
        if is_refused_together(error):
            self.refusal = self.refusal or refused_alone(error, topic).what


class ExactlyOnceCarrier:
    """Records and the next position in one transaction, behind a fence, each on a client of its own."""

    def __init__(self, settings: Mapping[str, object], backlog: Backlog, hold_up: HoldUp) -> None:
        self.why = ""
        self._backlog = backlog
        self._hold_up = hold_up
        self._reports = Reports()
        quiet = {"delivery.report.only.error": True, "on_delivery": self._reports.hear}
        self._transactions = Transactions({**settings, **quiet})
        self._start = 0

    def begin(self) -> int:
        """Look before fencing, so that a relay of another journal is not disturbed. What counts is behind the fence."""
        backlog = self._backlog
        refuse_a_stranger(self._transactions.look(OPENED_WITHIN), backlog.name, backlog.identity)
        mine = self._transactions.claim(OPENED_WITHIN, backlog.standing().generation + 1, self._agreed)
        backlog.own(mine.generation)
        return self._start

    def _agreed(self, mark: Mark | None) -> Reached:
        backlog = self._backlog
        found = Found(backlog.name, backlog.identity, backlog.standing(), backlog.end(), backlog.knows)
        self._start = where_to_begin(mark, found)
        return Reached(backlog.identity, self._start, NO_TAG)

    def send(self, entries: Sequence[Entry]) -> Fate:
        self._reports.begin()
        reached = Reached(self._backlog.identity, entries[-1].position, entries[-1].tag) if entries else None
        transaction = self._transactions.open(OPENED_WITHIN, reached)
        try:
            taken = _hand_over(transaction.client, entries, self._reports)
        except BaseException:
            transaction.abort(OPENED_WITHIN)  # where it fails, the next fence ends it: it was never told to commit
            raise
        if not taken:
            transaction.abort(OPENED_WITHIN)
            return self._not_written("the client did not take them")
        try:
            self._commit(transaction)
        except TransactionAborted as aborted:
            return self._not_written(aborted.what)
        return Fate.WRITTEN

    def refresh(self) -> None:
        self.send(())

    def close(self) -> None:
        self._transactions.close()

    def _commit(self, transaction: Transaction) -> None:
        """An outcome that nobody could be asked about is asked for again, for as long as it takes."""
        try:
            transaction.commit(COMMITTED_WITHIN)
        except OutcomeUnknown as unknown:
            while isinstance(unknown.__cause__, TryAgain):
                self._hold_up(unknown)
                try:
                    if transaction.was_committed(OPENED_WITHIN):
                        return
                except OutcomeUnknown as still:
                    unknown = still
                else:
                    raise TransactionAborted("its commit never arrived", way_out="send it again") from unknown
            self._transactions.refuse_if_succeeded(OPENED_WITHIN)
            raise unknown from unknown.__cause__

    def _not_written(self, why: str) -> Fate:
        reports = self._reports
        self.why = reports.refusal or (why if reports.failure is None else reports.failure.str())
        return Fate.RETRY if reports.refusal is None else Fate.REFUSED


class AtLeastOnceCarrier:
    """The records first, then the position, which stands in the backlog alone. A crash in between repeats them."""

    def __init__(self, settings: Mapping[str, object], backlog: Backlog, hold_up: HoldUp) -> None:
        self.why = ""
        self._backlog = backlog
        self._hold_up = hold_up
        self._reports = Reports()
        quiet = {"delivery.report.only.error": True, "on_delivery": self._reports.hear}
        self._client = make_client({**settings, **quiet})

    def begin(self) -> int:
        standing = self._backlog.standing()
        self._backlog.own(standing.generation + WITHOUT_A_MARK)
        return self._backlog.standing().confirmed

    def send(self, entries: Sequence[Entry]) -> Fate:
        self._reports.begin()
        taken = _hand_over(self._client, entries, self._reports)
        begun = time.monotonic()
        while len(self._client):
            self._client.flush(PAUSE)
            if time.monotonic() - begun > LONG:
                self._hold_up(
                    TryAgain(f"{len(self._client)} records are still under way", way_out="they are waited for")
                )
        failure = self._reports.failure
        if taken and failure is None:
            return Fate.WRITTEN
        self.why = self._reports.refusal or ("the client did not take them" if failure is None else failure.str())
        return Fate.RETRY if self._reports.refusal is None else Fate.REFUSED

    def refresh(self) -> None:
        """Nothing expires here."""

    def close(self) -> None:
        self._client.purge()
        self._client.flush(PAUSE)


def _hand_over(client: Client, entries: Sequence[Entry], reports: Reports) -> bool:
    """Give every entry to the client; False when it refuses one."""
    produce = client.produce
    deadline = time.monotonic() + COMMITTED_WITHIN
    for _position, topic, key, value, headers, partition, timestamp, _tag in entries:
        number = -1 if partition is None else partition
        while True:
            try:
                if headers:
                    produce(topic, value, key, number, headers=list(headers), timestamp=timestamp or 0)
                else:
                    produce(topic, value, key, number, timestamp=timestamp or 0)
            except BufferError:
                if time.monotonic() > deadline:
                    return False
                client.poll(0.05)
            except KafkaException as failure:
                error = failure.args[0]
                if error.code() not in _TRANSACTION_IS_OVER:
                    reports.failed(error, topic)
                return False
            else:
                break
    return True
