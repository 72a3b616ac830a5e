"""Which guarantees a fault is about: a cell that is missing though it applies was not tested, and is called so."""

from __future__ import annotations

from collections.abc import Mapping

from kept.guarantees.levels import WORDS, AtLeastOnce, AtMostOnce

NOT_ABOUT: Mapping[int, frozenset[str]] = {
    4: frozenset({AtMostOnce.word}),
    7: frozenset({AtMostOnce.word}),
    10: frozenset({AtMostOnce.word, AtLeastOnce.word}),
    11: frozenset({AtMostOnce.word}),
    16: frozenset({AtMostOnce.word}),
}
"""By row of the matrix of faults: guarantees without transactions have none to be left open, late or timed out."""


def applies(row: int, guarantee: str) -> bool:
    """Does the fault of this row say anything about this guarantee? Of a row that nobody knows: it may."""
    return guarantee in WORDS and guarantee not in NOT_ABOUT.get(row, frozenset())
