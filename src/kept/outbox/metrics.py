"""Figures of an outbox at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metrics:
    """What `kept outbox status --json` prints; counts of this process, and the state of the journal."""

    enqueued: int
    """Records that this process has put on the disk."""
    commits: int
    """Fsyncs that they took; fewer than records where senders share one."""
    relayed: int
    """Records that this process's own relay has confirmed."""
    records: int
    """Records that wait, of all processes."""
    bytes: int
    oldest_age: float
    """Seconds since the oldest of them was sent."""
    refused: int
    """Records that were set aside."""
    last_error: str | None
    """What holds the relay of this process up, or ended it; None when it is well."""
