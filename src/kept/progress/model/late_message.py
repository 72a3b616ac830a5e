"""Rule 1: a commit or an offset held back by the network arrives in a later transaction of the same epoch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from kept.progress.model.pipeline import Attempt, Pipeline
from kept.progress.model.world import AttemptOver, Chooser, Fault, Worker
from kept.progress.order import Move, Step


class LateMessage(Pipeline):
    """The client resends what was held, is told OK, and goes on; the held frame is still on its way."""

    RULE: ClassVar[int] = 1
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {"a fresh producer for every transaction": ("duplicated",)}
    RECORDS: ClassVar[tuple[int | None, ...]] = (1, 2, 3, 4)
    RANGE: ClassVar[int] = 2
    CRASHES: ClassVar[int] = 1
    MISFORTUNES: ClassVar[int] = 3

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without)
        self.producer: int | None = None
        self.open: Attempt | None = None
        self.held: list[Fault] = []

    def worker(self, name: str) -> Worker:
        self.producer = None
        yield from super().worker(name)

    def fence(self, attempt: Attempt) -> Worker:
        if self.without and self.producer is not None:
            attempt.fence = self.producer
            return
        yield from super().fence(attempt)
        self.producer = attempt.fence
        self.open = None

    def carry_out(self, step: Step, attempt: Attempt) -> None:
        if step.move is Move.BEGIN:
            self.open = attempt
        elif attempt.in_transaction and self.open is not attempt:
            self.producer = None
            raise AttemptOver
        elif step.move is Move.RECORD_PROGRESS:
            self.hold(attempt, "an offset", partial(self.move_progress, step))
        elif step.move is Move.COMMIT:
            self.hold(attempt, "a commit", self.end_transaction)
            self.open = None
        super().carry_out(step, attempt)

    def hold(self, attempt: Attempt, what: str, act: Callable[[Attempt], None]) -> None:
        if attempt.in_transaction and self.unlucky(f"{what} is held back and silently sent again"):
            self.held.append((f"the held frame with {what} arrives", partial(self.arrive, attempt.fence, act)))

    def arrive(self, epoch: int, act: Callable[[Attempt], None]) -> None:
        if self.open is not None and self.open.fence == epoch == self.store.fence:
            act(self.open)
        else:
            self.note("refused: no transaction of that epoch")

    def move_progress(self, step: Step, attempt: Attempt) -> None:
        attempt.new = step.new

    def end_transaction(self, attempt: Attempt) -> None:
        self.store.effects += attempt.effects
        if attempt.new is not None:
            self.store.recorded = attempt.new
        self.open = None

    def faults(self) -> list[Fault]:
        return [(told, partial(self.deliver, fault)) for fault in self.held for told in fault[:1]]

    def deliver(self, fault: Fault) -> None:
        self.held.remove(fault)
        fault[1]()
