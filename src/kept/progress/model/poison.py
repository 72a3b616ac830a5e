"""Rule 14: one record can never be written; its neighbours can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kept.progress.model.world import AttemptOver, Chooser, Outcome, Worker, World, compare
from kept.progress.poison import Fate, fate_of_sqlstate, isolate

RECORDS = (1, 2, 3, 4)
TOGETHER_AT_MOST = 2


class Poison(World):
    """A sink that refuses one record, refuses batches that are too large, and sometimes is just away."""

    RULE: ClassVar[int] = 14
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {
        "only a record refused alone is poison": ("lost",),
        "an error of the connection is no refusal": ("lost",),
        "constraints are checked before the commit": ("stalled",),
    }
    WORKERS: ClassVar[tuple[str, ...]] = ("the sink",)
    MISFORTUNES: ClassVar[int] = 3

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without)
        self.poison = (0, *RECORDS)[luck.pick(5)]
        self.note(f"record {self.poison} is poison" if self.poison else "no record is poison")
        self.written: list[int] = []
        self.dead: list[int] = []
        self.recorded = False

    def worker(self, _name: str) -> Worker:
        while not self.recorded:
            written: list[int] = []
            core = isolate(RECORDS)
            try:
                some = next(core)
                while True:
                    yield f"writes {list(some)} under a savepoint"
                    fate = self.write(some)
                    if fate is Fate.WRITTEN:
                        written += some
                    elif self.without == "only a record refused alone is poison" and fate is Fate.REFUSED:
                        dead = [row for row in RECORDS if row not in written]
                        break
                    some = core.send(fate)
            except StopIteration as end:
                dead = end.value
            yield "commits rows, dead letters and progress"
            self.commit(written, dead)

    def write(self, some: Sequence[int]) -> Fate:
        if self.unlucky("the connection fails (08006)"):
            blamed = self.without == "an error of the connection is no refusal"
            return Fate.REFUSED if blamed else fate_of_sqlstate("08006")
        if len(some) > TOGETHER_AT_MOST:
            return Fate.REFUSED
        if self.poison in some and self.without != "constraints are checked before the commit":
            return fate_of_sqlstate("23514")
        return Fate.WRITTEN

    def commit(self, written: list[int], dead: list[int]) -> None:
        if self.poison in written:
            self.note("the deferred constraint fails at commit; all of it is rolled back")
            return
        self.written += written
        self.dead += dead
        self.recorded = True
        if self.unlucky("done, but the acknowledgement is lost"):
            raise AttemptOver

    def judge(self) -> Outcome:
        expected = [("dead letter" if row == self.poison else "row", row) for row in RECORDS]
        got = [("row", row) for row in self.written] + [("dead letter", row) for row in self.dead]
        return compare(expected, got, self.stopped)
