"""The consumer for asyncio: the same guarantees; the member lives in a thread of its own, the body in the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from kept.aio.worker import Worker
from kept.consumer import Batch, Record
from kept.consumer import Consumer as Blocking
from kept.consumer.beginning import From
from kept.consumer.policies import AfterEach, Policy
from kept.consumer.reading import Start
from kept.consumer.records import Place
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
        self._open: Batch | None = None  # what the member's thread gave last, whether anybody awaited it or not
        self._in_body: Batch | None = None  # given to a body that has not come back for the next one
        self._leaves_batch = False

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Records, one after the other, until `stop()`."""
        while (batch := await self._next()) is not None:
            if self._at_most_once:
                for record in batch:
                    yield record
                continue
            batch.acknowledge_none()
            leave_at = time.monotonic() + SERVED_EVERY
            for record in batch:
                yield record
                batch.acknowledge(record)
                if self._stopping or self._leaves_batch or time.monotonic() >= leave_at:
                    break

    async def batches(self, most: int = 500) -> AsyncIterator[Batch]:
        """As `kept.Consumer.batches`: a batch is done when the loop asks for the next one."""
        if self._batches is None:
            self._together = most
        while (batch := await self._next()) is not None:
            self._in_body = batch
            yield batch
            self._in_body = None

    async def run(self, handler: Callable[[Record], Awaitable[object]], **options: Any) -> None:
        """As `kept.Consumer.run`, with a handler that is awaited; retries and dead letters are the same."""
        loop = asyncio.get_running_loop()

        async def awaited(record: Record) -> None:
            await handler(record)

        def handle(record: Record) -> None:
            asyncio.run_coroutine_threadsafe(awaited(record), loop).result()

        await self._to_the_end(self._blocking.run, handle, **options)

    def pause(self, *places: Place) -> None:
        """Hand out nothing of these partitions, of any when none is named, until `resume`."""
        self._blocking.pause(*places)
        self._leaves_batch = True

    def resume(self, *places: Place) -> None:
        """Hand out records of these partitions again, of all when none is named."""
        self._blocking.resume(*places)

    async def replay(self, positions: Mapping[Place, int] | datetime) -> None:
        """Go on from these offsets or from a time, as `kept.Consumer.replay`; to be awaited inside the loop."""
        await self._worker.call(self._blocking.replay, positions)
        self._leaves_batch = True

    @property
    def partitions(self) -> frozenset[Place]:
        """The partitions that are ours at the moment, as (topic, number)."""
        return self._blocking.partitions

    async def _next(self) -> Batch | None:
        """The next batch. One that was asked for and not awaited to its end is not asked for twice."""
        if self._asked is None:
            self._asked = self._worker.begin(self._ask)
        batch = await asyncio.shield(self._asked)
        self._asked = None
        self._leaves_batch = False
        if batch is not None:
            batch.unseen = False
        return batch

    def _ask(self) -> Batch | None:
        if self._batches is None:
            self._batches = self._blocking.batches(self._together)
        batch: Batch | None = next(self._batches, None)
        if batch is not None:
            batch.unseen = True  # whoever awaited it may have been cancelled, and then nobody has it
        self._open = batch
        return batch

    def _leave(self) -> None:
        """Have what is done counted, and what nobody saw un-read; the loop was stopped, and gives nothing more."""
        if self._in_body is not None and not self._at_most_once and not self._in_body.is_partial:
            self._in_body.acknowledge_none()
        try:
            if self._open is not None and (self._open.unseen or not self._at_most_once):
                next(self._batches, None)
        finally:
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
