"""An event loop in a thread of its own: other threads hand it work and wait for the outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Outcome = TypeVar("Outcome")
WITHIN = 30.0


class LoopThread:
    """Runs until `stop`; what went wrong unnoticed inside is kept for whoever stops it."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.unnoticed: list[BaseException] = []
        self.loop.set_exception_handler(self._unnoticed)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Outcome], within: float = WITHIN) -> Outcome:
        """Run this in the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(within)

    def stop(self) -> None:
        """End the loop and the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    def _unnoticed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.unnoticed.append(context.get("exception") or RuntimeError(context["message"]))
