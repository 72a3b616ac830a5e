"""The producer for asyncio: the same guarantees; records are handed over in the loop, and waited for in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from contextvars import copy_context
from typing import Any

from kept.aio.worker import Worker
from kept.errors import KeptError
from kept.guarantees import Guarantee
from kept.producer import Delivery as Handle
from kept.producer import Producer as Blocking
from kept.producer import Receipt
from kept.producer.inside import INSIDE

MOST_UNDER_WAY = 50_000
"""Half of what the client's own buffer takes: the loop is never blocked by a full one."""
LOOKED_FOR_EVERY = 0.005


class Delivery:
    """One record under way: awaiting it gives its receipt, or raises what became of it."""

    __slots__ = ("_handle", "_producer")

    def __init__(self, handle: Handle, producer: Producer) -> None:
        self._handle = handle
        self._producer = producer

    def done(self) -> bool:
        return self._handle.settled

    def __await__(self) -> Generator[Any, None, Receipt]:
        if not self._handle.settled:
            self._handle.refuse_inside()
            yield from self._producer.settled(self._handle).__await__()
        return self._handle.result(0)


class Producer:
    """`kept.Producer` for asyncio: `delivery = await producer.send(...)`, then `receipt = await delivery`."""

    def __init__(self, bootstrap: str, guarantee: Guarantee, *, stamp: object = None, **overrides: object) -> None:
        self._blocking = Blocking(bootstrap, guarantee, stamp=stamp, **overrides)
        self._worker = Worker("kept-producer")
        self._under_way: list[Handle] = []
        self._awaited: dict[Handle, asyncio.Future[None]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def send(self, topic: str, value: bytes | str | None, **options: Any) -> Delivery:
        """Hand one record over, with the options of `kept.Producer.send`; too many under way are waited for."""
        if len(self._under_way) >= MOST_UNDER_WAY:
            await self._room()
        handle = self._blocking.send(topic, value, **options)
        self._under_way.append(handle)
        return Delivery(handle, self)

    async def _room(self) -> None:
        """Until the client has fewer; what it has reported inside a transaction has no fate yet, and leaves room."""
        self._forget_reported()
        while len(self._under_way) >= MOST_UNDER_WAY:
            await self._worker.call(_bring_in, self._under_way[:1])
            await asyncio.sleep(LOOKED_FOR_EVERY)
            self._forget_reported()

    def _forget_reported(self) -> None:
        self._under_way = [handle for handle in self._under_way if handle.under_way]

    def settled(self, handle: Handle) -> asyncio.Future[None]:
        """A future that is done when the record's fate is known."""
        waiting = self._awaited.get(handle)
        if waiting is None:
            waiting = self._awaited[handle] = asyncio.get_running_loop().create_future()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return waiting

    async def _look(self) -> None:
        """Bring in what became of records while somebody waits for any."""
        while self._awaited:
            await self._worker.call(_bring_in, list(self._awaited))
            for handle in [handle for handle in self._awaited if handle.settled]:
                waiting = self._awaited.pop(handle)
                if not waiting.done():
                    waiting.set_result(None)
            await asyncio.sleep(LOOKED_FOR_EVERY)

    @asynccontextmanager
    async def transaction(self, *, within: float = 60.0) -> AsyncIterator[None]:
        """All or nothing, across topics and partitions: commits when the block is left, aborts when it raises."""
        block = _Block(self._blocking.transaction(within=within))
        context = copy_context()
        try:
            await _to_its_end(self._worker.begin(context.run, block.enter))
        except asyncio.CancelledError:
            await _to_its_end(self._worker.begin(block.roll_back))
            raise
        INSIDE.set(context.get(INSIDE, ()))  # the worker's thread has entered the block, and the caller is inside
        try:
            yield
        except BaseException as error:
            await _to_its_end(self._worker.begin(block.leave, error))
            raise
        await _to_its_end(self._worker.begin(block.leave, None))

    async def flush(self, timeout: float = 60.0) -> int:
        """Wait until nothing is under way; how many records still are when the time is over."""
        return await self._worker.call(self._blocking.flush, timeout)

    async def close(self, timeout: float = 60.0) -> None:
        """Flush, and say so when records are left under way, or failed without anybody having asked."""
        try:
            await self._worker.call(self._blocking.close, timeout)
            if self._looking is not None:
                await self._looking
        finally:
            self._worker.close()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
            return
        try:
            await self._worker.call(self._blocking.__exit__, kind, None, None)
        finally:
            if self._looking is not None:
                self._looking.cancel()
            self._worker.close()


async def _to_its_end(begun: asyncio.Future[Any]) -> None:
    """Cancelled, it is waited for all the same: nothing may be sent into a transaction that is about to end."""
    try:
        await asyncio.shield(begun)
    except asyncio.CancelledError:
        await asyncio.wait([begun])
        raise


class _Block:
    """A transaction of the blocking producer, entered and left in the worker's thread."""

    def __init__(self, transaction: AbstractContextManager[None]) -> None:
        self._transaction = transaction
        self._is_entered = False

    def enter(self) -> None:
        self._transaction.__enter__()
        self._is_entered = True

    def leave(self, error: BaseException | None) -> None:
        trace = None if error is None else error.__traceback__
        self._transaction.__exit__(None if error is None else type(error), error, trace)

    def roll_back(self) -> None:
        """Whoever entered it was cancelled meanwhile, and is not inside: what was sent since is told of the abort."""
        if self._is_entered:
            with suppress(KeptError):  # a successor is told of by the next call
                self.leave(asyncio.CancelledError())


def _bring_in(handles: list[Handle]) -> None:
    for handle in handles:
        if not handle.settled:
            handle.done()
