"""Tiny histories, written by hand: a few words make a run."""

from __future__ import annotations

from kept.verify.history import (
    Begun,
    Ended,
    Event,
    Fate,
    Fault,
    Found,
    History,
    Read,
    Settled,
    Side,
    TransactionEnded,
    Trial,
)

PERSISTED, NOT_PERSISTED, UNKNOWN = Fate.PERSISTED, Fate.NOT_PERSISTED, Fate.UNKNOWN
TOPIC = "payments"


def trial(
    guarantee: str = "exactly-once",
    *,
    at_risk: int | None = None,
    side: Side = Side.SUBJECT,
    patience: float = 30.0,
    tells: str | None = None,
) -> Trial:
    return Trial("lost-acknowledgement", guarantee, side, "a producer", 7, 100.0, at_risk, patience, tells)


def sent(value: str, fate: Fate | None = PERSISTED, transaction: str | None = None) -> list[Event]:
    """Begun, and settled unless its fate is None: then nobody heard of it."""
    begun = Begun(value, 101.0, transaction)
    return [begun] if fate is None else [begun, Settled(value, fate, 102.0, transaction, TOPIC, 0, 40)]


def together(transaction: str, fate: Fate | None, *values: str) -> list[Event]:
    """A transaction of these values."""
    begun: list[Event] = [Begun(value, 101.0, transaction) for value in values]
    return begun if fate is None else [*begun, TransactionEnded(transaction, fate, 102.0)]


def found(value: str, offset: int, partition: int = 0, transaction: str | None = None, at: float = 103.0) -> Found:
    return Found(value, TOPIC, partition, offset, at, transaction)


def fed(value: str, offset: int, partition: int = 0) -> list[Event]:
    """In the source for sure, at this place."""
    return [Begun(value, 101.0), Settled(value, PERSISTED, 101.0, None, "source", partition, offset)]


def log(*values: str) -> list[Event]:
    """These values, one after the other in partition 0."""
    return [found(value, offset) for offset, value in enumerate(values)]


def whole(*parts: Event | list[Event], of: Trial | None = None) -> History:
    """A run that went to its end: a fault struck, and a reader read all there is."""
    frame: list[Event] = [of or trial(), Fault("killed broker 2", 102.5), Read(TOPIC, 104.0, True), Ended(105.0)]
    return bare(frame, *parts)


def bare(*parts: Event | list[Event]) -> History:
    events: list[Event] = []
    for part in parts:
        events += part if isinstance(part, list) else [part]
    return History(events)
