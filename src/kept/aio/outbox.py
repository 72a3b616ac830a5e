"""The outbox for asyncio: many tasks that send at once share one fsync, and the loop is never blocked by the disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kept.aio.worker import Worker
from kept.errors import FixConfiguration
from kept.outbox import Metrics, Sending
from kept.outbox import Outbox as Blocking
from kept.outbox.backlog import Lag
from kept.outbox.salvage import Damage


class Outbox:
    """`kept.Outbox` for asyncio: `await outbox.send(...)` returns when the record is on the disk.

    Opening checks the whole file, so it is done by `async with`, in a thread.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self.path = Path(path).absolute()
        self._options = options
        self._worker = Worker("outbox")
        self._blocking: Blocking | None = None

    async def send(self, topic: str, value: bytes | str | None, **options: Any) -> int:
        """Put a record on the disk, with the options of `kept.Outbox.send`; its position there."""
        return (await self.send_all([Sending(topic, value, **options)]))[0]

    async def send_all(self, records: Iterable[Sending | tuple[object, ...]]) -> range:
        """Put several on the disk together, all or none, in this order; their positions.

        Whoever is cancelled meanwhile cannot know whether they are there.
        """
        outbox = await self._opened()
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        sendings = [Sending(*each) for each in records]
        if not sendings:
            return range(0)

        def tell() -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits, and the records are there
                loop.call_soon_threadsafe(arrived.set)

        batch = outbox.begin(sendings, tell)
        await arrived.wait()
        if isinstance(batch.fate, range):
            return batch.fate
        raise batch.fate or AssertionError

    @property
    def damage(self) -> Damage | None:
        """What was wrong with the file when this process opened it, and what became of it; None: nothing."""
        if self._blocking is None:
            raise FixConfiguration("this outbox is not open yet", way_out="open it: `async with`, or send first")
        return self._blocking.damage

    async def lag(self) -> Lag:
        """What waits in the journal: records, bytes, and the age of the oldest in seconds."""
        outbox = await self._opened()
        return await self._worker.call(outbox.lag)

    async def metrics(self) -> Metrics:
        outbox = await self._opened()
        return await self._worker.call(outbox.metrics)

    async def flush(self, timeout: float = 60.0) -> int:
        """Wait until a relay has confirmed all that waits; how many records still wait then."""
        outbox = await self._opened()
        return await self._worker.call(outbox.flush, timeout)

    async def close(self) -> None:
        """End the relay after the transaction in hand; raises what ended it for good, if anything did."""
        if self._worker.closed:
            return
        try:
            if self._blocking is not None:
                await self._worker.call(self._blocking.close)
        finally:
            self._worker.close()

    async def _opened(self) -> Blocking:
        return self._blocking if self._blocking is not None else await self._worker.call(self._open)

    def _open(self) -> Blocking:
        """By the one thread of the worker: tasks that come first together open it once."""
        if self._blocking is None:
            self._blocking = Blocking(self.path, **self._options)
        return self._blocking

    async def __aenter__(self) -> Outbox:
        await self._opened()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
            return
        if self._worker.closed:
            return
        try:
            if self._blocking is not None:
                await self._worker.call(self._blocking.__exit__, kind, None, None)
        finally:
            self._worker.close()
