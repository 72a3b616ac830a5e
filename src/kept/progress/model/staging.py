"""Rule 9: staged rows that another attempt mixed with its own, or that another driver swept away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import ClassVar

from kept.progress.batches import staging_is_whole
from kept.progress.model.world import AttemptOver, Chooser, Fault, Outcome, Worker, World, compare

RECORDS = (1, 2, 3)


class Staging(World):
    """Two drivers run the same batch: two tasks stage rows, the driver merges them and records the batch."""

    RULE: ClassVar[int] = 9
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {
        "own names": ("stalled",),
        "counting": ("lost",),
        "own names and counting": ("duplicated",),
    }
    WORKERS: ClassVar[tuple[str, ...]] = ("driver A", "driver B")

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without)
        self.own_names = without not in ("own names", "own names and counting")
        self.counted = without not in ("counting", "own names and counting")
        self.staged: list[tuple[str, int]] = []
        self.names = 0
        self.sweeps = 1
        self.effects: list[int] = []
        self.recorded = False

    def worker(self, _name: str) -> Worker:
        while not self.recorded:
            promised: dict[str, int] = {}
            # A replay may put other rows into the same task: Spark does not promise otherwise.
            cut = self.luck.pick(len(RECORDS) + 1)
            for task, rows in enumerate((RECORDS[:cut], RECORDS[cut:])):
                staged = yield from self.stage(task, rows)
                promised[staged] = len(rows)
            yield "merges what was staged and records the batch"
            self.merge(promised)

    def stage(self, task: int, rows: tuple[int, ...]) -> Generator[str, None, str]:
        self.names += 1
        staged = f"set {self.names}" if self.own_names else f"batch 0, task {task}"
        for row in rows:
            yield f"stages row {row} of task {task}"
            self.staged.append((staged, row))
        return staged

    def merge(self, promised: dict[str, int]) -> None:
        """One transaction, the batch record locked."""
        if self.recorded:
            return
        found = [(name, row) for name, row in self.staged if name in promised]
        if self.counted and not staging_is_whole(promised, Counter(name for name, _ in found)):
            self.note("rolled back: not the rows that the tasks counted")
            return
        self.effects += [row for _, row in found]
        self.recorded = True
        if self.unlucky("done, but the acknowledgement is lost"):
            raise AttemptOver

    def faults(self) -> list[Fault]:
        return [("a third driver starts and sweeps the staging", self.sweep)] * self.sweeps

    def sweep(self) -> None:
        self.sweeps -= 1
        self.staged.clear()

    def judge(self) -> Outcome:
        return compare(RECORDS, self.effects, self.stopped)
