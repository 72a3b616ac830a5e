"""Which plans may move progress partition by partition: an allow-list, pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class Operator(Enum):
    """The parts of a plan that matter here; whatever is not known is OTHER."""

    SCAN = "scan"
    PROJECT = "project"
    FILTER = "filter"
    OTHER = "other"


class Mode(Enum):
    """How a pipeline makes its work visible."""

    PARTITION = "each source partition on its own, by offset"
    BATCH = "the whole micro-batch at once"


def choose_mode(plan: Sequence[Operator]) -> Mode:
    """Rule 12: one scan under projections and filters keeps one source partition in one task, in order."""
    row_wise = all(operator is not Operator.OTHER for operator in plan)
    return Mode.PARTITION if row_wise and plan.count(Operator.SCAN) == 1 else Mode.BATCH
