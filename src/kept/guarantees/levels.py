"""The three guarantees: each is an order of two moves, to apply the effect and to record the progress."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from kept.errors import FixConfiguration

LONGEST_NAME = 100
# Between the parts of a transactional id. Neither a name nor a topic can contain it, so no two lists of
# parts make the same id.
SEPARATOR = "/"
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")


@dataclass(frozen=True)
class AtMostOnce:
    """Record the progress, then apply the effect.

    A crash between the two costs the effects of the batch in hand: they are missing, never repeated.
    """

    word: ClassVar[str] = "at-most-once"


@dataclass(frozen=True)
class AtLeastOnce:
    """Apply the effect, then record the progress.

    A crash between the two costs a repetition of the batch in hand: its effects happen again, none is
    missing.
    """

    word: ClassVar[str] = "at-least-once"


@dataclass(frozen=True)
class ExactlyOnce:
    """Apply the effect and record the progress in one transaction.

    A crash costs only time: neither of the two happened, and both are done again. `name` says whose
    progress it is. It outlives the process: whoever starts next under the same name takes over and fences
    the one before.
    """

    name: str
    word: ClassVar[str] = "exactly-once"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise FixConfiguration(
                f"{self.name!r} cannot name an exactly-once process: the name becomes part of transactional "
                "ids, of a consumer group and of a topic's name",
                way_out=f"use 1 to {LONGEST_NAME} of the characters a-z A-Z 0-9 . _ - and begin with a "
                "letter or a digit, for example ExactlyOnce('payments-writer')",
            )

    @property
    def group(self) -> str:
        """The consumer group under which the progress is kept."""
        return f"kept.{self.name}"

    def transactional_id(self, *parts: str) -> str:
        """An id of this name's own: `kept.<name>`, or `kept.<name>/<part>/<part>` for one of many writers."""
        for part in parts:
            if not part or SEPARATOR in part:
                raise ValueError(f"{part!r} cannot be part of a transactional id: empty, or it contains {SEPARATOR!r}")
        return SEPARATOR.join((f"kept.{self.name}", *parts))


Guarantee: TypeAlias = AtMostOnce | AtLeastOnce | ExactlyOnce

WORDS = (AtMostOnce.word, AtLeastOnce.word, ExactlyOnce.word)


def parse(word: str, name: str | None = None) -> Guarantee:
    """The guarantee that a person named; `name` is needed for exactly-once and only there."""
    if word not in WORDS:
        raise FixConfiguration(
            f"{word!r} is not a guarantee that kept knows", way_out=f"choose one of {', '.join(WORDS)}"
        )
    if word == ExactlyOnce.word:
        if name is None:
            raise FixConfiguration(
                "exactly-once needs a name: its progress is kept under it, and a successor takes over by it",
                way_out="give a name that stays the same from start to start, such as payments-writer",
            )
        return ExactlyOnce(name)
    if name is not None:
        raise FixConfiguration(
            f"{word} takes no name, and {name!r} was given",
            way_out=f"leave the name out, or choose {ExactlyOnce.word}",
        )
    return AtMostOnce() if word == AtMostOnce.word else AtLeastOnce()
