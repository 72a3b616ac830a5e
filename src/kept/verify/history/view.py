"""A history as the checkers look at it: sorted by kind, with the fate of every attempt."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

from kept.errors import FixConfiguration
from kept.verify.history.events import (
    Begun,
    Ended,
    Event,
    Fate,
    Fault,
    Found,
    Read,
    Settled,
    Shortened,
    Stopped,
    Told,
    TransactionEnded,
    Trial,
    Unfinished,
)

Kind = TypeVar("Kind", bound=Event)


class Attempt(NamedTuple):
    """A value on its way in one transaction, or in none; sent again outside of one, it is the same attempt."""

    value: str
    transaction: str | None


class History:
    """Everything that is known of one run; nothing in here decides anything."""

    def __init__(self, events: Iterable[Event], torn: Sequence[str] = ()) -> None:
        self.torn = tuple(torn)
        self._events: dict[type, list[Event]] = defaultdict(list)
        for event in events:
            self._events[type(event)].append(event)

    def _of(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self._events[kind] if isinstance(event, kind)]

    @cached_property
    def trial(self) -> Trial:
        trials = self._of(Trial)
        if len(trials) != 1:
            raise FixConfiguration(
                f"a history says once what it is of, and this one {len(trials)} times",
                way_out="run the scenario again; two runs in one folder make no history",
            )
        return trials[0]

    @cached_property
    def begun(self) -> list[Begun]:
        return self._of(Begun)

    @cached_property
    def settled(self) -> list[Settled]:
        return self._of(Settled)

    @cached_property
    def faults(self) -> list[Fault]:
        return sorted(self._of(Fault), key=lambda fault: fault.at)

    @cached_property
    def shortened(self) -> list[Shortened]:
        return self._of(Shortened)

    @cached_property
    def found(self) -> list[Found]:
        """As they stand in their topics and tables."""
        return sorted(self._of(Found), key=lambda found: (found.topic, found.partition, found.offset))

    @cached_property
    def reads(self) -> list[Read]:
        return self._of(Read)

    @property
    def read_whole(self) -> bool:
        """Did the reader come to the end of everything? Only then can anything be said to be missing."""
        return bool(self.reads) and all(read.complete for read in self.reads)

    @cached_property
    def told(self) -> list[Told]:
        return self._of(Told)

    @cached_property
    def stops(self) -> list[Stopped]:
        return self._of(Stopped)

    @property
    def stopped_as_owed(self) -> bool:
        """Did the product end its work with the very error that it owed?"""
        return any(stopped.error == self.trial.tells for stopped in self.stops)

    @cached_property
    def unfinished(self) -> list[Unfinished]:
        return self._of(Unfinished)

    @cached_property
    def ended(self) -> Ended | None:
        return max(self._of(Ended), key=lambda ended: ended.at, default=None)

    @cached_property
    def attempts(self) -> dict[Attempt, Fate]:
        """The fate of each attempt that was begun. Of several sendings of one, the best fate counts, and one that
        nobody heard of is unknown.
        """
        together = {ended.transaction: ended.fate for ended in self._of(TransactionEnded)}
        heard: dict[Attempt, list[Fate]] = defaultdict(list)
        for settled in self.settled:
            heard[Attempt(settled.value, settled.transaction)].append(settled.fate)
        times = Counter(Attempt(begun.value, begun.transaction) for begun in self.begun)
        return {
            attempt: together[attempt.transaction]
            if attempt.transaction in together
            else _fate(heard.get(attempt, []), often)
            for attempt, often in times.items()
        }

    @cached_property
    def copies(self) -> dict[str, list[Found]]:
        """Where each value was found; a value that was not found is not in here."""
        copies: dict[str, list[Found]] = defaultdict(list)
        for found in self.found:
            copies[found.value].append(found)
        return dict(copies)


def _fate(heard: list[Fate], times: int) -> Fate:
    if Fate.PERSISTED in heard:
        return Fate.PERSISTED
    if Fate.UNKNOWN in heard or len(heard) < times:
        return Fate.UNKNOWN
    return Fate.NOT_PERSISTED
