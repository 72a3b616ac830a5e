"""One source partition, one place for effect and progress, and owners who carry records across.

The owners run the real thing: `kept.progress.order` decides every step and this world carries it out.
A rule is left out by blinding the owner (it is told that all is well), not by changing the decisions.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from kept.guarantees.levels import ExactlyOnce
from kept.progress.model.world import AttemptOver, Chooser, Outcome, Worker, World, compare
from kept.progress.order import ORDER, Chunk, Move, Seen, Step, Steps, close_range, in_order, take_over
from kept.progress.positions import Identity, Owner, Position, Progress, Range, Recorded, Source, seed

Performance: TypeAlias = Generator[str, None, Progress]

FINGERPRINT = "the pipeline"
EXACTLY_ONCE = ORDER[ExactlyOnce]
HOLE = None


class Log:
    """One source partition: records and holes by offset, and where each leader epoch began."""

    def __init__(self, *entries: int | None) -> None:
        self.entries = list(entries)
        self.appended = [entry for entry in entries if entry is not HOLE]
        self.topic_id = 1
        self.start = 0
        self.epochs = [(0, 0)]

    @property
    def end(self) -> int:
        return len(self.entries)

    @property
    def epoch(self) -> int:
        return self.epochs[-1][0]

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.appended.append(len(self.appended) + 1)
            self.entries.append(self.appended[-1])

    def cut(self, at: int) -> None:
        """The tail is gone and a new leader writes from there on."""
        epoch = self.epoch + 1
        del self.entries[at:]
        self.epochs = [(e, start) for e, start in self.epochs if start < at] + [(epoch, at)]

    def delete_below(self, start: int) -> None:
        """Retention, or a trim."""
        self.start = max(self.start, min(start, self.end))
        self.entries[: self.start] = [HOLE] * self.start

    def recreate(self) -> None:
        """Deleted and made again under the same name: other records at the same offsets."""
        self.entries.clear()
        self.start = 0
        self.topic_id += 1
        self.epochs = [(0, 0)]

    def epoch_end(self, epoch: int) -> int:
        return next((start for later, start in self.epochs if later > epoch), self.end)

    def identity(self) -> Identity:
        return Identity("cluster", f"topic id {self.topic_id}", self.epoch)

    def now(self, recorded: Recorded) -> Source:
        epoch = recorded.identity.leader_epoch if isinstance(recorded, Progress) else 0
        return Source(self.identity(), self.start, self.end, self.epoch_end(epoch))


@dataclass
class Store:
    """Where effect and progress live: what is visible, and the number of the last fence."""

    recorded: Recorded
    effects: list[int] = field(default_factory=list)
    fence: int = 0


@dataclass(eq=False)
class Attempt:
    """One attempt to carry a chunk: its fence, and its transaction while one is open."""

    rows: dict[int, int]
    fence: int = 0
    in_transaction: bool = False
    effects: list[int] = field(default_factory=list)
    expected: Recorded = None
    new: Recorded = None
    seen_early: Seen | None = None
    remembered: Recorded = None


class Pipeline(World):
    """Owners carry records from a log to a store, chunk by chunk, planned from a durable checkpoint."""

    WORKERS: ClassVar[tuple[str, ...]] = ("owner A",)
    RECORDS: ClassVar[tuple[int | None, ...]] = (1, 2, HOLE, 3)
    RANGE: ClassVar[int] = 3

    def __init__(self, luck: Chooser, without: str = "", moves: tuple[Move, ...] = EXACTLY_ONCE) -> None:
        super().__init__(luck, without)
        self.moves = moves
        self.log = Log(*self.RECORDS)
        self.store = Store(seed(Position("payments", 0, 0), self.log.identity(), FINGERPRINT))
        self.checkpoint = 0

    def worker(self, _name: str) -> Worker:
        owner = yield from self.claim()
        while (wanted := self.plan()) is not None:
            yield "reads its input"
            rows = self.read(wanted)
            try:
                reached = yield from self.task(wanted, rows, owner)
                yield from self.close(wanted, reached.position.next_offset, owner)
            except AttemptOver:
                continue
            yield "notes the range in its checkpoint"
            self.checkpoint = wanted.end

    def claim(self) -> Generator[str, None, Owner]:
        """A new driver takes the next generation; fenced meanwhile, it tries again."""
        while True:
            try:
                progress = yield from self.perform(take_over(FINGERPRINT), Attempt({}))
            except AttemptOver:
                yield from self.wait_a_moment()
                continue
            return progress.owner

    def wait_a_moment(self) -> Worker:
        for _ in range(self.luck.pick(8)):
            yield "waits a moment"

    def plan(self) -> Range | None:
        if self.checkpoint >= self.log.end:
            return None
        end = min(self.checkpoint + self.RANGE, self.log.end)
        return Range("payments", 0, self.checkpoint, end, self.log.epoch)

    def read(self, wanted: Range) -> dict[int, int]:
        found = self.log.entries[wanted.start : wanted.end]
        return {wanted.start + i: value for i, value in enumerate(found) if value is not HOLE}

    def task(self, wanted: Range, rows: dict[int, int], owner: Owner) -> Performance:
        chunk = Chunk(self.claimed(wanted), tuple(rows))
        return (yield from self.perform(in_order(self.moves, chunk, owner), Attempt(rows)))

    def close(self, wanted: Range, reached: int, owner: Owner) -> Performance:
        return (yield from self.perform(close_range(self.claimed(wanted), reached, owner), Attempt({})))

    def claimed(self, wanted: Range) -> Range:
        """What an owner says of its range; a rule can be left out here."""
        return wanted

    def see(self, _attempt: Attempt) -> Seen:
        """What an owner is shown when it reads progress; a rule can be left out here."""
        return Seen(self.store.recorded, self.log.now(self.store.recorded))

    def perform(self, steps: Steps, attempt: Attempt) -> Performance:
        """The thin shell: carry out each step that the pure order asks for."""
        answer: Seen | None = None
        try:
            while True:
                step = steps.send(answer)
                answer = None
                yield step.move.value
                if step.move is Move.READ_PROGRESS:
                    answer = self.see(attempt)
                elif step.move is Move.APPLY_EFFECT:
                    yield from self.apply_effect(step, attempt)
                elif step.move is Move.FENCE:
                    yield from self.fence(attempt)
                else:
                    self.carry_out(step, attempt)
        except StopIteration as end:
            progress: Progress = end.value
            return progress

    def fence(self, attempt: Attempt) -> Worker:
        self.store.fence += 1
        attempt.fence = self.store.fence
        yield from ()

    def apply_effect(self, step: Step, attempt: Attempt) -> Worker:
        """Record by record; outside a transaction (a mail, say) nothing takes it back."""
        place = attempt.effects if attempt.in_transaction else self.store.effects
        for offset, value in attempt.rows.items():
            if offset >= step.drop_below:
                place.append(value)
                yield "goes on with the effect"

    def carry_out(self, step: Step, attempt: Attempt) -> None:
        if step.move is Move.BEGIN:
            attempt.in_transaction = True
        elif step.move is Move.RECORD_PROGRESS:
            attempt.expected, attempt.new = step.expected, step.new
        elif step.move is Move.COMMIT:
            attempt.in_transaction = False
        if not attempt.in_transaction:
            self.make_visible(attempt)

    def make_visible(self, attempt: Attempt) -> None:
        if not self.still_owner(attempt):
            self.note("refused: fenced, or progress is not what it was")
            raise AttemptOver
        if attempt.new is not None:
            self.store.recorded = attempt.new
        self.store.effects += attempt.effects
        attempt.effects, attempt.new = [], None
        if self.unlucky("done, but the acknowledgement is lost"):
            raise AttemptOver

    def still_owner(self, attempt: Attempt) -> bool:
        """The fence, and progress compared and set."""
        moved = attempt.new is not None and self.store.recorded != attempt.expected
        return attempt.fence == self.store.fence and not moved

    def judge(self) -> Outcome:
        return compare(self.log.appended, self.store.effects, self.stopped)
