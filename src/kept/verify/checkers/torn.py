"""Torn: of a transaction, some records are there and some are not."""

from __future__ import annotations

from collections import defaultdict

from kept.verify.checkers.evidence import Anomaly, Evidence, place_of
from kept.verify.history.events import Found
from kept.verify.history.view import History


def torn(history: History) -> list[Evidence]:
    """One for each transaction, whatever its fate: one whose end nobody knows is whole or absent, too.

    What nobody looked for is not missing: the reader must have come to the end.
    """
    if not history.read_whole:
        return []
    sent: dict[str, set[str]] = defaultdict(set)
    for begun in history.begun:
        if begun.transaction is not None:
            sent[begun.transaction].add(begun.value)
    seen: dict[str, dict[str, Found]] = defaultdict(dict)
    for found in history.found:
        if found.transaction is not None:
            seen[found.transaction].setdefault(found.value, found)
    return [
        _evidence(transaction, values - here.keys(), here)
        for transaction, values in sent.items()
        if (here := seen.get(transaction)) and not values <= here.keys()
    ]


def _evidence(transaction: str, missing: set[str], here: dict[str, Found]) -> Evidence:
    some = ", ".join(sorted(missing)[:3])
    return Evidence(
        Anomaly.TORN,
        transaction,
        f"of transaction {transaction} {len(here)} records are there and {len(missing)} are not: {some}",
        tuple(place_of(found) for found in list(here.values())[:3]),
    )
