"""Reordered: of one sender and key, a record stands behind one that was sent after it."""

from __future__ import annotations

from kept.verify.checkers.evidence import Anomaly, Evidence, place_of
from kept.verify.history.events import Found
from kept.verify.history.view import History
from kept.verify.workload import value_of


def reordered(history: History) -> list[Evidence]:
    """One for each record that stands too late in its partition. Only first copies count: who repeats a stretch
    shows 1 2 3 2 3 4, and has kept the order.
    """
    seen: set[tuple[str, int, str]] = set()
    furthest: dict[tuple[str, int, str, str], tuple[int, Found]] = {}
    late = []
    for found in history.found:
        value = value_of(found.value)
        copy = (found.topic, found.partition, found.value)
        if value is None or copy in seen:
            continue
        seen.add(copy)
        row = (found.topic, found.partition, value.sender, value.key)
        number, before = furthest.get(row, (-1, found))
        if value.number > number:
            furthest[row] = (value.number, found)
        else:
            late.append(_evidence(found, before))
    return late


def _evidence(found: Found, before: Found) -> Evidence:
    places = (place_of(before), place_of(found))
    what = f"{found.value}, at {places[1]}, stands behind {before.value}, at {places[0]}, which was sent later"
    return Evidence(Anomaly.REORDERED, found.value, what, places)
