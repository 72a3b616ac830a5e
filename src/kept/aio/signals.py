"""A graceful end of every loop on SIGTERM and SIGINT: many may run at once, and the first signal is for all of them.

Not by `loop.add_signal_handler`: taking such a handler back does not bring back the one that was there before, such as
asyncio's own for Ctrl-C. What is called here only sets flags, and may be called at any moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from kept.consumer import signals

_LISTENING: list[Callable[[], object]] = []
_HEARD = ExitStack()


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """The first signal asks all for the end; the next one does what it did before. Outside the main thread, nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _LISTENING:
        _HEARD.enter_context(signals.stopped_by_signals(_stop_all))
    _LISTENING.append(stop)
    try:
        yield
    finally:
        _LISTENING.remove(stop)
        if not _LISTENING:
            _HEARD.close()


def _stop_all() -> None:
    for stop in _LISTENING:
        stop()
