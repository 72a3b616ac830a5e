"""A graceful end on SIGTERM and SIGINT: finish the record in hand, record progress, leave."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """The first signal asks for the end; the next one does what it did before. Outside the main thread, nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # None is a handler that was not set from Python: it cannot be set again from here.
    before = {each: signal.getsignal(each) or signal.SIG_DFL for each in SIGNALS}

    def heard(_number: int, _frame: FrameType | None) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        stop()

    for each in SIGNALS:
        signal.signal(each, heard)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
