"""A rule: which frames, which of those, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kept.errors import FixConfiguration
from kept.verify.proxy.actions import Action, Answer, HoldAndReset
from kept.verify.proxy.frames import Direction, Frame, Kind
from kept.verify.proxy.occurrences import Always, Occurrence

EVERY_ONE = Always()


@dataclass(frozen=True)
class Rule:
    """Frames of one kind (None: of every kind) in one direction; no brokers named means all of them."""

    kind: Kind | None
    direction: Direction
    action: Action
    when: Occurrence = EVERY_ONE
    brokers: Collection[int] = ()
    client: str | None = None
    at_most: int | None = None
    about: Callable[[bytes], bool] | None = None
    """A look into the bytes of a frame that is otherwise meant; None: all of them."""

    def __post_init__(self) -> None:
        if self.at_most is not None and self.at_most < 1:
            raise FixConfiguration(
                f"a rule that acts at most {self.at_most} times does nothing", way_out="give 1 or more, or leave it out"
            )
        if isinstance(self.action, HoldAndReset) and self.direction is Direction.RESPONSE:
            raise FixConfiguration(
                "HoldAndReset of a response: nobody is left to release it to", way_out="use Reset, or Hold without it"
            )
        if isinstance(self.action, Answer) and self.direction is Direction.RESPONSE:
            raise FixConfiguration("Answer to a response: it is the answer", way_out="take the request")

    def names(self, frame: Frame, broker: int) -> bool:
        """Is this one of its frames, whichever occurrence it may be?"""
        return (
            frame.kind is not None
            and frame.direction is self.direction
            and (self.kind is None or frame.kind == self.kind)
            and (not self.brokers or broker in self.brokers)
            and (self.client is None or frame.client == self.client)
            and (self.about is None or self.about(frame.data))
        )

    def __str__(self) -> str:
        what = "frame" if self.kind is None else getattr(self.kind, "name", self.kind)
        return f"{type(self.action).__name__} of {what} {self.direction.value}"


class Count:
    """How far a rule has come."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.taken = 0
        self._pattern = rule.when.pattern()

    def takes(self, frame: Frame, broker: int) -> bool:
        """Does the rule act on this frame? Asking counts the frame."""
        if not self.rule.names(frame, broker) or self.taken == self.rule.at_most:
            return False
        taken = next(self._pattern)
        self.taken += taken
        return taken
