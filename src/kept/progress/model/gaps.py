"""Rule 2: checkpoint, sink and source part ways, and the input starts above progress."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from kept.progress.model.pipeline import Attempt, Performance, Pipeline
from kept.progress.model.world import Chooser, Fault
from kept.progress.order import Seen
from kept.progress.positions import Owner, Range, Recorded


class Gaps(Pipeline):
    """A checkpoint that is deleted (start at the latest offset), a sink restored from a backup, retention."""

    RULE: ClassVar[int] = 2
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {
        "compare the range with progress": ("lost",),
        "compare the log's start with progress": ("lost",),
        "compare what the task reached when a range is closed": ("lost",),
    }
    CRASHES: ClassVar[int] = 1

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without)
        self.backup: tuple[Recorded, list[int]] | None = None
        self.disasters = 1

    def claimed(self, wanted: Range) -> Range:
        return replace(wanted, start=0) if self.without == "compare the range with progress" else wanted

    def see(self, attempt: Attempt) -> Seen:
        seen = super().see(attempt)
        blind = self.without == "compare the log's start with progress"
        return replace(seen, source=replace(seen.source, log_start=0)) if blind else seen

    def close(self, wanted: Range, reached: int, owner: Owner) -> Performance:
        blind = self.without == "compare what the task reached when a range is closed"
        return (yield from super().close(wanted, wanted.start if blind else reached, owner))

    def faults(self) -> list[Fault]:
        possible: list[Fault] = []
        if self.backup is None:
            possible.append(("a backup of the sink is made", self.back_up))
        if self.disasters:
            possible.append(("the checkpoint is deleted, the driver starts at the latest offset", self.delete))
            possible.append(("retention deletes the first three offsets", self.expire))
            if self.backup is not None:
                possible.append(("the sink is restored from its backup", self.restore))
        return possible

    def back_up(self) -> None:
        self.backup = (self.store.recorded, list(self.store.effects))

    def restore(self) -> None:
        assert self.backup is not None  # noqa: S101 - offered only when there is one
        self.disasters -= 1
        self.store.fence += 1
        self.store.recorded, self.store.effects = self.backup[0], list(self.backup[1])

    def expire(self) -> None:
        self.disasters -= 1
        self.log.delete_below(3)

    def delete(self) -> None:
        self.disasters -= 1
        for name in list(self.running):
            self.crash(name)
        self.checkpoint = self.log.end

    def heal(self) -> None:
        self.log.append()
