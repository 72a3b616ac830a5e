"""A thread of its own for a client that waits: calls are made there one after the other, and awaited here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from kept.errors import FixConfiguration

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Worker:
    """One thread; a call that was begun goes on to its end, even if whoever awaited it was cancelled."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"kept-{what}")
        self.closed = False

    def refuse_if_closed(self) -> None:
        if self.closed:
            raise FixConfiguration(f"this {self._what} is closed", way_out="make another one")

    def submit(self, call: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs) -> Future[Answer]:
        """Start a call; its future belongs to no loop, and outlives the one in which it was begun."""
        self.refuse_if_closed()
        return self._thread.submit(call, *args, **kwargs)

    def begin(self, call: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs) -> asyncio.Future[Answer]:
        """Start a call; the future may be awaited, shielded, and awaited again."""
        return asyncio.wrap_future(self.submit(call, *args, **kwargs))

    async def call(self, call: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        return await asyncio.shield(self.begin(call, *args, **kwargs))

    def close(self) -> None:
        """Take no more calls; those that were begun go on to their end."""
        self.closed = True
        self._thread.shutdown(wait=False)
