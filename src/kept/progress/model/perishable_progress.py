"""Rule 6: group offsets expire, and anyone can write them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

from kept.progress.model.pipeline import FINGERPRINT, Attempt, Pipeline
from kept.progress.model.world import Chooser, Fault
from kept.progress.order import Seen
from kept.progress.positions import Owner, Position, Progress, Recorded, Unsigned, seed


class PerishableProgress(Pipeline):
    """Progress kept where strangers write and time erases; there is a fence there, but no compare-and-set."""

    RULE: ClassVar[int] = 6
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {
        "our signature": ("lost", "duplicated"),
        "missing means lost": ("duplicated",),
    }
    CRASHES: ClassVar[int] = 1

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without)
        self.disasters = 1

    def see(self, attempt: Attempt) -> Seen:
        recorded = self.store.recorded
        if self.without == "our signature" and recorded is not None:
            recorded = Progress(recorded.position, self.log.identity(), Owner(FINGERPRINT, 0))
        elif self.without == "missing means lost" and recorded is None:
            recorded = seed(Position("payments", 0, 0), self.log.identity(), FINGERPRINT)
        return replace(super().see(attempt), recorded=recorded)

    def still_owner(self, attempt: Attempt) -> bool:
        return attempt.fence == self.store.fence

    def faults(self) -> list[Fault]:
        if not self.disasters:
            return []
        resets = (Unsigned(Position("payments", 0, offset)) for offset in (0, self.log.end))
        foreign = seed(Position("payments", 0, self.log.end), self.log.identity(), "another pipeline")
        return [
            ("progress expires", partial(self.overwrite, None)),
            ("another pipeline of the same name records its own", partial(self.overwrite, foreign)),
            *((f"a stranger moves progress to {r.position}", partial(self.overwrite, r)) for r in resets),
        ]

    def overwrite(self, recorded: Recorded) -> None:
        self.disasters -= 1
        self.store.recorded = recorded

    def heal(self) -> None:
        self.log.append()
