"""Rule 12: plans that put one source partition into two tasks, or its rows out of order."""

from __future__ import annotations

from typing import ClassVar

from kept.progress.model.pipeline import EXACTLY_ONCE, FINGERPRINT, Attempt, Pipeline
from kept.progress.model.world import AttemptOver, Chooser, Worker
from kept.progress.modes import Mode, Operator, choose_mode
from kept.progress.order import Chunk, in_order
from kept.progress.positions import Owner, Range

# What each plan is made of, and the offsets that its tasks get to see.
PLANS: tuple[tuple[tuple[Operator, ...], tuple[tuple[int, ...], ...]], ...] = (
    ((Operator.SCAN, Operator.FILTER), ((0, 1, 3), ())),
    ((Operator.SCAN, Operator.FILTER, Operator.SCAN, Operator.FILTER), ((0, 3), (1,))),
    ((Operator.SCAN, Operator.OTHER), ((3, 0, 1), ())),
    ((Operator.SCAN, Operator.PROJECT), ((0, 3, 1), ())),  # it looks harmless, and is not
)


class PlanShapes(Pipeline):
    """Two tasks of one plan, chunks of one row; progress is by offset, so shape and order matter."""

    RULE: ClassVar[int] = 12
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {
        "partition mode by allow-list": ("lost",),
        "rows rise over the whole input": ("lost",),
    }
    WORKERS: ClassVar[tuple[str, ...]] = ("task 0", "task 1")

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without)
        self.plan_made_of, self.inputs = PLANS[luck.pick(len(PLANS))]
        self.note(f"the plan: {', '.join(operator.value for operator in self.plan_made_of)}")
        allowed = choose_mode(self.plan_made_of) is Mode.PARTITION
        self.by_partition = allowed or without == "partition mode by allow-list"

    def worker(self, name: str) -> Worker:
        if not self.by_partition:
            yield from self.whole_batch()
            return
        pending = Range("payments", 0, 0, self.log.end, 0)
        for offset in self.inputs[self.WORKERS.index(name)]:
            chunk = Chunk(pending, (offset,))
            yield from self.until_done(chunk)
            if self.without != "rows rise over the whole input":
                pending = chunk.rest()

    def until_done(self, chunk: Chunk) -> Worker:
        rows = {offset: value for offset in chunk.offsets if (value := self.log.entries[offset]) is not None}
        while True:
            try:
                steps = in_order(EXACTLY_ONCE, chunk, Owner(FINGERPRINT, 0))
                yield from self.perform(steps, Attempt(rows))
            except AttemptOver:
                yield from self.wait_a_moment()
                continue
            return

    def whole_batch(self) -> Worker:
        """Batch mode: all rows and the batch's identity become visible in one transaction."""
        yield "merges the whole batch, unless it is recorded"
        if not self.store.effects:
            self.store.effects += self.log.appended
