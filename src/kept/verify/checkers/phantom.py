"""Phantom: a record is there that nobody sent, or that the product said is not and will not be there."""

from __future__ import annotations

from kept.verify.checkers.evidence import Anomaly, Evidence, place_of
from kept.verify.history.events import Fate
from kept.verify.history.view import Attempt, History


def phantom(history: History) -> list[Evidence]:
    """One for each record; a record of an aborted transaction that a read_committed reader met is one too."""
    seen = []
    for found in history.found:
        fate = history.attempts.get(Attempt(found.value, found.transaction))
        if fate is None:
            what = "was never sent"
        elif fate is Fate.NOT_PERSISTED:
            what = f"was said not to be persisted{_in(found.transaction)}"
        else:
            continue
        place = place_of(found)
        seen.append(Evidence(Anomaly.PHANTOM, found.value, f"{found.value} {what}, and is at {place}", (place,)))
    return seen


def _in(transaction: str | None) -> str:
    return "" if transaction is None else f" in transaction {transaction}"
