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
from kept.producer.clients import TRANSACTION_IS_OVER, make_client
from kept.producer.fates import RIGHT_TO_WRITE, is_forbidden, is_refused_together, refused_alone
from kept.producer.marks import Mark, Reached
from kept.producer.transactions import Transactions
from kept.progress.poison import Fate

OPENED_WITHIN = 10.0
"""Short, because whoever wants to end the relay waits for it; it is tried again."""
COMMITTED_WITHIN = 60.0
A_FEW = 10
"""Of the records tell which topics the next transaction is likely to write to."""
PAUSE = 0.1
LONG = 2.0
HoldUp: TypeAlias = Callable[[KeptError], None]
"""Told what holds the relay up: it waits a moment, or ends the relay if that was asked for (`Stopped`)."""
SENT_AGAIN, NOT_TAKEN = "they are sent again", "the client did not take them"


class Stopped(Exception):
    """The relay was told to end while it waited for brokers."""


class Carrier(Protocol):
    """Brings entries into Kafka under one guarantee."""

    why: str
    """Why the last entries were not written."""
    way_out: str
    """What a person can do about it."""

    def begin(self) -> int:
        """Take over; the position after which to read."""

    def send(self, entries: Sequence[Entry], meanwhile: Callable[[], None]) -> Fate:
        """Write these together. `REFUSED`: because of one of them; alone, because of what it is.

        `meanwhile` is called when they are handed over, and only Kafka is waited for."""

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
        self.lost: KafkaError | None = None
        """Why the client will never send again; None: it will."""

    def heard_by(self, settings: Mapping[str, object]) -> dict[str, object]:
        """Settings of a client that reports here."""
        return {**settings, "delivery.report.only.error": True, "on_delivery": self.hear}

    def begin(self) -> None:
        self.failure = self.refusal = self.lost = None

    def hear(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed(error, str(message.topic()))

    def failed(self, error: KafkaError, topic: str) -> None:
        """A refusal is about the record or its batch; a topic that is missing is `Destinations`' to judge."""
        self.failure = self.failure or error
        if is_refused_together(error):
            self.refusal = self.refusal or refused_alone(error, topic).what

    def not_taken(self, error: KafkaError, topic: str) -> None:
        """The client refused a record at once: because of the record, its transaction, or itself."""
        if error.code() == KafkaError._FATAL:
            self.lost = self.lost or error
        if error.code() not in TRANSACTION_IS_OVER:
            self.failed(error, topic)

    def why(self, otherwise: str) -> str:
        cause = self.lost or self.failure
        return self.refusal or (otherwise if cause is None else cause.str())

    def served(self, call: Callable[[float], int], within: float) -> None:
        """Let the client report. Whichever call that is, a fatal error of the client's is raised by it, once."""
        try:
            call(within)
        except KafkaException as failure:
            self.lost = failure.args[0]

    @property
    def fate(self) -> Fate:
        """Of records that were not written."""
        return Fate.RETRY if self.refusal is None else Fate.REFUSED


class ExactlyOnceCarrier:
    """Records and the next position in one transaction, behind a fence, each on a client of its own."""

    def __init__(self, settings: Mapping[str, object], backlog: Backlog, hold_up: HoldUp) -> None:
        self.why, self.way_out = "", SENT_AGAIN
        self._backlog = backlog
        self._hold_up = hold_up
        self._reports = Reports()
        self._transactions = Transactions(self._reports.heard_by(settings))
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

    def send(self, entries: Sequence[Entry], meanwhile: Callable[[], None]) -> Fate:
        self._reports.begin()
        self._transactions.expects = frozenset(entry.topic for entry in entries[:: len(entries) // A_FEW or 1])
        reached = Reached(self._backlog.identity, entries[-1].position, entries[-1].tag) if entries else None
        transaction = self._transactions.open(OPENED_WITHIN, reached)
        try:
            taken = _hand_over(transaction.client, entries, self._reports)
            meanwhile()
        except BaseException:
            transaction.abort(OPENED_WITHIN)  # where it fails, the next fence ends it: it was never told to commit
            raise
        if not taken:
            transaction.abort(OPENED_WITHIN)
            self.why, self.way_out = self._reports.why(NOT_TAKEN), SENT_AGAIN
            return self._reports.fate
        try:
            transaction.commit_and_know(COMMITTED_WITHIN, OPENED_WITHIN, self._hold_up)
        except TransactionAborted as aborted:
            return self._not_written(aborted)
        except OutcomeUnknown:
            self._transactions.refuse_if_succeeded(OPENED_WITHIN)
            raise
        return Fate.WRITTEN

    def refresh(self) -> None:
        self.send((), lambda: None)

    def close(self) -> None:
        self._transactions.close()

    def _not_written(self, aborted: TransactionAborted) -> Fate:
        if is_forbidden(aborted):  # the records' own reports only say that they were given up
            self.why, self.way_out = aborted.what, RIGHT_TO_WRITE
            return Fate.RETRY
        self.why, self.way_out = self._reports.why(aborted.what), SENT_AGAIN
        return self._reports.fate


class AtLeastOnceCarrier:
    """The records first, then the position, which stands in the backlog alone. A crash in between repeats them."""

    def __init__(self, settings: Mapping[str, object], backlog: Backlog, hold_up: HoldUp) -> None:
        self.why, self.way_out = "", SENT_AGAIN
        self._backlog = backlog
        self._hold_up = hold_up
        self._reports = Reports()
        self._settings = self._reports.heard_by(settings)
        self._client = make_client(self._settings)

    def begin(self) -> int:
        standing = self._backlog.standing()
        self._backlog.own(standing.generation + WITHOUT_A_MARK)
        return self._backlog.standing().confirmed

    def send(self, entries: Sequence[Entry], meanwhile: Callable[[], None]) -> Fate:
        self._reports.begin()
        taken = _hand_over(self._client, entries, self._reports)
        meanwhile()
        begun = time.monotonic()
        while len(self._client) and self._reports.lost is None:
            self._reports.served(self._client.flush, PAUSE)
            if time.monotonic() - begun > LONG:
                self._hold_up(
                    TryAgain(f"{len(self._client)} records are still under way", way_out="they are waited for")
                )
        if self._reports.lost is not None:
            self._replace()
        failure = self._reports.failure
        if taken and failure is None and self._reports.lost is None:
            return Fate.WRITTEN
        forbidden = failure is not None and failure.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        self.why, self.way_out = self._reports.why(NOT_TAKEN), RIGHT_TO_WRITE if forbidden else SENT_AGAIN
        return self._reports.fate

    def _replace(self) -> None:
        """A client with a fatal error refuses everything from then on. What it still had may be in Kafka, or not: it is
        sent again, by a fresh one."""
        self.close()
        self._client = make_client(self._settings)

    def refresh(self) -> None:
        """Nothing expires here."""

    def close(self) -> None:
        self._client.purge()
        self._reports.served(self._client.flush, PAUSE)


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
                reports.served(client.poll, 0.05)
                if reports.lost is not None or time.monotonic() > deadline:
                    return False
            except KafkaException as failure:
                reports.not_taken(failure.args[0], topic)
                return False
            else:
                break
    return True
