"""Rule 8: input that is cut short ends like any other; only later does the task fail."""

from __future__ import annotations

from typing import ClassVar

from kept.progress.model.pipeline import Attempt, Performance, Pipeline
from kept.progress.model.world import AttemptOver, Chooser
from kept.progress.order import Chunk, in_order
from kept.progress.positions import Owner, Range


class TruncatedInput(Pipeline):
    """A task sees a normal end in the middle of its range."""

    RULE: ClassVar[int] = 8
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {
        "a task moves progress to its last row only": ("lost",),
        "only an accepted range is closed": ("lost",),
    }
    CRASHES: ClassVar[int] = 1

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without)
        self.accepted = True

    def read(self, wanted: Range) -> dict[int, int]:
        rows = super().read(wanted)
        self.accepted = not (rows and self.unlucky("the input is cut short, and looks like its end"))
        if not self.accepted:
            rows.popitem()
        return rows

    def task(self, wanted: Range, rows: dict[int, int], owner: Owner) -> Performance:
        offsets = tuple(rows)
        if self.without == "a task moves progress to its last row only":
            offsets = (*(offset for offset in offsets if offset < wanted.end - 1), wanted.end - 1)
        return (yield from self.perform(in_order(self.moves, Chunk(wanted, offsets), owner), Attempt(rows)))

    def close(self, wanted: Range, reached: int, owner: Owner) -> Performance:
        if not self.accepted and self.without != "only an accepted range is closed":
            self.note("the task fails after all; the driver does not close the range")
            raise AttemptOver
        return (yield from super().close(wanted, reached, owner))
