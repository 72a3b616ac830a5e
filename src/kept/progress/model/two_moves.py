"""The order of the two moves itself: owners that crash and zombies that wake up, in any order of moves."""

from __future__ import annotations

from typing import ClassVar

from kept.progress.model.pipeline import HOLE, Pipeline
from kept.progress.order import Move

EFFECT_FIRST = (Move.APPLY_EFFECT, Move.RECORD_PROGRESS)
PROGRESS_FIRST = (Move.RECORD_PROGRESS, Move.APPLY_EFFECT)
EFFECT_THEN_PROGRESS_TRANSACTION = (
    Move.BEGIN,
    Move.APPLY_EFFECT,
    Move.COMMIT,
    Move.BEGIN,
    Move.RECORD_PROGRESS,
    Move.COMMIT,
)
PROGRESS_THEN_EFFECT_TRANSACTION = (
    Move.BEGIN,
    Move.RECORD_PROGRESS,
    Move.COMMIT,
    Move.BEGIN,
    Move.APPLY_EFFECT,
    Move.COMMIT,
)


class TwoMoves(Pipeline):
    """Two owners of one partition; give it an order of moves."""

    WORKERS: ClassVar[tuple[str, ...]] = ("owner A", "owner B")


class TwoMovesAlone(Pipeline):
    """One owner, one range, one crash, one lost acknowledgement: small enough to try every schedule."""

    RECORDS: ClassVar[tuple[int | None, ...]] = (1, 2, HOLE)
    CRASHES: ClassVar[int] = 1
    MISFORTUNES: ClassVar[int] = 1


class TwoMovesUndisturbed(Pipeline):
    """No fault at all: every order must deliver every record once."""

    CRASHES: ClassVar[int] = 0
    MISFORTUNES: ClassVar[int] = 0
