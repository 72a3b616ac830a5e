"""Moving a group's positions by hand: pure decisions about where to, and what that reads again or skips."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum

from kept.admin.backlog import Bounds, Place, Position
from kept.errors import FixConfiguration

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EXAMPLES = "give beginning, end, an offset such as 42, a shift such as +10 or -10, or a time such as "
_EXAMPLE_TIME = "2026-01-31T08:00:00Z"


class Kind(Enum):
    """The kinds of targets."""

    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    SHIFT = "shift"
    MOMENT = "moment"


@dataclass(frozen=True)
class Target:
    """Where a person wants positions to be; `number` is the offset, the shift, or the milliseconds since 1970."""

    kind: Kind
    number: int = 0


@dataclass(frozen=True)
class Spot:
    """A partition that is to be moved: its position, its log, and the offset of the moment that was asked for."""

    position: Position
    bounds: Bounds
    at_moment: int | None = None


@dataclass(frozen=True)
class Move:
    """One position as it is and as it will be, with upper bounds for what that costs."""

    place: Place
    old: int | None
    new: int
    bounds: Bounds
    note: str = ""

    @property
    def read_again(self) -> int | None:
        """How many records will be read again, at most; None without an old position."""
        return None if self.old is None else max(0, min(self.old, self.bounds.end) - self.new)

    @property
    def skipped(self) -> int | None:
        """How many records will never be read, at most; None without an old position."""
        return None if self.old is None else max(0, self.new - max(self.old, self.bounds.start))


def read_target(text: str, now: datetime, option: str = "--to") -> Target:
    """What a person typed after --to, or another option."""
    if text in (Kind.BEGINNING.value, Kind.END.value):
        return Target(Kind(text))
    if re.fullmatch(r"[0-9]{1,19}", text):
        return Target(Kind.OFFSET, int(text))
    if re.fullmatch(r"[+-][0-9]{1,19}", text):
        return Target(Kind.SHIFT, int(text))
    return Target(Kind.MOMENT, _milliseconds(text, now, option))


def _milliseconds(text: str, now: datetime, option: str) -> int:
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        raise FixConfiguration(f"{option} {text} is nowhere to go", way_out=_EXAMPLES + _EXAMPLE_TIME) from None
    if moment.tzinfo is None:
        raise FixConfiguration(
            f"{option} {text} does not say in which time zone",
            way_out=f"write it with its zone: {_EXAMPLE_TIME} or +02:00",
        )
    if moment > now:
        raise FixConfiguration(
            f"{option} {text} lies in the future", way_out=f"`{option} end` skips all that is there now"
        )
    # The first record that is not older: a fraction of a millisecond rounds up, never to a record before it.
    milliseconds = -((_EPOCH - moment) // timedelta(milliseconds=1))
    if milliseconds < 0:
        raise FixConfiguration(
            f"{option} {text} lies before 1970", way_out=f"`{option} beginning` is the oldest record"
        )
    return milliseconds


def plan(target: Target, spots: Sequence[Spot]) -> list[Move]:
    """Where each position goes; one that would leave its log is refused, and then nothing moves."""
    refused = [reason for spot in spots if (reason := _refusal(target, spot))]
    if refused:
        raise FixConfiguration(
            "nothing is moved: " + "; ".join(refused),
            way_out="choose a target inside the log, or name the partitions that it fits with --partition",
        )
    return [_move(target, spot) for spot in spots]


def _refusal(target: Target, spot: Spot) -> str | None:
    place, bounds = spot.position.place, spot.bounds
    if target.kind is Kind.SHIFT and spot.position.offset is None:
        return f"{place} has no position to shift"
    new = _new(target, spot)
    if bounds.start <= new <= bounds.end:
        return None
    return f"offset {new} is outside the log of {place}, which goes from {bounds.start} to {bounds.end}"


def _new(target: Target, spot: Spot) -> int:
    if target.kind is Kind.BEGINNING:
        return spot.bounds.start
    if target.kind is Kind.OFFSET:
        return target.number
    if target.kind is Kind.SHIFT:
        return (spot.position.offset or 0) + target.number
    if target.kind is Kind.MOMENT and spot.at_moment is not None:
        return spot.at_moment
    return spot.bounds.end


def _move(target: Target, spot: Spot) -> Move:
    move = Move(spot.position.place, spot.position.offset, _new(target, spot), spot.bounds)
    notes = []
    if target.kind is Kind.MOMENT and spot.at_moment is None:
        notes.append("every record is older: the end")
    if move.new > spot.bounds.stable:
        notes.append(f"beyond a transaction that is still open at offset {spot.bounds.stable}: it would be skipped too")
    return Move(move.place, move.old, move.new, move.bounds, "; ".join(notes))
