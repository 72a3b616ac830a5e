"""Records sent without a transaction under exactly-once: gathered, and committed by transactions made for them.

One thread does all the talking. It takes what was gathered, commits it (`redoing.py`), settles the handles, and
takes what was gathered meanwhile. So a record is in one transaction at a time, and a transaction that is redone is
redone before anything that came after it. It waits a moment for company, unless somebody waits for a result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kept.errors import FixConfiguration, KeptError, NotPersisted, OutcomeUnknown, TryAgain
from kept.producer.book import Book
from kept.producer.delivery import Delivery
from kept.producer.fates import NoRoom
from kept.producer.redoing import Content, Joined, carry, never_sent
from kept.producer.transactions import Transactions

COMPANY_WITHIN = 0.1
ENOUGH_COMPANY = 10_000
MOST_RECORDS = 100_000
MOST_BYTES = 32 << 20
GIVEN_UP_AFTER = 300.0
"""As long as at-least-once keeps trying (delivery.timeout.ms)."""


class Joining:
    """Gathers records in the order in which they were sent, and commits them in that order."""

    may_be_resent = False  # not once its transaction is known to be aborted

    def __init__(self, make_transactions: Callable[[], Transactions]) -> None:
        self.book = Book()
        self._make_transactions = make_transactions
        self._transactions: Transactions | None = None
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # what the thread waits for
        self._news = threading.Condition(self._lock)  # what everybody else waits for
        self._thread: threading.Thread | None = None
        self._gathered: list[Joined] = []
        self._bytes = 0
        self._since = 0.0
        self._in_hand = 0  # records of the transaction that the thread is at
        self._begun = 0  # how many records were taken in hand so far, so the number of the next one
        self._hurry = False
        self._up_to: int | None = None  # an open transaction of the caller's: only what was sent before it goes on
        self._stopped: KeptError | None = None
        self._closed = False

    # What the callers' threads do.

    def join(self, topic: str, content: Content, room_within: float) -> Joined:
        """Take a record in; when too much is waiting already, wait for room."""
        record = Joined(topic, self, content, _size(content))
        with self._lock:
            if len(self._gathered) >= MOST_RECORDS or self._bytes + record.size > MOST_BYTES:
                self._wait_for_room(record, room_within)
            self._refuse_if_over()
            waiting = len(self._gathered)
            if waiting == 0:
                self._since = time.monotonic()
                self._start()
            if waiting in (0, ENOUGH_COMPANY - 1):
                self._work.notify()  # before it is taken in: a Ctrl-C in between must not leave it without a waker
            record.number = self._begun + waiting
            self._bytes += record.size
            self._gathered.append(record)
        return record

    def bring_in(self, delivery: Delivery, timeout: float) -> None:
        """Somebody waits for this record: what is gathered is committed at once."""
        with self._lock:
            if timeout <= 0 or delivery.settled:
                return
            if isinstance(delivery, Joined) and delivery.number >= self._begun:
                self._make_haste()
            self._news.wait(timeout)

    def make_room(self, timeout: float) -> None:
        """Commit what is gathered, and wait for news of any of it, at most so long."""
        with self._lock:
            if self._gathered:
                self._make_haste()
                self._news.wait(timeout)

    def flush(self, timeout: float) -> int:
        """Commit what was sent so far; how many of those records are still under way when the time is over."""
        deadline = time.monotonic() + timeout
        with self._lock:
            last = self._begun + len(self._gathered)
            while (left := self._left(last)) and time.monotonic() < deadline:
                self._make_haste()
                self._news.wait(min(0.1, timeout))  # in slices, so that Ctrl-C gets through
            return left

    @contextmanager
    def alone(self, within: float) -> Iterator[Transactions]:
        """For a transaction of the caller's own: after what was sent before it, and with nothing beside it."""
        self._hold_back(within)
        try:
            yield self._ready_transactions()
        finally:
            with self._lock:
                self._up_to = None
                self._work.notify()

    def close(self, timeout: float) -> int:
        """Commit what is left, and end; how many records had no known fate when the time was over."""
        if self._closed:
            return 0
        deadline = time.monotonic() + timeout
        left = 0
        try:
            left = self.flush(timeout)
        finally:
            self._end()
        ending = self._thread
        if ending is None and self._transactions is not None:
            # Beside us: where brokers are away it would wait for the next client that is being prepared.
            ending = threading.Thread(target=self._transactions.close, name="kept-close", daemon=True)
            ending.start()
        if ending is not None:
            ending.join(max(1.0, deadline - time.monotonic()))
        return left

    def forget(self) -> None:
        """Leave no mark of the name behind."""
        if self._transactions is not None:
            self._transactions.forget()

    def _wait_for_room(self, record: Joined, within: float) -> None:
        deadline = time.monotonic() + within
        while self._gathered and (len(self._gathered) >= MOST_RECORDS or self._bytes + record.size > MOST_BYTES):
            self._refuse_if_over()
            left = deadline - time.monotonic()
            if left <= 0:
                raise NoRoom(
                    f"{len(self._gathered)} records stayed uncommitted",
                    within,
                    way_out="send it again when the brokers are back",
                )
            self._make_haste()
            self._news.wait(min(0.1, left))

    def _refuse_if_over(self) -> None:
        if self._stopped is not None:
            raise never_sent(self._stopped)
        if self._closed:
            raise FixConfiguration("this producer was closed", way_out="make a new one")

    def _hold_back(self, within: float) -> None:
        deadline = time.monotonic() + within
        with self._lock:
            if self._up_to is not None:
                raise FixConfiguration("a transaction is open already", way_out="leave it before you begin another")
            self._refuse_if_over()
            self._up_to = last = self._begun + len(self._gathered)
            try:
                while self._left(last):
                    _refuse_if_past(deadline, within)
                    self._make_haste()
                    self._news.wait(0.1)
                self._refuse_if_over()
            except BaseException:
                self._up_to = None
                self._work.notify()
                raise

    def _left(self, last: int) -> int:
        """How many records with a number below `last` have no fate yet."""
        return max(0, last - (self._begun - self._in_hand))

    def _make_haste(self) -> None:
        if self._gathered and not self._hurry:
            self._hurry = True
            self._work.notify()

    def _start(self) -> None:
        if self._thread is None:
            # A daemon: a program that ends without closing its producer is not held up.
            self._thread = threading.Thread(target=self._run, name="kept-commits", daemon=True)
            self._thread.start()

    def _end(self) -> None:
        """Nothing more is begun; the thread goes home."""
        error = NotPersisted(
            "the record was not sent: its producer was closed before", way_out="send it again", retriable=True
        )
        with self._lock:
            self._closed = True
            self._drop(error)
            self._work.notify()

    def _drop(self, error: KeptError) -> None:
        """Tell what is gathered that it will not be sent."""
        for record in self._gathered:
            record.fail(error)
        self._begun += len(self._gathered)
        self._gathered, self._bytes = [], 0
        self._news.notify_all()

    # What the thread does.

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            batch, deadline = taken
            stopped = self._carried(batch, deadline)
            with self._lock:
                self._in_hand = 0
                if stopped is not None:
                    self._stopped = stopped
                    self._drop(never_sent(stopped))
                self._news.notify_all()
        if self._transactions is not None:
            self._transactions.close()

    def _carried(self, batch: list[Joined], deadline: float) -> KeptError | None:
        try:
            return carry(self._ready_transactions(), batch, deadline)
        except Exception as failure:  # noqa: BLE001 - whatever it is, no handle may wait for ever
            error = OutcomeUnknown(
                f"whether the records were committed is not known: {failure!r}",
                way_out="read what is there before you send them again, and report this as a fault of kept",
            )
            for record in batch:
                record.fail(error)
            return error

    def _next(self) -> tuple[list[Joined], float] | None:
        """The records of the next transaction, and when they are given up; None: it is time to go home."""
        with self._lock:
            while not self._closed:
                ready = len(self._gathered) if self._up_to is None else self._up_to - self._begun
                patience = None if ready == 0 else self._since + COMPANY_WITHIN - time.monotonic()
                if ready and (self._hurry or ready >= ENOUGH_COMPANY or (patience is not None and patience <= 0)):
                    return self._take(ready)
                self._work.wait(patience)
            return None

    def _take(self, ready: int) -> tuple[list[Joined], float]:
        batch, self._gathered = self._gathered[:ready], self._gathered[ready:]
        self._bytes = sum(record.size for record in self._gathered)
        self._begun += len(batch)
        self._in_hand = len(batch)
        self._hurry = False
        deadline, self._since = self._since + GIVEN_UP_AFTER, time.monotonic()
        self._news.notify_all()  # there is room
        return batch, deadline

    def _ready_transactions(self) -> Transactions:
        if self._transactions is None:
            self._transactions = self._make_transactions()
        return self._transactions


def _refuse_if_past(deadline: float, within: float) -> None:
    if time.monotonic() > deadline:
        raise TryAgain(
            f"records sent before the transaction are still under way after {within:.0f} s",
            way_out="try again when the brokers are back",
        )


def _size(content: Content) -> int:
    value, key, _partition, _timestamp, headers = content
    size = 100
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    if headers:
        size += sum(len(name) + len(text or b"") for name, text in headers)
    return size
