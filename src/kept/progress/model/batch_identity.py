"""Rule 4: a checkpoint restored from a backup uses the same batch numbers again for other offsets."""

from __future__ import annotations

from typing import ClassVar

from kept.progress.batches import Batch, BatchRecord, Verdict, check_batch
from kept.progress.model.world import AttemptOver, Chooser, Fault, Outcome, Worker, World, compare
from kept.progress.positions import Range, Stop


class BatchIdentity(World):
    """A driver plans numbered batches in its checkpoint; the sink records the last one with its rows."""

    RULE: ClassVar[int] = 4
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {"the offsets in a batch's identity": ("lost",)}
    WORKERS: ClassVar[tuple[str, ...]] = ("the driver",)

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without)
        self.source_end = 3
        self.planned: list[int] = []
        self.committed = 0
        self.backup: tuple[list[int], int] | None = None
        self.disasters = 1
        self.effects: list[int] = []
        self.recorded: BatchRecord | None = None
        self.progress = 0

    def worker(self, _name: str) -> Worker:
        while True:
            number = self.committed
            start = self.planned[number - 1] if number else 0
            if number == len(self.planned):
                if start == self.source_end:
                    return
                yield f"plans batch {number}"
                self.planned.append(min(start + 1 + self.luck.pick(2), self.source_end))
            batch = Batch("query", number, (Range("payments", 0, start, self.planned[number], 0),))
            yield f"writes batch {number}, offsets {start} to {self.planned[number] - 1}"
            self.write(batch)
            yield f"notes batch {number} as done"
            self.committed = number + 1

    def write(self, batch: Batch) -> None:
        """Rows and the batch's identity in one transaction."""
        verdict = self.verdict(batch)
        if isinstance(verdict, Stop):
            raise verdict.error()
        if verdict is Verdict.WRITE:
            self.effects += range(batch.ranges[0].start, batch.ranges[0].end)
            self.recorded, self.progress = batch.record, batch.ranges[0].end
        if self.unlucky("done, but the acknowledgement is lost"):
            raise AttemptOver

    def verdict(self, batch: Batch) -> Verdict | Stop:
        if not self.without:
            return check_batch(batch, self.recorded, {("payments", 0): self.progress})
        done = self.recorded is not None and batch.batch_id <= self.recorded.batch_id
        return Verdict.SKIP if done else Verdict.WRITE

    def faults(self) -> list[Fault]:
        possible: list[Fault] = []
        if self.backup is None:
            possible.append(("a backup of the checkpoint is made", self.back_up))
        elif self.disasters:
            possible.append(("the checkpoint is restored from its backup; the driver starts on it", self.restore))
        return possible

    def back_up(self) -> None:
        self.backup = (list(self.planned), self.committed)

    def restore(self) -> None:
        assert self.backup is not None  # noqa: S101 - offered only when there is one
        self.disasters -= 1
        for name in list(self.running):
            self.crash(name)
        self.planned, self.committed = list(self.backup[0]), self.backup[1]
        self.source_end += 1

    def heal(self) -> None:
        self.source_end += 1

    def judge(self) -> Outcome:
        return compare(range(self.source_end), self.effects, self.stopped)
