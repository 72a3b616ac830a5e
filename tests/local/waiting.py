"""Wait for a condition, with a deadline and the name of what was awaited."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], what: str, *, within: float = 15.0) -> None:
    """Return as soon as the condition holds; fail with what was awaited when it does not hold in time."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within:.0f} s in vain until {what}")
        time.sleep(0.01)
