"""A run over time: how much arrived in each slice of it, and when the faults struck."""

from __future__ import annotations

from dataclasses import dataclass

from kept.verify.history.view import History

SLICES = 60
SHORTEST = 0.1


@dataclass(frozen=True)
class Strike:
    """A fault, in seconds since the run began."""

    what: str
    at: float
    until: float


@dataclass(frozen=True)
class Timeline:
    """Records that arrived in each slice; a slice is so many seconds long."""

    seconds: float
    slice: float
    arrived: tuple[int, ...]
    strikes: tuple[Strike, ...]

    @property
    def peak(self) -> float:
        """Records a second, in the fullest slice."""
        return max(self.arrived, default=0) / self.slice

    def document(self) -> dict[str, object]:
        return {
            "seconds": round(self.seconds, 2),
            "slice_s": round(self.slice, 3),
            "arrived": list(self.arrived),
            "faults": [{"what": s.what, "at": round(s.at, 2), "until": round(s.until, 2)} for s in self.strikes],
        }


def timeline(history: History) -> Timeline | None:
    """Of what the reader found, by the time at which it was appended; None when nothing happened."""
    times = [found.at for found in history.found]
    lasts = [fault.at if fault.until is None else fault.until for fault in history.faults]
    marks = [*times, *lasts, *(fault.at for fault in history.faults), *(begun.at for begun in history.begun)]
    if not marks:
        return None
    begin, end = min(marks), max(marks)
    seconds = max(end - begin, SHORTEST)
    length = max(seconds / SLICES, SHORTEST)
    arrived = [0] * (int(seconds / length) + 1)
    for at in times:
        arrived[int((at - begin) / length)] += 1
    strikes = [Strike(f.what, f.at - begin, last - begin) for f, last in zip(history.faults, lasts, strict=True)]
    return Timeline(seconds, length, tuple(arrived), tuple(strikes))
