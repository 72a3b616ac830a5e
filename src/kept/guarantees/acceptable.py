"""A small vocabulary for the values of a setting that keep a promise.

Values arrive as people write them: strings, numbers or booleans, in any case. Each word of the vocabulary
reads only the spellings that cannot be misread and refuses the rest. librdkafka is more generous, and that is
the danger: it takes "1abc" for 1, "010" for 8 and 4294967297 for 1.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_WHOLE_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]{0,18})", re.ASCII)


class Acceptable(ABC):
    """The values that keep a promise; its text completes the sentence "use ..."."""

    @abstractmethod
    def accepts(self, value: object) -> bool:
        """Whether a person's value keeps the promise."""

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Anything(Acceptable):
    """Every value keeps the promise: the setting is about speed or comfort."""

    def accepts(self, value: object) -> bool:  # noqa: ARG002
        return True

    def __str__(self) -> str:
        return "any value"


@dataclass(frozen=True)
class NotSet(Acceptable):
    """No value keeps the promise: the setting must stay away."""

    def accepts(self, value: object) -> bool:  # noqa: ARG002
        return False

    def __str__(self) -> str:
        return "no value: leave it unset"


@dataclass(frozen=True)
class Text(Acceptable):
    """This text to the letter."""

    text: str

    def accepts(self, value: object) -> bool:
        return str(value) == self.text

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Under(Acceptable):
    """This text, or this text followed by a separator and more."""

    root: str
    separator: str

    def accepts(self, value: object) -> bool:
        text = str(value)
        return text.isprintable() and (text == self.root or text.startswith(self.root + self.separator))

    def __str__(self) -> str:
        return f"{self.root}, alone or followed by {self.separator} and more"


@dataclass(frozen=True)
class OneOf(Acceptable):
    """One of these words in any case, or a spelling that the reader is known to take for one of them."""

    words: tuple[str, ...]
    spellings: Mapping[str, str] = field(default_factory=dict)

    def accepts(self, value: object) -> bool:
        text = str(value)
        # Lower case of a letter outside ASCII can be an ASCII letter (the Kelvin sign is one).
        if not text.isascii():
            return False
        word = text.lower()
        return self.spellings.get(word, word) in self.words

    def __str__(self) -> str:
        return " or ".join(word or "nothing at all" for word in self.words)


@dataclass(frozen=True)
class AtLeast(Acceptable):
    """A whole number that is large enough; `endless` is the number by which the setting means "no limit".

    `up_to` is the largest number the reader can hold: beyond it, C wraps around to a small one.
    """

    least: int
    endless: int | None = None
    up_to: int = INT_MAX

    def accepts(self, value: object) -> bool:
        number = whole_number(value)
        if number is None:
            return False
        return self.least <= number <= self.up_to or number == self.endless

    def __str__(self) -> str:
        no_limit = "" if self.endless is None else f", or {self.endless} (no limit)"
        return f"at least {self.least}{no_limit}"


@dataclass(frozen=True)
class Between(Acceptable):
    """A whole number within two bounds, both included."""

    least: int
    most: int

    def accepts(self, value: object) -> bool:
        number = whole_number(value)
        return number is not None and self.least <= number <= self.most

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


def whole_number(value: object) -> int | None:
    """The number that every reader takes the value for, or None when they may differ."""
    text = str(value)
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else None


# How librdkafka spells a boolean; Java and Spark know only the words themselves.
TRUE = OneOf(("true",), {"t": "true", "1": "true"})
FALSE = OneOf(("false",), {"f": "false", "0": "false"})
JAVA_TRUE = OneOf(("true",))
JAVA_FALSE = OneOf(("false",))
