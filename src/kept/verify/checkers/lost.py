"""Lost: the product said that a record is persisted, and nobody finds it."""

from __future__ import annotations

from kept.verify.checkers.evidence import Anomaly, Evidence, Place
from kept.verify.history.events import Fate, Settled
from kept.verify.history.view import History


def lost(history: History) -> list[Evidence]:
    """One for each value. An unknown one may be missing: it was never promised. What nobody looked for is not lost.

    Nor is what a product left undone that stopped with the error it owed. But a stop excuses only what lies behind it:
    of each partition of the source, everything before the furthest record that is there is owed all the same.
    """
    if not history.read_whole:
        return []
    promised = dict.fromkeys(attempt.value for attempt, fate in history.attempts.items() if fate is Fate.PERSISTED)
    missing = [value for value in promised if value not in history.copies]
    if not missing:
        return []
    receipts = {settled.value: settled for settled in history.settled if settled.fate is Fate.PERSISTED}
    if history.stopped_as_owed:
        places = {value: place for value, settled in receipts.items() if (place := _place(settled)) is not None}
        furthest = _furthest([place for value, place in places.items() if value in history.copies])
        missing = [value for value in missing if not _is_behind(places.get(value), furthest)]
    return [_evidence(value, receipts.get(value)) for value in missing]


def _furthest(places: list[Place]) -> dict[tuple[str, int], int]:
    """By topic and partition."""
    furthest: dict[tuple[str, int], int] = {}
    for place in places:
        furthest[place[:2]] = max(place.offset, furthest.get(place[:2], -1))
    return furthest


def _is_behind(place: Place | None, furthest: dict[tuple[str, int], int]) -> bool:
    """A record whose place nobody knows has no excuse."""
    return place is not None and place.offset > furthest.get(place[:2], -1)


def _place(receipt: Settled) -> Place | None:
    if receipt.topic is None or receipt.partition is None or receipt.offset is None:
        return None
    return Place(receipt.topic, receipt.partition, receipt.offset)


def _evidence(value: str, receipt: Settled | None) -> Evidence:
    place = None if receipt is None else _place(receipt)
    if place is None:
        return Evidence(Anomaly.LOST, value, f"{value} was said to be persisted, and is nowhere")
    return Evidence(Anomaly.LOST, value, f"{value} was said to be at {place}, and is nowhere", (place,))
