"""Stretches of time, which may overlap: how much of it they are together."""

from __future__ import annotations

import math
from collections.abc import Iterable


def covered(stretches: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one of them lasted; one that ends before it begins lasts for none."""
    seconds, reached = 0.0, -math.inf
    for begin, end in sorted(stretches):
        seconds += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return seconds
