"""A store that is away for a while is asked again, by the driver as by its tasks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from kept.errors import OutcomeUnknown, TryAgain
from kept.spark.tasks import PAUSE, Limits

Answer = TypeVar("Answer")
PATIENCE = Limits().patience


def patiently(ask: Callable[[], Answer]) -> Answer:
    """For what looks at the store anew each time: where an outcome is not known, the next try reads which it was."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except (TryAgain, OutcomeUnknown):
            if time.monotonic() > deadline:
                raise
        time.sleep(PAUSE * random.uniform(0.5, 1.5))  # noqa: S311 - not a secret
