"""The outbox for asyncio: many tasks that send at once share one fsync, and the loop is never blocked by the disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any

from kept.aio.worker import Worker
from kept.outbox import Metrics, Sending
from kept.outbox import Outbox as Blocking


class Outbox:
    """`kept.Outbox` for asyncio: `await outbox.send(...)` returns when the record is on the disk.

    Opening checks the whole file, so it is done by `async with`, in a thread.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self._path = path
        self._options = options
        self._worker = Worker("kept-outbox")
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
        batch = outbox.begin(sendings, lambda: loop.call_soon_threadsafe(arrived.set))
        await arrived.wait()
        if isinstance(batch.fate, range):
            return batch.fate
        raise batch.fate or AssertionError

    async def metrics(self) -> Metrics:
        outbox = await self._opened()
        return await self._worker.call(outbox.metrics)

    async def flush(self, timeout: float = 60.0) -> int:
        """Wait until a relay has confirmed all that waits; how many records still wait then."""
        outbox = await self._opened()
        return await self._worker.call(outbox.flush, timeout)

    async def close(self) -> None:
        """End the relay after the transaction in hand; raises what ended it for good, if anything did."""
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
            self._blocking = Blocking(self._path, **self._options)
        return self._blocking

    async def __aenter__(self) -> Outbox:
        await self._opened()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
            return
        try:
            if self._blocking is not None:
                await self._worker.call(self._blocking.__exit__, kind, None, None)
        finally:
            self._worker.close()
