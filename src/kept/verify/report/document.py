"""A judged run as one JSON document."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kept.guarantees.levels import WORDS
from kept.verify.applicable import WITHOUT_CONTROL, why_not
from kept.verify.cells import Outcome, Trace
from kept.verify.checkers import Evidence
from kept.verify.history import Side
from kept.verify.run_directory import Plan
from kept.verify.stretches import covered
from kept.verify.verdict import Verdict

SHOWN = 20
"""Of each anomaly; the history has all of them."""


@dataclass(frozen=True)
class Report:
    """A run and what it has shown."""

    plan: Plan
    outcomes: Sequence[Outcome]

    @property
    def verdict(self) -> Verdict:
        """Of all cells together: one violation violates, one doubt leaves a doubt."""
        verdicts = {outcome.verdict for outcome in self.outcomes}
        for worst in (Verdict.VIOLATED, Verdict.UNKNOWN):
            if worst in verdicts:
                return worst
        return Verdict.HOLDS if verdicts else Verdict.UNKNOWN

    def tally(self) -> dict[Verdict, int]:
        """How many cells have which verdict."""
        counted = Counter(outcome.verdict for outcome in self.outcomes)
        return {verdict: counted[verdict] for verdict in Verdict}

    @property
    def not_tested(self) -> list[tuple[str, str]]:
        """Scenario and guarantee of each cell that applies, and is not in this run."""
        return [cell for cell, why in self._absent() if why is None]

    @property
    def not_applicable(self) -> list[tuple[str, str, str]]:
        """Scenario and guarantee of each cell that does not apply, and why."""
        return [(*cell, why) for cell, why in self._absent() if why is not None]

    def _absent(self) -> list[tuple[tuple[str, str], str | None]]:
        rows = {outcome.cell.scenario: outcome.cell.row for outcome in self.outcomes}
        here = {(outcome.cell.scenario, outcome.cell.guarantee) for outcome in self.outcomes}
        return [
            ((scenario, word), why_not(scenario, row, word))
            for scenario, row in rows.items()
            for word in WORDS
            if (scenario, word) not in here
        ]

    @property
    def without_control(self) -> list[tuple[str, str]]:
        """Each scenario of this run that has no control, and why."""
        bare = dict.fromkeys(outcome.cell.scenario for outcome in self.outcomes if outcome.cell.control is None)
        return [(scenario, WITHOUT_CONTROL.get(scenario, "nobody has said why")) for scenario in bare]

    @property
    def seconds(self) -> float:
        """What its trials took, one after the other."""
        return sum(end - begin for begin, end in self._trials())

    @property
    def at_work(self) -> float:
        """Seconds in which at least one of its trials was played: two may be at a time, and a run may be in pieces."""
        return covered(self._trials())

    def _trials(self) -> list[tuple[float, float]]:
        """When each was played; one that several cells share is one."""
        lasted = {}
        for outcome in self.outcomes:
            for side, trace in ((Side.SUBJECT, outcome.subject), (Side.CONTROL, outcome.control)):
                if trace is not None and trace.judgement is not None:
                    lasted[outcome.cell.folder(side)] = trace.judgement.lasted
        return list(lasted.values())

    def document(self) -> dict[str, object]:
        return {
            "verdict": self.verdict,
            "cells_by_verdict": {verdict.value: count for verdict, count in self.tally().items()},
            "seed": self.plan.seed,
            "started": self.plan.started,
            "versions": dict(self.plan.versions),
            "smoke": self.plan.smoke,
            "seconds": round(self.at_work, 1),
            "seconds_of_all_trials": round(self.seconds, 1),
            "cells": [_outcome(outcome) for outcome in self.outcomes],
            "not_tested": [{"scenario": scenario, "guarantee": word} for scenario, word in self.not_tested],
            "not_applicable": [
                {"scenario": scenario, "guarantee": word, "why": why} for scenario, word, why in self.not_applicable
            ],
            "without_control": [{"scenario": scenario, "why": why} for scenario, why in self.without_control],
        }

    def as_json(self) -> str:
        return json.dumps(self.document(), indent=1, ensure_ascii=False) + "\n"


def shown(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The first few of each anomaly."""
    taken: Counter[str] = Counter()
    chosen = []
    for one in evidence:
        taken[one.anomaly] += 1
        if taken[one.anomaly] <= SHOWN:
            chosen.append(one)
    return chosen


def _outcome(outcome: Outcome) -> dict[str, object]:
    cell = outcome.cell
    control = outcome.control
    return {
        "scenario": cell.scenario,
        "row": cell.row,
        "title": cell.title,
        "guarantee": cell.guarantee,
        "verdict": outcome.verdict,
        "reasons": list(outcome.reasons),
        "subject": {"thing": cell.thing, **_trace(outcome.subject)},
        "control": None
        if control is None
        else {
            "thing": cell.control,
            "must_show": sorted(cell.breaks),
            "broke": outcome.control_broke,
            **_trace(control),
        },
    }


def _trace(trace: Trace) -> dict[str, object]:
    judgement = trace.judgement
    if judgement is None:
        return {"missing": trace.missing}
    return {
        "seconds": round(judgement.seconds, 1),
        "counts": judgement.counts.document(),
        "reported": list(judgement.told),
        "torn_lines": list(judgement.torn_lines),
        "evidence": [_evidence(one) for one in shown(judgement.evidence)],
        "timeline": None if trace.timeline is None else trace.timeline.document(),
    }


def _evidence(evidence: Evidence) -> dict[str, object]:
    return {
        "anomaly": evidence.anomaly,
        "of": evidence.of,
        "what": evidence.what,
        "places": [place._asdict() for place in evidence.places],
    }
