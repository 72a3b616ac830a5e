"""The producer for asyncio: the same guarantees; records are handed over in the loop, and waited for in a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from contextvars import copy_context
from typing import Any

from kept.aio.worker import Worker
from kept.errors import KeptError, OutcomeUnknown
from kept.guarantees import Guarantee
from kept.producer import Delivery as Handle
from kept.producer import Producer as Blocking
from kept.producer import Receipt
from kept.producer.fates import NoRoom
from kept.producer.inside import INSIDE

LOOKED_FOR_EVERY = 0.005
ROOM_LOOKED_FOR_EVERY = 0.05


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
        if not self._handle.settled:
            raise OutcomeUnknown(
                f"the record for {self._handle.topic} was still under way when its producer was closed",
                way_out="await it again, its report may have come meanwhile; or look for it before you send it again",
            )
        return self._handle.result(0)


class Producer:
    """`kept.Producer` for asyncio: `delivery = await producer.send(...)`, then `receipt = await delivery`."""

    def __init__(self, bootstrap: str, guarantee: Guarantee, *, stamp: object = None, **overrides: object) -> None:
        self.guarantee = guarantee
        self._blocking = Blocking(bootstrap, guarantee, stamp=stamp, **overrides)
        self._blocking.room_within = 0.0  # it is waited for here, where nothing else has to wait with it
        self._worker = Worker("producer")
        self._making_room: asyncio.Future[None] | None = None
        self._awaited: dict[Handle, asyncio.Future[None]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def send(self, topic: str, value: bytes | str | None, **options: Any) -> Delivery:
        """Hand one record over, with the options of `kept.Producer.send`; a full buffer is waited for, up to a minute.

        Whoever is cancelled meanwhile has sent nothing.
        """
        self._worker.refuse_if_closed()
        deadline: float | None = None
        while True:
            try:
                return Delivery(self._blocking.send(topic, value, **options), self)
            except NoRoom as full:
                deadline = deadline or time.monotonic() + Blocking.room_within
                if time.monotonic() > deadline:
                    raise NoRoom(full.reason, Blocking.room_within, way_out=full.way_out) from None
            await self._room()

    async def _room(self) -> None:
        """A moment in which there may come some; all who want any wait for it together."""
        if self._making_room is None or self._making_room.done():
            self._making_room = self._worker.begin(self._blocking.make_room, ROOM_LOOKED_FOR_EVERY)
        await asyncio.wait([self._making_room], timeout=ROOM_LOOKED_FOR_EVERY)

    async def settled(self, handle: Handle) -> None:
        """Wait until the record's fate is known, or nobody is there any more to tell it."""
        if self._worker.closed:
            handle.done()
            return
        loop = asyncio.get_running_loop()
        waiting = self._awaited.get(handle)
        if waiting is None:
            waiting = self._awaited[handle] = loop.create_future()
        if self._looking is None or self._looking.done():
            self._looking = loop.create_task(self._look())
        await asyncio.shield(waiting)  # others may wait for the same record

    async def _look(self) -> None:
        """Bring in what became of records while somebody waits for any. However it ends, nobody waits on.

        The thread may be at something that takes long, which brings reports in as well: they are looked for meanwhile.
        """
        bringing: asyncio.Future[None] | None = None
        try:
            while self._awaited:
                if bringing is None or bringing.done():
                    bringing = self._worker.begin(_bring_in, list(self._awaited))
                await asyncio.wait([bringing], timeout=LOOKED_FOR_EVERY)
                self._tell([handle for handle in self._awaited if handle.settled])
                await asyncio.sleep(LOOKED_FOR_EVERY)
        finally:
            self._tell(list(self._awaited))

    def _tell(self, handles: list[Handle]) -> None:
        for handle in handles:
            waiting = self._awaited.pop(handle)
            if not waiting.done():
                waiting.set_result(None)

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
        """Flush, and say so when records are left under way, or failed without anybody having asked.

        Whoever awaits one that is left is told that its fate is not known.
        """
        await self._end(self._blocking.close, timeout)

    async def forget(self) -> None:
        """Leave nothing of an exactly-once name behind in the cluster, when no process will ever use it again."""
        await self._worker.call(self._blocking.forget)

    async def _end(self, call: Callable[..., None], *args: object) -> None:
        if self._worker.closed:
            return
        try:
            await self._worker.call(call, *args)
        finally:
            self._worker.close()
            self._tell(list(self._awaited))
            if self._looking is not None:
                self._looking.cancel()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self._end(self._blocking.__exit__, kind, None, None)


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
