"""A thread of its own for a client that waits: calls are made there one after the other, and awaited here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Worker:
    """One thread; a call that was begun goes on to its end, even if whoever awaited it was cancelled."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def begin(self, call: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs) -> asyncio.Future[Answer]:
        """Start a call; the future may be awaited, shielded, and awaited again."""
        return asyncio.wrap_future(self._thread.submit(call, *args, **kwargs))

    async def call(self, call: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        return await asyncio.shield(self.begin(call, *args, **kwargs))

    def close(self) -> None:
        self._thread.shutdown(wait=False)
