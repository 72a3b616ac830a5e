"""Writing into the journal: one thread writes for all, and whoever waits at the same time shares one fsync.

While the disk keeps one batch, the next gathers by itself. So a single sender waits for one fsync, and thirty-two
senders wait for hardly more, together.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from kept.errors import FixConfiguration, FixMachine, JournalFull, KeptError, OutcomeUnknown
from kept.outbox.opening import Held
from kept.outbox.rows import OVERHEAD, RECORD, State, record_rows, seed, written_of
from kept.outbox.tables import INSERT_RECORD, changing, connect, read_state, told, write_state

logger = logging.getLogger("kept")
MOST_AT_ONCE = 20_000
"""Records that one commit takes, unless a single batch is larger."""
_RANDOM = random.SystemRandom()


class Bounds(NamedTuple):
    """How much may wait in a journal before it refuses more."""

    records: int
    bytes: int
    age: float | None
    """Seconds: nothing is taken while the oldest record has waited for longer. None: no such bound."""


class Batch:
    """Records that are written together or not at all, and whoever waits for them."""

    __slots__ = ("contents", "fate", "size", "then")

    def __init__(self, contents: Sequence[bytes], then: Callable[[], object]) -> None:
        self.contents = contents
        self.size = sum(map(len, contents)) + len(contents) * OVERHEAD
        self.then = then
        self.fate: range | KeptError | None = None

    def settle(self, fate: range | KeptError) -> None:
        """Whatever `then` raises, the thread that calls it goes on: others wait for it."""
        self.fate = fate
        try:
            self.then()
        except BaseException:
            logger.exception("whoever waited for records could not be told; what became of them is known: %r", fate)


class Appender:
    """The thread that writes. It has its own connection, and ends with `close`."""

    def __init__(self, held: Held, bounds: Bounds) -> None:
        self._held = held
        self._path: Path = held.path
        self._bounds = bounds
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._waiting: list[Batch] = []
        self._closed = False
        self._broken: KeptError | None = None
        self.enqueued = 0
        self.commits = 0
        self._thread = threading.Thread(target=self._run, name="kept-journal", daemon=True)
        self._thread.start()

    def append(self, contents: Sequence[bytes]) -> range:
        """Write records and wait until they are on the disk; their positions."""
        arrived = threading.Lock()
        arrived.acquire()
        batch = Batch(contents, arrived.release)
        self.begin(batch)
        arrived.acquire()
        if isinstance(batch.fate, range):
            return batch.fate
        raise batch.fate or AssertionError

    def begin(self, batch: Batch) -> None:
        """Hand records to the thread; `then` is called by it when their fate is known."""
        self._held.refuse_if_forked()
        with self._lock:
            if self._closed or self._broken is not None:
                raise self._broken or FixConfiguration("this outbox was closed", way_out="open a new one")
            self._waiting.append(batch)
            if len(self._waiting) == 1:
                self._work.notify()

    def close(self) -> None:
        """Write what waits, and end."""
        with self._lock:
            self._closed = True
            self._work.notify()
        self._thread.join()

    # What the thread does.

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        try:
            while batches := self._next():
                try:
                    connection = connection or self._connected()
                    self._write(connection, batches)
                except Exception as failure:  # noqa: BLE001 - whatever it is, no sender may wait for ever
                    self._fail(batches, failure)
        finally:
            if connection is not None:
                connection.close()

    def _connected(self) -> sqlite3.Connection:
        try:
            return connect(self._path)
        except sqlite3.Error as failure:  # nothing was begun
            raise told(failure, self._path) from failure

    def _next(self) -> list[Batch]:
        with self._lock:
            while not self._waiting and not self._closed:
                self._work.wait()
            count = records = 0
            for batch in self._waiting:
                records += len(batch.contents)
                if count and records > MOST_AT_ONCE:
                    break
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            return taken

    def _write(self, connection: sqlite3.Connection, batches: list[Batch]) -> None:
        """One transaction for all that fit; a batch that does not fit is refused whole, and nothing of it is kept."""
        self._held.refuse_if_changed()
        fates: list[range | KeptError] = []
        with changing(connection, self._path):
            state = read_state(connection, self._path)
            full = self._too_old(connection)
            first = state.end + 1
            contents: list[bytes] = []
            for batch in batches:
                refusal = full or self._no_room(state, batch)
                if refusal is not None:
                    fates.append(refusal)
                    continue
                positions = range(state.end + 1, state.end + 1 + len(batch.contents))
                contents += batch.contents
                state = state._replace(
                    end=state.end + len(positions),
                    records=state.records + len(positions),
                    bytes=state.bytes + batch.size,
                )
                fates.append(positions)
            if contents:
                same = _RANDOM.getrandbits(63), int(time.time() * 1000)  # tag and time of all that a commit writes
                rows = record_rows(seed(state.identity, RECORD), same, first, contents)
                connection.executemany(INSERT_RECORD, rows)
                write_state(connection, state)
        self.enqueued += len(contents)
        self.commits += bool(contents)
        for batch, fate in zip(batches, fates, strict=True):
            batch.settle(fate)

    def _fail(self, batches: list[Batch], failure: Exception) -> None:
        error = failure
        if not isinstance(failure, KeptError):
            error = OutcomeUnknown(
                f"whether {self._path} has the record is not known: {failure!r}",
                way_out="look with `kept outbox inspect` before you send it again, and report this as a fault of kept",
            )
        assert isinstance(error, KeptError)  # noqa: S101 - for the type checker
        untouched: list[Batch] = []
        if isinstance(error, OutcomeUnknown):
            with self._lock:  # a disk that once failed to keep bytes cannot be trusted to keep the next ones
                self._broken = FixMachine(
                    f"the disk failed while {self._path} was written, and nothing more is taken",
                    way_out="see to the disk, and open a new outbox; then send it again",
                )
                untouched, self._waiting = self._waiting, []
        for batch in batches:
            batch.settle(error)
        for batch in untouched:  # not begun: certainly not on the disk, and told so
            batch.settle(self._broken or error)

    def _too_old(self, connection: sqlite3.Connection) -> JournalFull | None:
        if self._bounds.age is None:
            return None
        oldest = connection.execute("SELECT body FROM records ORDER BY position LIMIT 1").fetchone()
        age = 0.0 if oldest is None else time.time() - written_of(oldest[0]) / 1000
        if age <= self._bounds.age:
            return None
        return _full(
            self._path, f"its oldest record has waited for {age:.0f} s, and {self._bounds.age:.0f} are allowed"
        )

    def _no_room(self, state: State, batch: Batch) -> JournalFull | None:
        if state.records + len(batch.contents) > self._bounds.records:
            return _full(self._path, f"{state.records} records wait, and {self._bounds.records} may")
        if state.bytes + batch.size > self._bounds.bytes:
            return _full(
                self._path, f"{state.bytes} bytes wait, {batch.size} more would come, {self._bounds.bytes} may"
            )
        return None


def _full(path: Path, why: str) -> JournalFull:
    return JournalFull(
        f"the journal {path} takes no more: {why}",
        way_out="see that a relay runs and reaches the brokers (`kept outbox status`); then send it again",
    )
