"""What an open transaction holds, and how many records one may hold: fewer after a refusal, until the poison stands
alone (rule 14)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kept.consumer.outgoing import Transaction
from kept.consumer.records import Place, Record, last_of_each
from kept.errors import KeptError

MOST = 200_000


class Window:
    """The open transaction, which records are done in it, and how many. `begun` is when its first record was taken.

    `one_by_one`: each output is sent in a batch of its own, for a broker refuses all that travels with a bad one.
    """

    def __init__(self, transaction: Transaction, begun: float, *, one_by_one: bool) -> None:
        self.transaction = transaction
        self.begun = begun
        self.one_by_one = one_by_one
        self.done: dict[Place, Record] = {}
        self.count = 0

    def add(self, records: Sequence[Record]) -> None:
        self.done.update(last_of_each(records))
        self.count += len(records)


class Limit:
    """How many records a transaction may hold."""

    def __init__(self, longest: float) -> None:
        self.records = MOST
        self._longest = longest

    def widen(self) -> None:
        self.records = min(MOST, self.records * 2)

    def narrow(self, window: Window) -> tuple[Record, KeptError] | None:
        """After a transaction was refused: half as much next time; a record refused alone, and why, is returned."""
        reports = window.transaction.reports
        if reports.forbidden is not None:
            raise reports.forbidden
        expired = time.monotonic() - window.transaction.begun >= self._longest
        if reports.refusal is None and not expired:
            return None
        if window.count > 1 or not window.one_by_one:
            self.records = max(1, window.count // 2)
            return None
        (record,) = window.done.values()
        return None if reports.refusal is None else (record, reports.refusal)
