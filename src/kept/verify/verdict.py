"""The verdict on one history: holds, violated or unknown, with its reasons and its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from kept.verify.allowed import allowed_anomalies
from kept.verify.checkers import CHECKERS, Anomaly, Checker, Evidence
from kept.verify.checkers.stalled import longest_silence
from kept.verify.history.events import Fate
from kept.verify.history.view import History

_BEST_FIRST = (Fate.PERSISTED, Fate.UNKNOWN, Fate.NOT_PERSISTED)


class Verdict(str, Enum):
    """Unknown is never green: a checker that crashed, or a run without evidence, has shown nothing."""

    HOLDS = "holds"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Counts:
    """The run in numbers: values by what the product said of them, and what was found."""

    sent: int
    persisted: int
    refused: int
    unknown: int
    found: int
    faults: int
    anomalies: Mapping[Anomaly, int]
    recovery_s: float | None

    def document(self) -> dict[str, object]:
        numbers = {name: value for name, value in vars(self).items() if name != "anomalies"}
        recovery = None if self.recovery_s is None else round(self.recovery_s, 2)
        return {**numbers, **{each.value: count for each, count in self.anomalies.items()}, "recovery_s": recovery}


@dataclass(frozen=True)
class Judgement:
    """What is to be said of one history. `evidence` is of everything that was seen, allowed or not."""

    verdict: Verdict
    reasons: tuple[str, ...]
    counts: Counts
    evidence: tuple[Evidence, ...]
    torn_lines: tuple[str, ...]
    told: tuple[str, ...]
    lasted: tuple[float, float] = (0.0, 0.0)
    """Its beginning and its end, in seconds since 1970."""
    unread: str | None = None
    """Why the audit does not count; None when everything was read."""
    undone: str | None = None
    """Why what is missing may only not have been done yet; None when all was done that was to be done."""

    @property
    def seconds(self) -> float:
        return self.lasted[1] - self.lasted[0]

    def shows(self, anomaly: Anomaly) -> int:
        """How many of this were seen."""
        return self.counts.anomalies.get(anomaly, 0)


def judge(history: History, checkers: Mapping[Anomaly, Checker] = CHECKERS) -> Judgement:
    """Look at a history with every checker, and hold what they saw against the guarantee."""
    seen: dict[Anomaly, list[Evidence]] = {}
    doubts = _doubts(history)
    for anomaly, checker in checkers.items():
        try:
            seen[anomaly] = checker(history)
        except Exception as crash:  # noqa: BLE001 - whatever it is, this checker has shown nothing
            doubts.append(f"the checker for {anomaly.value} crashed: {crash!r}")
    violations = _violations(history, seen)
    verdict = Verdict.VIOLATED if violations else Verdict.UNKNOWN if doubts else Verdict.HOLDS
    return Judgement(
        verdict,
        tuple(violations + doubts),
        _counts(history, seen),
        tuple(evidence for each in seen.values() for evidence in each),
        history.torn,
        (*(told.what for told in history.told), *(f"{stop.error}: {stop.what}" for stop in history.stops)),
        (history.trial.at, history.trial.at if history.ended is None else history.ended.at),
        next(iter(_not_read(history)), None),
        next(iter(_left_undone(history)), None),
    )


def _violations(history: History, seen: Mapping[Anomaly, list[Evidence]]) -> list[str]:
    trial = history.trial
    allowed = allowed_anomalies(trial.guarantee)
    most = None if trial.at_risk is None else trial.at_risk * max(1, len(history.faults))
    reasons = []
    for anomaly, evidence in seen.items():
        count = len(evidence)
        if count and anomaly not in allowed:
            reasons.append(f"{count} {anomaly.value}, and {trial.guarantee} allows none; first: {evidence[0].what}")
        elif most is not None and count > most:
            reasons.append(f"{count} {anomaly.value}, and {len(history.faults)} faults may cost {most}")
    return reasons


def _doubts(history: History) -> list[str]:
    """Why a history without anomalies would show nothing."""
    doubts = []
    if not history.begun:
        doubts.append("nothing was sent")
    elif Fate.PERSISTED not in history.attempts.values():
        doubts.append("nothing was said to be persisted: there was no promise to keep")
    if not history.faults:
        doubts.append("no fault struck")
    if history.reads and not history.found:
        doubts.append("nothing was found: not one record shows that this could have worked")
    return [*doubts, *_not_read(history), *_not_ended(history)]


def _not_read(history: History) -> list[str]:
    if not history.reads:
        return ["nobody read what is there"]
    return [f"{read.topic} was not read to its end: {read.why}" for read in history.reads if not read.complete]


def _not_ended(history: History) -> list[str]:
    if history.ended is None:
        return ["the run did not come to its end"]
    return [] if history.ended.cut_short is None else [f"the run was cut short: {history.ended.cut_short}"]


def _left_undone(history: History) -> list[str]:
    """Who was cut short, given up, or stopped by itself has left something undone, and need not have lost it."""
    given_up = [f"it was given up: {one.what}" for one in history.unfinished]
    stopped = [f"it stopped with {stop.error}: {stop.what}" for stop in history.stops]
    return [*_not_ended(history), *given_up, *stopped]


def _counts(history: History, seen: Mapping[Anomaly, list[Evidence]]) -> Counts:
    best: dict[str, Fate] = {}
    for attempt, fate in history.attempts.items():
        best[attempt.value] = min(best.get(attempt.value, fate), fate, key=_BEST_FIRST.index)
    fates = Counter(best.values())
    return Counts(
        sent=len(best),
        persisted=fates[Fate.PERSISTED],
        refused=fates[Fate.NOT_PERSISTED],
        unknown=fates[Fate.UNKNOWN],
        found=len(history.found),
        faults=len(history.faults),
        anomalies={anomaly: len(evidence) for anomaly, evidence in seen.items()},
        recovery_s=longest_silence(history),
    )
