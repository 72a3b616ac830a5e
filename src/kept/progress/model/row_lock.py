"""Rule 5: a Postgres row lock is a mutex, not a fence."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from kept.progress.model.pipeline import FINGERPRINT, Attempt, Performance, Pipeline
from kept.progress.model.world import AttemptOver, Chooser, Fault, Worker
from kept.progress.order import Move, Seen, Steps
from kept.progress.positions import Owner, Position, Recorded, seed

PATIENCE = 3
LOCKED_ORDER = (Move.APPLY_EFFECT, Move.RECORD_PROGRESS, Move.COMMIT)


class RowLock(Pipeline):
    """Each transaction begins by locking the progress row; two owners, one of which may freeze."""

    RULE: ClassVar[int] = 5
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {
        "make the row before locking it": ("duplicated",),
        "read progress in every transaction": ("duplicated",),
        "end the holder when the lock times out": ("stalled",),
    }
    WORKERS: ClassVar[tuple[str, ...]] = ("owner A", "owner B")
    RECORDS: ClassVar[tuple[int | None, ...]] = (1, 2, 3)
    RANGE: ClassVar[int] = 1
    CRASHES: ClassVar[int] = 1

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without, moves=LOCKED_ORDER)
        self.birth = self.store.recorded
        self.store.recorded = None
        self.holder: Attempt | None = None
        self.ended: list[Attempt] = []
        self.remembered: Recorded = None
        self.frozen: dict[str, tuple[Worker, str]] = {}

    def worker(self, _name: str) -> Worker:
        if self.without != "make the row before locking it":
            yield "makes its progress row, unless there is one"
            self.store.recorded = self.store.recorded or self.birth
        owner, remembered = Owner(FINGERPRINT, 0), None
        while (wanted := self.plan()) is not None:
            yield "reads its input"
            try:
                self.remembered = remembered
                remembered = yield from self.task(wanted, self.read(wanted), owner)
            except AttemptOver:
                remembered = None
                continue
            self.checkpoint = max(self.checkpoint, wanted.end)

    def perform(self, steps: Steps, attempt: Attempt) -> Performance:
        attempt.in_transaction = True
        attempt.remembered = self.remembered
        try:
            return (yield from super().perform(steps, attempt))
        finally:
            self.release(attempt)

    def fence(self, attempt: Attempt) -> Worker:
        waited = 0
        while self.holder is not None:
            waited += 1
            if waited > PATIENCE and self.without != "end the holder when the lock times out":
                self.note("the lock timed out: its holder's session is ended")
                self.ended.append(self.holder)
                self.holder = None
                break
            yield "waits for the row lock"
        if self.store.recorded is not None:
            self.holder = attempt

    def release(self, attempt: Attempt) -> None:
        if self.holder is attempt:
            self.holder = None

    def see(self, attempt: Attempt) -> Seen:
        recorded = self.store.recorded
        if recorded is None:
            recorded = seed(Position("payments", 0, 0), self.log.identity(), FINGERPRINT)
        if self.without == "read progress in every transaction" and attempt.remembered is not None:
            recorded = attempt.remembered
        return Seen(recorded, self.log.now(recorded))

    def still_owner(self, attempt: Attempt) -> bool:
        if attempt in self.ended:
            return False
        same = self.store.recorded == attempt.expected
        return same or self.without in (
            "make the row before locking it",
            "read progress in every transaction",
        )

    def faults(self) -> list[Fault]:
        if self.frozen:
            return [(f"{name} wakes up", partial(self.wake, name)) for name in self.frozen]
        return [(f"{name} freezes", partial(self.freeze, name)) for name in self.running]

    def freeze(self, name: str) -> None:
        self.frozen[name] = self.running.pop(name)

    def wake(self, name: str) -> None:
        self.running[name] = self.frozen.pop(name)

    def heal(self) -> None:
        self.retired |= set(self.frozen)
