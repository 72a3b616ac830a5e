"""Rule 3: the topic is made anew under its old name, or its tail is cut and refilled."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from kept.progress.model.pipeline import HOLE, Attempt, Performance, Pipeline
from kept.progress.model.world import Chooser, Fault, Outcome, compare
from kept.progress.order import Seen
from kept.progress.positions import Owner, Progress, Range


class SourceChanges(Pipeline):
    """What stands below progress is not what was read there."""

    RULE: ClassVar[int] = 3
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {
        "compare the topic id": ("lost",),
        "compare the leader epoch": ("lost",),
        "the leader epoch from before the rows were read": ("lost",),
    }
    CRASHES: ClassVar[int] = 1

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without)
        self.disasters = 1

    def see(self, attempt: Attempt) -> Seen:
        seen = super().see(attempt)
        source, recorded = seen.source, seen.recorded
        if self.without == "compare the topic id" and isinstance(recorded, Progress):
            source = replace(source, identity=recorded.identity)
        elif self.without == "compare the leader epoch":
            source = replace(source, epoch_end=source.log_end)
        return Seen(recorded, source)

    def task(self, wanted: Range, rows: dict[int, int], owner: Owner) -> Performance:
        if self.without == "the leader epoch from before the rows were read":
            yield "asks for the leader epoch, its rows in hand"
            wanted = replace(wanted, leader_epoch=self.log.epoch)
        return (yield from super().task(wanted, rows, owner))

    def faults(self) -> list[Fault]:
        if not self.disasters:
            return []
        return [
            ("the topic is deleted, made again and filled", self.recreate),
            ("the tail of the log is cut from offset 1 on and refilled", self.cut),
        ]

    def recreate(self) -> None:
        self.disasters -= 1
        self.log.recreate()
        self.log.append(5)

    def cut(self) -> None:
        self.disasters -= 1
        self.log.cut(1)
        self.log.append(4)

    def heal(self) -> None:
        self.log.append()

    def judge(self) -> Outcome:
        # What vanished before it was read is the source's loss; what stands there is ours to carry.
        standing = {entry for entry in self.log.entries if entry is not HOLE}
        return compare(standing | set(self.store.effects), self.store.effects, self.stopped)


class OrdinaryElections(SourceChanges):
    """Leaders change and nothing is cut: nobody may stop for that."""

    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {}

    def faults(self) -> list[Fault]:
        return [("a new leader is elected, and records come in", self.elect)] if self.log.end < 8 else []

    def elect(self) -> None:
        self.log.cut(self.log.end)
        self.log.append()
