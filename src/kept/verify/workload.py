"""What a run sends: values that nobody else sends, each naming its sender, its key and its number."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kept.errors import FixConfiguration

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VALUE = re.compile(rf"({_NAME.pattern})/({_NAME.pattern})/(0|[1-9][0-9]*)")


class Value(NamedTuple):
    """One thing to be sent, once. Numbers rise with the order in which a sender sends."""

    sender: str
    key: str
    number: int

    def __str__(self) -> str:
        return f"{self.sender}/{self.key}/{self.number}"


class Payload(NamedTuple):
    """What stands in a record: the value, and the transaction in which it was sent, where there was one."""

    value: str
    transaction: str | None

    def __str__(self) -> str:
        return self.value if self.transaction is None else f"{self.value} {self.transaction}"


def value_of(text: str) -> Value | None:
    """The value that a text names; None when no workload has made it."""
    found = _VALUE.fullmatch(text)
    return None if found is None else Value(found[1], found[2], int(found[3]))


def payload_of(data: bytes | None) -> Payload:
    """What a record holds; bytes that no workload made are shown as they are, for the checkers to wonder at."""
    text = (data or b"").decode(errors="backslashreplace")
    value, _, transaction = text.partition(" ")
    return Payload(value, transaction or None)


@dataclass(frozen=True)
class Workload:
    """So many records of one sender over so many keys; the seed decides which key comes when."""

    sender: str
    records: int
    keys: int
    seed: int

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.sender):
            raise FixConfiguration(
                f"{self.sender!r} cannot name a sender",
                way_out="use letters, digits and . _ -, a letter or digit first",
            )
        if self.records < 1 or self.keys < 1:
            raise FixConfiguration("a workload of nothing shows nothing", way_out="ask for 1 record and 1 key or more")

    def values(self) -> Iterator[Value]:
        """The same row for the same seed, in whatever process."""
        dice = random.Random(f"{self.seed}/{self.sender}")  # noqa: S311 - to be repeatable is the point
        for number in range(self.records):
            yield Value(self.sender, f"k{dice.randrange(self.keys)}", number)
