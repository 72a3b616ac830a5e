"""The outbox: a record is safe on this machine's disk when `send` returns, whatever the brokers do."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from kept.errors import FixConfiguration
from kept.guarantees import Guarantee
from kept.outbox.appending import Appender, Batch, Bounds
from kept.outbox.backlog import Lag
from kept.outbox.contents import Sending, made_ready
from kept.outbox.journal import Journal
from kept.outbox.metrics import Metrics
from kept.outbox.opening import open_journal
from kept.outbox.relaying import Relaying
from kept.outbox.salvage import Damage
from kept.producer.stamping import Headers, chosen

MOST_RECORDS = 10_000_000
MOST_BYTES = 4 << 30


class Outbox:
    """A journal on disk. Several processes may send into the same one; open it in each, after a fork.

    With `relay_to` this process also relays: one process at a time does, and when it dies another that has the
    journal open takes over. Without it, `kept outbox relay PATH` does, as a process of its own. `guarantee` is the
    relay's: exactly once unless you say `kept.AtLeastOnce()`.

    When too much waits (`most_records`, `most_bytes`), or the oldest record for too long (`most_age`, seconds), `send`
    raises `JournalFull`: nothing is ever dropped to make room.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        relay_to: str | None = None,
        guarantee: Guarantee | None = None,
        stamp: object = None,
        most_records: int = MOST_RECORDS,
        most_bytes: int = MOST_BYTES,
        most_age: float | None = None,
        **overrides: object,
    ) -> None:
        if relay_to is None and (guarantee is not None or overrides):
            raise FixConfiguration(
                "a guarantee and client settings are the relay's, and no relay was asked for",
                way_out="give relay_to='HOST:PORT', or leave them out",
            )
        if most_records < 1 or most_bytes < 1 or (most_age is not None and most_age <= 0):
            raise FixConfiguration("the bounds of an outbox are above 0", way_out="leave them out, or raise them")
        self.path = Path(path).absolute()
        self._stamp = chosen(stamp)
        self._held = open_journal(self.path)
        self._journal: Journal | None = None
        self._relaying: Relaying | None = None
        try:
            self._journal = Journal(self.path)
            self._appender = Appender(self._held, Bounds(most_records, most_bytes, most_age))
            if relay_to is not None:
                self._relaying = Relaying(self.path, relay_to, guarantee, overrides)
        except BaseException:
            self._let_go()
            raise

    @property
    def damage(self) -> Damage | None:
        """What was wrong with the file when this process opened it, and what became of it; None: nothing."""
        return self._held.damage

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
    ) -> int:
        """Put a record on the disk, and return its position there: from now on it gets to Kafka.

        An error means that it was not taken; only `OutcomeUnknown` says otherwise. Whoever dies during the call cannot
        know: give an `idempotency_key` where sending it again must be recognisable.
        """
        sending = Sending(topic, value, key, headers, partition, timestamp, idempotency_key)
        return self._appender.append((made_ready(sending, self._stamp),))[0]

    def send_all(self, records: Iterable[Sending | tuple[object, ...]]) -> range:
        """Put several on the disk together, all or none, in this order; their positions."""
        contents = [made_ready(Sending(*each), self._stamp) for each in records]
        return self._appender.append(contents) if contents else range(0)

    def begin(self, records: Iterable[Sending], then: Callable[[], object]) -> Batch:
        """Hand several over without waiting; `then` is called, by another thread, when their fate is known."""
        batch = Batch([made_ready(each, self._stamp) for each in records], then)
        self._appender.begin(batch)
        return batch

    def lag(self) -> Lag:
        """What waits in the journal: records, bytes, and the age of the oldest in seconds."""
        return self._open_journal().lag()

    def metrics(self) -> Metrics:
        journal = self._open_journal()
        lag, relaying = journal.lag(), self._relaying
        return Metrics(
            enqueued=self._appender.enqueued,
            commits=self._appender.commits,
            relayed=0 if relaying is None else relaying.relayed,
            records=lag.records,
            bytes=lag.bytes,
            oldest_age=lag.oldest_age,
            refused=journal.refused_count(),
            last_error=None if relaying is None else relaying.last_error,
        )

    def flush(self, timeout: float = 60.0) -> int:
        """Wait until a relay, of whichever process, has confirmed all that waits; how many records still wait then."""
        deadline = time.monotonic() + timeout
        while (left := self.lag().records) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def close(self) -> None:
        """End the relay after the transaction in hand. What waits stays on the disk, for the next one.

        Raises what ended the relay for good, if anything did: nothing is lost by it, but nobody relays.
        """
        self._let_go()
        if self._relaying is not None and self._relaying.ended_by is not None:
            raise self._relaying.ended_by

    def _let_go(self) -> None:
        if self._held.is_forked():
            return  # threads, connections and the relay are the parent's
        if self._relaying is not None:
            self._relaying.close()
        if self._journal is not None:
            self._appender.close()
            self._journal.close()
            self._journal = None
        self._held.close()

    def _open_journal(self) -> Journal:
        if self._journal is None:
            raise FixConfiguration("this outbox was closed", way_out="open a new one")
        return self._journal

    def __enter__(self) -> Outbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._let_go()  # what broke the block is told; it is not hidden by what ended the relay
