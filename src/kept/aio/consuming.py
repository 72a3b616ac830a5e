"""The consumer for asyncio: the same guarantees; the member lives in a thread of its own, the body in the loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from kept.aio.signals import stopped_by_signals
from kept.aio.worker import Worker
from kept.consumer import Batch, Record
from kept.consumer import Consumer as Blocking
from kept.consumer.batch import refuse_none
from kept.consumer.beginning import From
from kept.consumer.policies import AfterEach, Policy
from kept.consumer.reading import Start
from kept.consumer.records import Place
from kept.errors import FixConfiguration
from kept.guarantees import AtMostOnce, Guarantee

SERVED_EVERY = 1.0
"""A batch is left after so long, however many of its records are done: the member is heard of, progress recorded."""


class Consumer:
    """`kept.Consumer` for asyncio. A record is done when the loop asks for the next one.

    Cancelling the task is safe at any point: what was not done is read again (at-least-once), what was handed out
    is not (at-most-once). So is a body that raises or breaks, also when the loop is entered again on the same consumer.
    One loop at a time: one that was left behind by another raises when it asks for more.
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
        self.guarantee = guarantee
        self.group = self._blocking.group
        self._at_most_once = isinstance(guarantee, AtMostOnce)
        self._together = 1 if self._at_most_once or isinstance(commit, AfterEach) else 500
        self._worker = Worker("consumer")
        self._pass: _Pass | None = None  # the loop that was entered last: nobody else is given anything
        self._asked: _Asked | None = None
        self._given: Batch | None = None  # by the member's thread, whether anybody awaited it or not; to be left there
        self._ended: Batch | None = None  # the batch whose body ended: what it says is done is done
        self._stopping = False
        self._leaves_batch = False

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Records, one after the other, until `stop()`."""
        mine = self._enter(self._together)
        while (batch := await self._next(mine)) is not None:
            if self._at_most_once:
                for record in batch:
                    yield record
                self._ended = batch
                continue
            batch.acknowledge_none()
            self._ended = batch  # as far as it is acknowledged
            leave_at = time.monotonic() + SERVED_EVERY
            for record in batch:
                yield record
                batch.acknowledge(record)
                if self._stopping or self._leaves_batch or self._pass is not mine or time.monotonic() >= leave_at:
                    break

    async def batches(self, most: int = 500) -> AsyncIterator[Batch]:
        """As `kept.Consumer.batches`: a batch is done when the loop asks for the next one."""
        refuse_none(most)
        mine = self._enter(most)
        while (batch := await self._next(mine)) is not None:
            yield batch
            self._ended = batch

    async def run(self, handler: Callable[[Record], Awaitable[object]], **options: Any) -> None:
        """As `kept.Consumer.run`, with a handler that is awaited; retries and dead letters are the same."""
        loop = asyncio.get_running_loop()

        async def awaited(record: Record) -> None:
            await handler(record)

        def handle(record: Record) -> None:
            try:
                asyncio.run_coroutine_threadsafe(awaited(record), loop).result()
            except concurrent.futures.CancelledError:
                raise asyncio.CancelledError from None  # it tells nothing of the record, which is not to be buried

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

    @property
    def idle_for(self) -> float:
        """For so many seconds no record came, though the loop had nothing else to do."""
        return self._blocking.idle_for

    async def into_kafka(self, transform: Callable[[Record], Any], **options: Any) -> None:
        """As `kept.Consumer.into_kafka`; the transform is called in the member's thread, not in the loop."""
        await self._to_the_end(self._blocking.into_kafka, transform, **options)

    async def into_postgres(self, dsn: str, **options: Any) -> None:
        """As `kept.Consumer.into_postgres`; the effect is called in the member's thread, not in the loop."""
        await self._to_the_end(self._blocking.into_postgres, dsn, **options)

    def stop(self) -> None:
        """End the loop where it asks for the next record. From a signal handler or any thread."""
        self._stopping = True
        self._blocking.stop()

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the loop after the record in hand; a second one does what it did before.

        `run`, `into_kafka` and `into_postgres` do so by themselves.
        """
        with stopped_by_signals(self.stop):
            yield

    async def close(self) -> None:
        """Record what is done, and leave the group."""
        if self._worker.closed:
            return
        self.stop()
        try:
            await self._worker.call(self._go)
        finally:
            self._worker.close()

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _enter(self, most: int) -> _Pass:
        self._pass = _Pass(most)
        return self._pass

    async def _next(self, mine: _Pass) -> Batch | None:
        """The next batch. One that was asked for and not awaited to its end is not asked for twice."""
        while True:
            self._refuse_left_behind(mine)
            asked = self._asked
            if asked is None:
                asked = self._asked = _Asked(mine, self._worker.submit(self._ask, mine))
            try:
                batch = await asyncio.shield(asyncio.wrap_future(asked.answer))
            except BaseException:
                if self._asked is asked and asked.done():
                    self._asked = None
                raise
            self._refuse_left_behind(mine)
            self._asked = None
            if asked.by is mine or batch is None:
                break
            # Asked for by a loop that was left, and which may take another number at once: unseen, it is given anew.
        self._leaves_batch = False
        if batch is not None:
            batch.unseen = False
        return batch

    def _refuse_left_behind(self, mine: _Pass) -> None:
        if self._pass is not mine:
            raise FixConfiguration(
                "another loop was entered on this consumer, and what this one had not finished is that one's to do",
                way_out="end a loop before you enter another, or make one consumer of the group for each",
            )

    async def _to_the_end(self, call: Callable[..., None], *args: object, **options: object) -> None:
        """Cancelled, it stops after the record or the transaction in hand, and is waited for."""
        self._pass = None

        def behind_any_loop() -> None:
            self._leave()
            call(*args, **options)

        with self.stopped_by_signals():
            running = self._worker.begin(behind_any_loop)
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                self.stop()
                await running
                raise

    # What the member's thread does.

    def _ask(self, mine: _Pass) -> Batch | None:
        self._leave()
        loop = self._blocking.joined_loop()
        if not mine.begun:
            loop.begin()
            mine.begun = True
        batch = loop.give(mine.most)
        if batch is not None:
            batch.unseen = True  # whoever awaits it may have been cancelled, and then nobody has it
        self._given = batch
        return batch

    def _leave(self) -> None:
        """Count what is done of the batch that was given last, and un-read what nobody saw.

        Where a body did not come back, because it was cancelled, raised or broke off, the batch is not left: nothing of
        it is done, except under at-most-once, where all of it was before.
        """
        batch, self._given = self._given, None
        if batch is not None and (batch.unseen or batch is self._ended):
            self._blocking.joined_loop().leave(batch)

    def _go(self) -> None:
        try:
            self._leave()
        finally:
            self._blocking.close()


class _Pass:
    """One time that a loop was entered: how many records it takes at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.begun = False


class _Asked:
    """What the member's thread was asked for, and by whom."""

    def __init__(self, by: _Pass, answer: concurrent.futures.Future[Batch | None]) -> None:
        self.by = by
        self.answer = answer

    def done(self) -> bool:
        return self.answer.done()
