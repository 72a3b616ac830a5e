"""Thousands of records made at once, without the garbage collector.

It comes by after every 700 new objects, to look for circles. Records cannot form any, and while a batch of thousands is
made it would look through the same ones again and again: a sixth of all work into Postgres.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    """The collector waits meanwhile, unless somebody has sent it away for good."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
