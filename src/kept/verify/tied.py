"""A process that ends with whoever started it, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

_WHEN_THE_PARENT_DIES = 1  # PR_SET_PDEATHSIG of prctl(2)


def end_with_parent() -> None:
    """Standard input ends when whoever started this ends, however that happens."""

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin: its lock would be held when Python ends
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end_even_asleep() -> None:
    """A process that was put to sleep (SIGSTOP) cannot watch anything; on Linux the kernel ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_WHEN_THE_PARENT_DIES, signal.SIGKILL)
