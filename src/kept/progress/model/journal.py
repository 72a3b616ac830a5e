"""Rule 13: an outbox journal is a source like any other: replaced, restored, or trimmed too soon."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from kept.errors import PersonMustLook
from kept.progress.model.pipeline import FINGERPRINT, HOLE, Attempt, Pipeline
from kept.progress.model.world import Chooser, Fault, Outcome, compare
from kept.progress.order import Seen
from kept.progress.positions import Owner, Progress, Range, Stop, trust


class JournalRelay(Pipeline):
    """The relay carries a journal to its effect; the journal's uuid is the identity of its source."""

    RULE: ClassVar[int] = 13
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {
        "the journal's uuid beside the position": ("lost",),
        "compare the end before the first append": ("lost",),
        "trim only below confirmed progress": ("lost",),
    }
    WORKERS: ClassVar[tuple[str, ...]] = ("the relay",)
    CRASHES: ClassVar[int] = 1

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without)
        self.copy = list(self.log.entries[:2])
        self.standing: list[int] = []
        self.before = 0
        self.disasters = 1

    def read(self, wanted: Range) -> dict[int, int]:
        rows = super().read(wanted)
        if self.without == "trim only below confirmed progress":
            self.log.delete_below(wanted.end)
        elif isinstance(self.store.recorded, Progress):
            self.log.delete_below(self.store.recorded.position.next_offset)
        return rows

    def see(self, attempt: Attempt) -> Seen:
        seen = super().see(attempt)
        source = seen.source
        if self.without == "trim only below confirmed progress":
            source = replace(source, log_start=0)
        elif self.without == "the journal's uuid beside the position" and isinstance(seen.recorded, Progress):
            source = replace(source, identity=seen.recorded.identity)
        return Seen(seen.recorded, source)

    def faults(self) -> list[Fault]:
        if not self.disasters:
            return []
        return [
            ("the disk is replaced: a new journal, filled anew", self.replace_disk),
            ("the journal is restored from an older copy, and the application appends", self.restore),
        ]

    def replace_disk(self) -> None:
        self.begin_again([])
        self.log.recreate()
        self.log.append(5)

    def restore(self) -> None:
        self.begin_again(self.copy)
        self.log.entries = list(self.copy)
        if self.without != "compare the end before the first append":
            self.open()
        if not self.stopped:
            self.log.append(4)

    def begin_again(self, entries: list[int | None]) -> None:
        """What was accepted from now on, and what stands in the journal, must get out."""
        self.disasters -= 1
        for name in list(self.running):  # one process holds a journal; it changes only when none does
            self.crash(name)
        self.log.start = 0
        self.standing = [entry for entry in entries if entry is not HOLE]
        self.before = len(self.log.appended)

    def open(self) -> None:
        """Whoever opens a journal looks at the relay's position first."""
        answer = trust(self.store.recorded, self.log.now(self.store.recorded), Owner(FINGERPRINT, 1000))
        if isinstance(answer, Stop):
            reason = answer.error()
            assert isinstance(reason, PersonMustLook)  # noqa: S101 - no generation is above this one
            self.stop(reason)

    def heal(self) -> None:
        self.log.append()

    def judge(self) -> Outcome:
        accepted = {*self.standing, *self.log.appended[self.before :]}
        return compare(accepted | set(self.store.effects), self.store.effects, self.stopped)
