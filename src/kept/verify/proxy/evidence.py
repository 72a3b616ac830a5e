"""What the proxy saw and did: a log with an end, and counts without one."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from enum import Enum

from kept.verify.proxy.frames import Direction, Frame, Kind

REMEMBERED = 20_000


class Did(Enum):
    """What became of a frame or of a connection."""

    PASSED = "passed"
    DROPPED = "dropped"
    DROPPED_AND_RESET = "dropped and reset"
    DELAYED = "delayed"
    HELD = "held"
    HELD_AND_RESET = "held, client reset"
    RELEASED = "released"
    DUPLICATED = "duplicated"
    ANSWERED = "answered in the server's place"
    DISCARDED = "discarded"  # an answer that nobody is there for, or that nobody asked for
    OPENED = "opened"
    CLOSED = "closed"
    NOT_REACHED = "server not reached"
    NOT_UNDERSTOOD = "not understood"


@dataclass(frozen=True)
class Sighting:
    """One line of the log."""

    at: float  # seconds since 1970, to be laid beside the brokers' logs
    broker: int
    connection: int
    did: Did
    direction: Direction | None = None
    kind: Kind | None = None
    number: int | None = None
    client: str | None = None
    version: int | None = None
    note: str = ""


class Evidence:
    """The log and the counts; written by the proxy's thread, read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._log: deque[Sighting] = deque(maxlen=REMEMBERED)
        self._counts: Counter[tuple[Direction, Kind]] = Counter()

    def frame(self, broker: int, connection: int, frame: Frame, did: Did) -> None:
        """A frame and its fate; counted once, when it comes."""
        if frame.kind is None:
            return
        line = Sighting(
            time.time(), broker, connection, did, frame.direction, frame.kind, frame.number, frame.client, frame.version
        )
        with self._lock:
            self._log.append(line)
            if did is not Did.RELEASED:
                self._counts[frame.direction, frame.kind] += 1

    def connection(self, broker: int, connection: int, did: Did, note: str = "") -> None:
        with self._lock:
            self._log.append(Sighting(time.time(), broker, connection, did, note=note))

    def log(self) -> tuple[Sighting, ...]:
        with self._lock:
            return tuple(self._log)

    def counts(self, direction: Direction) -> dict[Kind, int]:
        with self._lock:
            return {kind: count for (way, kind), count in self._counts.items() if way is direction}
