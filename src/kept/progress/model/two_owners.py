"""Rule 7: two owners of one partition: the older must do no harm, the newer must not starve."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from kept.progress.model.pipeline import Attempt, Performance, Pipeline
from kept.progress.model.world import Worker
from kept.progress.order import Chunk, Seen, in_order
from kept.progress.positions import Owner, Progress, Range


class TwoOwners(Pipeline):
    """Progress in a place with a fence and no compare-and-set, as Kafka's group offsets are."""

    RULE: ClassVar[int] = 7
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {
        "fence before reading progress": ("duplicated",),
        "one fence for one progress": ("duplicated",),
        "a generation beside progress": ("stalled",),
        "a random wait after a fenced claim": ("stalled",),
    }
    WORKERS: ClassVar[tuple[str, ...]] = ("owner A", "owner B")

    def task(self, wanted: Range, rows: dict[int, int], owner: Owner) -> Performance:
        if self.without != "fence before reading progress":
            return (yield from super().task(wanted, rows, owner))
        attempt = Attempt(rows)
        yield "reads progress, before its fence"
        attempt.seen_early = self.see(attempt)
        return (yield from self.perform(in_order(self.moves, Chunk(wanted, tuple(rows)), owner), attempt))

    def see(self, attempt: Attempt) -> Seen:
        if attempt.seen_early is not None:
            return attempt.seen_early
        seen = super().see(attempt)
        if self.without == "a generation beside progress" and isinstance(seen.recorded, Progress):
            owner = replace(seen.recorded.owner, generation=0)
            return replace(seen, recorded=replace(seen.recorded, owner=owner))
        return seen

    def still_owner(self, attempt: Attempt) -> bool:
        return attempt.fence == self.store.fence or self.without == "one fence for one progress"

    def wait_a_moment(self) -> Worker:
        if self.without != "a random wait after a fenced claim":
            yield from super().wait_a_moment()
