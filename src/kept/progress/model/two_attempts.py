"""Rule 11: two attempts at the same rows, at most once."""

from __future__ import annotations

from typing import ClassVar

from kept.guarantees.levels import AtMostOnce
from kept.progress.model.pipeline import Attempt, Pipeline
from kept.progress.model.world import Chooser
from kept.progress.order import ORDER


class TwoAttempts(Pipeline):
    """Progress first, then the effect; both attempts would like to."""

    RULE: ClassVar[int] = 11
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {"progress moves under a fence": ("duplicated",)}
    ALLOWED: ClassVar[frozenset[str]] = frozenset({"lost"})
    WORKERS: ClassVar[tuple[str, ...]] = ("attempt A", "attempt B")

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without, moves=ORDER[AtMostOnce])

    def still_owner(self, attempt: Attempt) -> bool:
        return bool(self.without) or super().still_owner(attempt)
