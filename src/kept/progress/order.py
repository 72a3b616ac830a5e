"""The one idea: a guarantee is the ORDER OF TWO MOVES, to apply the effect and to record the progress.

    at most once    progress, then effect        a crash in between: the effect is missing
    at least once   effect, then progress        a crash in between: the effect happens again
    exactly once    both in ONE transaction      a crash in between: neither happened

The generators below do no I/O. They yield the next `Step`; a thin shell (consumer, sink, relay) carries
it out and sends back what `READ_PROGRESS` found. Whatever a step raises ends the attempt: nothing is
guessed, the next attempt fences, reads progress, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from kept.guarantees.levels import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.progress.positions import (
    Accept,
    Owner,
    Progress,
    Range,
    Recorded,
    Source,
    Stop,
    advance,
    check,
    check_rows,
    succeeded,
    trust,
)


class Move(Enum):
    """What a shell can be asked to do; the value is how a trace tells it."""

    FENCE = "fences every earlier owner"
    READ_PROGRESS = "reads progress"
    BEGIN = "opens a transaction"
    APPLY_EFFECT = "applies the effect"
    RECORD_PROGRESS = "records progress"
    COMMIT = "commits"


ORDER: Mapping[type, tuple[Move, ...]] = {
    AtMostOnce: (Move.RECORD_PROGRESS, Move.APPLY_EFFECT),
    AtLeastOnce: (Move.APPLY_EFFECT, Move.RECORD_PROGRESS),
    ExactlyOnce: (Move.BEGIN, Move.APPLY_EFFECT, Move.RECORD_PROGRESS, Move.COMMIT),
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows in hand: the range they were planned in, and the offsets that really came."""

    range: Range
    offsets: tuple[int, ...]

    def rest(self) -> Range:
        """What remains of the range after these rows; an offset below it was out of order."""
        return replace(self.range, start=self.offsets[-1] + 1) if self.offsets else self.range


@dataclass(frozen=True, slots=True)
class Seen:
    """The answer to READ_PROGRESS: what is recorded, and the source as it is now."""

    recorded: Recorded
    source: Source


@dataclass(frozen=True, slots=True)
class Step:
    """One move for the shell.

    APPLY_EFFECT: only rows at `drop_below` and above. RECORD_PROGRESS: `new`, and only if `expected`
    is still what is recorded (under the fence, or as a compare-and-set).
    """

    move: Move
    drop_below: int = 0
    expected: Progress | None = None
    new: Progress | None = None


Steps: TypeAlias = Generator[Step, Seen | None, Progress]


def one_chunk(guarantee: AtMostOnce | AtLeastOnce | ExactlyOnce, chunk: Chunk, owner: Owner) -> Steps:
    """Carry one chunk from its source to its effect, in the order that the guarantee is."""
    return in_order(ORDER[type(guarantee)], chunk, owner)


def in_order(moves: tuple[Move, ...], chunk: Chunk, owner: Owner) -> Steps:
    """Fence, look, then the two moves.

    1. Fence BEFORE reading progress: what is read can then no longer change under us.
    2. Read progress; check the source, the owner, gaps and the rows; drop what is done.
    3. The two moves, in their order.
    """
    looked = yield from _fence_and_look()
    accepted = _accepted(check(chunk.range, looked.recorded, looked.source, owner))
    unsound = check_rows(chunk.range, chunk.offsets)
    if unsound is not None:
        raise unsound.error()
    seen = accepted.progress
    if not chunk.offsets or chunk.offsets[-1] < accepted.drop_below:
        return seen
    # Past the last row in hand, never to the end of the range: input cut short looks like a normal end.
    new = advance(seen, chunk.offsets[-1] + 1, chunk.range.leader_epoch, owner)
    for move in moves:
        yield Step(move, accepted.drop_below, seen, new)
    return new


def close_range(done: Range, reached: int, owner: Owner) -> Steps:
    """The driver's last move for a range, after every task was accepted: past the holes at its end.

    `reached` is what the task's own progress was. A lower one now (the sink was restored from a backup
    in between) is a gap, and closing over it would lose the rows for good.
    """
    looked = yield from _fence_and_look()
    written = replace(done, start=reached)
    seen = _accepted(check(written, looked.recorded, looked.source, owner)).progress
    if done.end <= seen.position.next_offset:
        return seen
    new = advance(seen, done.end, done.leader_epoch, owner)
    yield Step(Move.RECORD_PROGRESS, done.end, seen, new)
    return new


def take_over(fingerprint: str, at_least: int = 0, sink: str | None = None) -> Steps:
    """A new driver's first move: the next generation, so that older ones stop for good.

    `at_least` is above every generation that another partition of the same pipeline was seen with. A claim that
    is fenced may be tried again only after a random wait: two that answer at once starve each other.
    """
    looked = yield from _fence_and_look()
    recorded = looked.recorded
    before = recorded.owner.generation if isinstance(recorded, Progress) else 0
    owner = Owner(fingerprint, max(before + 1, at_least), sink)
    seen = _accepted(trust(recorded, looked.source, owner)).progress
    new = advance(seen, seen.position.next_offset, seen.identity.leader_epoch, owner)
    yield Step(Move.RECORD_PROGRESS, seen.position.next_offset, seen, new)
    return new


def follow(owner: Owner, *, tried: bool) -> Steps:
    """A new driver's move for every further partition: the generation that it has won on the first one, never a higher.

    Two drivers that start together meet on the first partition, and the later one wins all; a higher generation here
    is the winner's. The same one is ours if this was `tried` before, with an outcome that nobody has told; else it
    belongs to somebody who began elsewhere.
    """
    looked = yield from _fence_and_look()
    seen = _accepted(trust(looked.recorded, looked.source, owner)).progress
    if seen.owner.generation == owner.generation:
        if tried:
            return seen
        raise succeeded(seen, owner).error()
    new = advance(seen, seen.position.next_offset, seen.identity.leader_epoch, owner)
    yield Step(Move.RECORD_PROGRESS, seen.position.next_offset, seen, new)
    return new


def _fence_and_look() -> Generator[Step, Seen | None, Seen]:
    yield Step(Move.FENCE)
    seen = yield Step(Move.READ_PROGRESS)
    if seen is None:
        raise TypeError("READ_PROGRESS must be answered with what was seen")
    return seen


def _accepted(answer: Accept | Stop) -> Accept:
    if isinstance(answer, Stop):
        raise answer.error()
    return answer
