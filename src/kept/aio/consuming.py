"""The consumer for asyncio: the same guarantees; the member lives in a thread of its own, the body in the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from kept.aio.worker import Worker
from kept.consumer import Batch, Record
from kept.consumer import Consumer as Blocking
from kept.consumer.beginning import From
from kept.consumer.policies import AfterEach, Policy
from kept.consumer.reading import Start
from kept.guarantees import AtMostOnce, Guarantee

SERVED_EVERY = 1.0
"""A batch is left after so long, however many of its records are done: the member is heard of, progress recorded."""


class Consumer:
    """`kept.Consumer` for asyncio. A record is done when the loop asks for the next one.

    Cancelling the task is safe at any point: what was not done is read again (at-least-once), what was handed out
    is not (at-most-once).
    """

    def __init__(
        self,
        bootstrap: str,
        topics: str | Sequence[str],
        *,
        guarantee: Guarantee,
        group: str | None = None,
        commit: Policy | None = None,
        start: From = Start.BEGINNING,
        **overrides: object,
    ) -> None:
        self._blocking = Blocking(
            bootstrap, topics, guarantee=guarantee, group=group, commit=commit, start=start, **overrides
        )
        self._at_most_once = isinstance(guarantee, AtMostOnce)
        self._together = 1 if self._at_most_once or isinstance(commit, AfterEach) else 500
        self._worker = Worker("kept-consumer")
        self._batches: Any = None
        self._asked: asyncio.Future[Batch | None] | None = None
        self._stopping = False
        self._open: Batch | None = None  # handed out record by record: only what is acknowledged is done

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Records, one after the other, until `stop()`."""
        while (batch := await self._next()) is not None:
            if self._at_most_once:
                for record in batch:
                    yield record
                continue
            batch.acknowledge_none()
            self._open = batch
            leave_at = time.monotonic() + SERVED_EVERY
            for record in batch:
                yield record
                batch.acknowledge(record)
                if self._stopping or time.monotonic() >= leave_at:
                    break

    async def _next(self) -> Batch | None:
        """The next batch. One that was asked for and not awaited to its end is not asked for twice."""
        if self._asked is None:
            self._asked = self._worker.begin(self._ask)
        batch = await asyncio.shield(self._asked)
        self._asked = self._open = None
        return batch

    def _ask(self) -> Batch | None:
        if self._batches is None:
            self._batches = self._blocking.batches(self._together)
        return next(self._batches, None)

    def _leave(self) -> None:
        if self._open is not None:
            next(self._batches, None)  # counts what is acknowledged; the loop was stopped, and gives nothing more
        self._blocking.close()

    async def into_kafka(self, transform: Callable[[Record], Any], **options: Any) -> None:
        """As `kept.Consumer.into_kafka`; the transform is called in the member's thread, not in the loop."""
        await self._to_the_end(self._blocking.into_kafka, transform, **options)

    async def into_postgres(self, dsn: str, **options: Any) -> None:
        """As `kept.Consumer.into_postgres`; the effect is called in the member's thread, not in the loop."""
        await self._to_the_end(self._blocking.into_postgres, dsn, **options)

    def stop(self) -> None:
        """End the loop where it asks for the next record; fit for `loop.add_signal_handler`."""
        self._stopping = True
        self._blocking.stop()

    async def close(self) -> None:
        """Record what is done, and leave the group."""
        self.stop()
        await self._worker.call(self._leave)
        self._worker.close()

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _to_the_end(self, call: Callable[..., None], *args: object, **options: object) -> None:
        """Cancelled, it stops after the transaction in hand, and is waited for."""
        running = self._worker.begin(call, *args, **options)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            await running
            raise
