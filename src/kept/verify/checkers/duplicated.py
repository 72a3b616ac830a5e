"""Duplicated: a value is there more than once, whatever was said of it."""

from __future__ import annotations

from kept.verify.checkers.evidence import Anomaly, Evidence, place_of
from kept.verify.history.view import History


def duplicated(history: History) -> list[Evidence]:
    """One for each copy beyond the first, in whichever topic or table of the run it is; values are sent to be once."""
    found = []
    for value, (first, *others) in history.copies.items():
        for other in others:
            places = (place_of(first), place_of(other))
            found.append(Evidence(Anomaly.DUPLICATED, value, f"{value} is at {places[0]} and at {places[1]}", places))
    return found
