"""The relay: reads a backlog in order, carries it into Kafka, and trims it only below what is confirmed.

The backlog has a thread of its own: the next entries are read while this thread waits for Kafka, and the last ones
trimmed. They are not read while records are handed over: two threads that do a little for every record hand Python's
lock to and fro, which takes longer than the work. Brokers that are away are waited for, for as long as it takes, with
two batches in memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from kept.errors import Fenced, FixConfiguration, FixMachine, KeptError, TryAgain
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee, connection, merge, producer_settings
from kept.outbox.backlog import Backlog, Entry
from kept.outbox.carrying import AtLeastOnceCarrier, Carrier, ExactlyOnceCarrier, Stopped
from kept.outbox.topics import Destinations
from kept.producer.clients import IN_LARGE_PIECES
from kept.progress.poison import Fate, isolate

logger = logging.getLogger("kept")
TOGETHER = 50_000
"""Records of one transaction, at most."""
ENOUGH_COMPANY = 1000
COMPANY_WITHIN = 0.05
"""Few records wait so long for others, since a transaction for each would cost more."""
IDLE = 0.05
REFRESH_EVERY = 3600.0
"""Kafka forgets a position that nobody renews for a week."""
PATIENCE = 60.0
LONGEST_PAUSE = 5.0
FAILURES = 3
"""So often in a row the same records are tried together."""
TOLD_EVERY = 60.0
Answer = TypeVar("Answer")


class Relay:
    """Carries one backlog into one cluster, under one guarantee.

    Under exactly-once its name is by default the backlog's own, so that two backlogs never meet. `patience` is how
    long, in seconds, a missing topic is waited for before its records are set aside.
    """

    def __init__(
        self,
        backlog: Backlog,
        bootstrap: str,
        guarantee: Guarantee | None = None,
        *,
        patience: float = PATIENCE,
        **overrides: object,
    ) -> None:
        promise = guarantee or ExactlyOnce(f"outbox-{backlog.identity}")
        if isinstance(promise, AtMostOnce):
            raise FixConfiguration(
                "a relay at most once would lose what the outbox has kept", way_out="choose at-least or exactly-once"
            )
        settings = {
            "log_level": 0,
            **IN_LARGE_PIECES,
            **merge(producer_settings(promise), overrides),
            "bootstrap.servers": bootstrap,
        }
        kind = AtLeastOnceCarrier if isinstance(promise, AtLeastOnce) else ExactlyOnceCarrier
        self.relayed = 0
        self.refused = 0
        self.last_error: str | None = None
        self._backlog = backlog
        self._stop = threading.Event()
        self._destinations = Destinations({**connection(settings), "log_level": 0}, patience)
        self._carrier: Carrier = kind(settings, backlog, self._hold_up)
        self._desk = ThreadPoolExecutor(1, thread_name_prefix="kept-backlog")
        self._ahead: Future[list[Entry]] | None = None
        self._trimming: Future[None] | None = None
        self._after = 0  # read up to here
        self._reached = 0  # written up to here: behind it there may be records that were refused
        self._trimmed = -1
        self._attempted = 0
        self._failures = 0
        self._pause = 0.0
        self._told = 0.0
        self._closed = False

    def run(self, *, until_empty: bool = False) -> None:
        """Until `stop`, or until nothing waits. Raises what ends this relay for good; nothing is lost by it."""
        try:
            self._leave_word(None)
            self._after = self._reached = self._insist(self._carrier.begin)
            self._attempted = self._insist(self._ask, self._backlog.standing).attempted
            self._go_on(until_empty=until_empty)
        except Stopped:
            pass
        except KeptError as error:
            if not isinstance(error, Fenced):  # then the word is its successor's
                self._leave_word(error.what)
            raise
        finally:
            self.close()

    def stop(self) -> None:
        """End after the transaction in hand."""
        self._stop.set()

    def _go_on(self, *, until_empty: bool) -> None:
        busy = time.monotonic()
        while not self._stop.is_set():
            entries = self._insist(self._entries)
            if not entries:
                self._rest()
                if until_empty:
                    return
                if time.monotonic() - busy > REFRESH_EVERY:
                    self._insist(self._carrier.refresh)
                    busy = time.monotonic()
                self._stop.wait(IDLE)
                continue
            if len(entries) < ENOUGH_COMPANY and not until_empty:
                self._stop.wait(COMPANY_WITHIN)
                entries = self._insist(self._ask, self._backlog.read, self._after, TOGETHER)
                if not entries:
                    continue  # a successor has carried and removed them
            self._plan(entries[-1].position)
            self._carry(entries)
            self._after = entries[-1].position
            busy = time.monotonic()
        self._rest()

    def _while_kafka_works(self, after: int) -> None:
        """Read what follows, and trim what was confirmed before: a trim that failed is made good by the next."""
        if self._ahead is None:
            self._ahead = self._desk.submit(self._backlog.read, after, TOGETHER)
            self._look_at_the_trim()
            self._trimming = self._desk.submit(self._backlog.trim, self._reached)

    def _entries(self) -> list[Entry]:
        """What was read ahead; when nothing was, or that failed, what is read now."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.exception() is None:
            return ahead.result()
        return self._ask(self._backlog.read, self._after, TOGETHER)

    def _plan(self, last: int) -> None:
        """Note what may be in Kafka from now on, for some time ahead: a note for every batch would be slow."""
        if last > self._attempted:
            self._attempted = max(last, self._insist(self._ask, self._backlog.end))
            self._insist(self._ask, self._backlog.attempt, self._attempted)

    def _look_at_the_trim(self) -> None:
        trimming, self._trimming = self._trimming, None
        error = None if trimming is None else trimming.exception()
        if error is not None and not isinstance(error, (TryAgain, FixMachine)):
            raise error

    def _rest(self) -> None:
        """All is confirmed, and noted as such."""
        self._look_at_the_trim()
        if self._trimmed < self._reached:
            self._insist(self._ask, self._backlog.trim, self._reached)
            self._trimmed = self._reached
        if self._attempted > self._reached:
            self._insist(self._ask, self._backlog.attempt, self._reached)
            self._attempted = self._reached

    def _carry(self, entries: Sequence[Entry]) -> None:
        """Each entry is written once, in order; one that is refused alone is set aside before any behind it is sent."""
        refused = self._insist(self._destinations.refused, entries)
        for entry, reason in refused:
            self._set_aside(entry, reason)
        gone = {entry.position for entry, _ in refused}
        pieces = isolate([entry for entry in entries if entry.position not in gone] if gone else entries)
        try:
            piece = next(pieces)
            while True:
                fate = self._insist(self._sent, piece, entries[-1].position)
                if fate is Fate.REFUSED and len(piece) == 1:
                    self._set_aside(piece[0], self._carrier.why)
                elif fate is Fate.WRITTEN:
                    self.relayed += len(piece)
                    self._reached = piece[-1].position
                piece = pieces.send(fate)
        except StopIteration:
            return

    def _sent(self, piece: Sequence[Entry], last: int) -> Fate:
        fate = self._carrier.send(piece, lambda: self._while_kafka_works(last))
        if fate is Fate.RETRY:
            self._destinations.forget()
            self._failures += 1
            if self._failures >= FAILURES and len(piece) > 1:
                self._failures = 0
                return Fate.REFUSED  # halved: perhaps they are too many for the time that a transaction has
            raise TryAgain(f"{len(piece)} records were not written: {self._carrier.why}", way_out=self._carrier.way_out)
        self._failures = 0
        return fate

    def _set_aside(self, entry: Entry, reason: str) -> None:
        logger.error(
            "%s: the record at position %d for %s was refused and set aside: %s (`kept outbox inspect` shows it)",
            self._backlog.name, entry.position, entry.topic, reason,
        )  # fmt: skip
        self._insist(self._ask, self._backlog.refuse, entry, reason)
        self.refused += 1

    def _ask(self, call: Callable[..., Answer], *arguments: object) -> Answer:
        return self._desk.submit(call, *arguments).result()

    def _insist(self, call: Callable[..., Answer], *arguments: object) -> Answer:
        """Until it works: what may be tried again is, with a growing pause; anything else ends the relay."""
        while True:
            try:
                answer = call(*arguments)
            except (TryAgain, FixMachine) as error:
                self._hold_up(error)
            else:
                self._pause = 0.0
                if self.last_error is not None:
                    self._leave_word(None)
                return answer

    def _leave_word(self, error: str | None) -> None:
        """For whoever looks at this relay, or only at its backlog."""
        self.last_error = error
        with suppress(KeptError):  # where even that cannot be written down, what is in the way is told all the same
            self._ask(self._backlog.leave_word, error)

    def _hold_up(self, error: KeptError) -> None:
        if error.what != self.last_error:
            self._leave_word(error.what)
        if time.monotonic() - self._told > TOLD_EVERY or not self._told:
            self._told = time.monotonic()
            logger.warning(
                "%s is not relayed now: %s (%s); it is tried again", self._backlog.name, error.what, error.way_out
            )
        self._pause = min(LONGEST_PAUSE, max(0.1, self._pause * 2))
        if self._stop.wait(self._pause):
            raise Stopped from error

    def close(self) -> None:
        """End what runs in the background; the backlog stays open."""
        if self._closed:
            return
        self._closed = True
        self._desk.shutdown(wait=True, cancel_futures=True)
        self._carrier.close()
