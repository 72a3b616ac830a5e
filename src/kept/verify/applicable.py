"""Which guarantees a fault is about, and why not others: a cell that is missing though it applies was not tested."""

from __future__ import annotations

from collections.abc import Mapping

from kept.guarantees.levels import WORDS, AtLeastOnce, AtMostOnce

_NO_TRANSACTIONS = "a guarantee without transactions has none to be left open, late or timed out"
_COMMITS_APART = (
    "its commit stands alone, before the effect: nothing of it can be torn; what it loses is at-least-once's control"
)
_READS_ALIKE = "it reads as at-least-once does, which is asked; what it has not read it cannot lose"
NOT_ABOUT: Mapping[int, Mapping[str, str]] = {
    4: {AtMostOnce.word: _NO_TRANSACTIONS},
    7: {AtMostOnce.word: _COMMITS_APART},
    10: dict.fromkeys((AtMostOnce.word, AtLeastOnce.word), _NO_TRANSACTIONS),
    11: dict.fromkeys((AtMostOnce.word, AtLeastOnce.word), _NO_TRANSACTIONS),
    16: {AtMostOnce.word: _READS_ALIKE},
}
"""By row of the matrix of faults."""

_NO_PROGRESS = (
    "a plain producer keeps no progress that a successor could take over, and has no name to be fenced by: "
    "zombie-consumer asks it of who has"
)
NOT_UNDER: Mapping[str, Mapping[str, str]] = {
    "zombie": dict.fromkeys((AtMostOnce.word, AtLeastOnce.word), _NO_PROGRESS),
}
"""By scenario, where another one of the same row is about that guarantee."""

_NO_WEAKER = "no weaker setting makes a full disk lose or repeat anything: it refuses, whatever was asked for"
WITHOUT_CONTROL: Mapping[str, str] = dict.fromkeys(("disk-full", "disks-full", "postgres-disk-full"), _NO_WEAKER)
"""By scenario: why it has none."""


def why_not(scenario: str, row: int, guarantee: str) -> str | None:
    """Why a fault says nothing about this guarantee; None where it does. Of one that nobody knows: it may."""
    if guarantee not in WORDS:
        return f"{guarantee} is no guarantee"
    return NOT_UNDER.get(scenario, {}).get(guarantee) or NOT_ABOUT.get(row, {}).get(guarantee)
