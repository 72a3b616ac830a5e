"""What becomes of a frame that a rule takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kept.errors import FixConfiguration


@dataclass(frozen=True)
class Drop:
    """Swallow it; the connection goes on."""


@dataclass(frozen=True)
class Reset:
    """Swallow it and reset the connection, on both sides."""


@dataclass(frozen=True)
class Delay:
    """Let it through later; what comes behind it on the same connection waits too, as on a slow wire."""

    seconds: float

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise FixConfiguration(f"Delay({self.seconds}) would send it earlier", way_out="give seconds, 0 or more")


@dataclass(frozen=True)
class Hold:
    """Keep it aside until it is released; what comes behind it overtakes it."""


@dataclass(frozen=True)
class HoldAndReset:
    """Keep a request aside and reset the client; the server's side stays open, so that it can still be released."""


@dataclass(frozen=True)
class Duplicate:
    """Send it twice; a second answer to a request is thrown away."""


@dataclass(frozen=True)
class Answer:
    """Answer a request in the server's place, which never sees it: with the whole frame that is made of its bytes."""

    made_of: Callable[[bytes], bytes]


Action = Drop | Reset | Delay | Hold | HoldAndReset | Duplicate | Answer
