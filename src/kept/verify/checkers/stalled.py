"""Stalled: no fault was at work, there was something to do, and nothing came for longer than the run's patience."""

from __future__ import annotations

from itertools import pairwise

from kept.verify.checkers.evidence import Anomaly, Evidence
from kept.verify.history.events import Fault
from kept.verify.history.view import History
from kept.verify.stretches import covered


def stalled(history: History) -> list[Evidence]:
    """One for each silence between two arrivals, less the time in which a fault lasted; and one for all that was
    given up.
    """
    patience = history.trial.patience
    given_up = [Evidence(Anomaly.STALLED, one.what, f"{one.what}: given up") for one in history.unfinished]
    times = sorted(found.at for found in history.found)
    silences = [
        _evidence(before, quiet)
        for before, after in pairwise(times)
        if after - before > patience and (quiet := after - before - _at_work(history.faults, before, after)) > patience
    ]
    return given_up + silences


def longest_silence(history: History) -> float | None:
    """Seconds between two arrivals, the faults' own time included, at or after the first fault: how long until it
    went on. None: nothing arrived after it.
    """
    if not history.faults:
        return None
    first = history.faults[0].at
    times = [first, *sorted(found.at for found in history.found if found.at >= first)]
    return max((after - before for before, after in pairwise(times)), default=None)


def _at_work(faults: list[Fault], begin: float, end: float) -> float:
    """Seconds of a stretch in which at least one fault lasted."""
    lasted = ((fault.at, fault.at if fault.until is None else fault.until) for fault in faults)
    return covered((max(at, begin), min(until, end)) for at, until in lasted)


def _evidence(before: float, quiet: float) -> Evidence:
    return Evidence(Anomaly.STALLED, f"{before:.3f}", f"nothing arrived for {quiet:.1f} s, and no fault was at work")
