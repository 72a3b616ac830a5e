"""Rule 10: a lazy result is computed again midway, and comes out in another shape."""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from kept.progress.model.world import AttemptOver, Chooser, Fault, Outcome, Worker, World, compare

RECORDS = (1, 2, 3)


class LazyResult(World):
    """A shuffle deals records into two parts, differently each time; executors that die take it with them."""

    RULE: ClassVar[int] = 10
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {
        "materialise before the transaction": ("lost", "duplicated"),
    }
    WORKERS: ClassVar[tuple[str, ...]] = ("the driver",)

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without)
        self.shuffle: tuple[list[int], list[int]] | None = None
        self.executors = 3
        self.effects: list[int] = []
        self.recorded = False

    def worker(self, _name: str) -> Worker:
        while not self.recorded:
            rows = (yield from self.stream()) if self.without else (yield from self.materialise())
            yield "commits the rows and the batch"
            self.effects += rows
            self.recorded = True
            if self.unlucky("done, but the acknowledgement is lost"):
                raise AttemptOver

    def stream(self) -> Generator[str, None, list[int]]:
        """Part by part into the open transaction; Spark computes again what is missing, and says nothing."""
        rows: list[int] = []
        for part in (0, 1):
            yield f"pulls part {part} of the result"
            rows += self.compute()[part]
        return rows

    def materialise(self) -> Generator[str, None, list[int]]:
        """The whole result of ONE computation, or none of it."""
        while True:
            yield "has the result computed and stored"
            computed = self.compute()
            yield "stores the rest of it"
            if self.shuffle is computed:
                return computed[0] + computed[1]
            self.note("executors died meanwhile: what was stored is thrown away")

    def compute(self) -> tuple[list[int], list[int]]:
        if self.shuffle is None:
            self.shuffle = ([], [])
            for record in RECORDS:
                self.shuffle[self.luck.pick(2)].append(record)
        return self.shuffle

    def faults(self) -> list[Fault]:
        return [("executors die, and the shuffle with them", self.lose)] if self.executors else []

    def lose(self) -> None:
        self.executors -= 1
        self.shuffle = None

    def judge(self) -> Outcome:
        return compare(RECORDS, self.effects, self.stopped)
