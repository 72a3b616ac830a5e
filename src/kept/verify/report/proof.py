"""A judged run as one page of Markdown, to be kept beside the documentation: the verdicts, and where they come from."""

from __future__ import annotations

from kept.verify.cells import Outcome
from kept.verify.checkers import Anomaly
from kept.verify.report.document import Report
from kept.verify.verdict import Judgement

_ALWAYS = (Anomaly.LOST, Anomaly.DUPLICATED)
_HEAD = (
    "| fault | guarantee | verdict | sent | faults | lost | duplicated | else | recovery, s | the control broke by |"
)


def as_proof(report: Report) -> str:
    """The page; nothing in it was written by hand."""
    volume = "little volume (`--smoke`)" if report.plan.smoke else "full volume (controls: little)"
    tally = ", ".join(f"{count} {verdict.value}" for verdict, count in report.tally().items() if count)
    took = f"{report.at_work / 60:.0f} min; its trials one after the other: {report.seconds / 60:.0f} min"
    facts = {"seed": str(report.plan.seed), "started": report.plan.started, "took": took, **report.plan.versions}
    return "\n".join(
        [
            "# Proof",
            "",
            f"One run of `kept verify` with {volume}: **{report.verdict.value}** ({tally or 'nothing was run'}).",
            "`make prove` writes this page; [verify.md](verify.md) says what a verdict means. Recovery is the longest",
            "silence from the first fault on, the fault's own time included.",
            "",
            *(f"- {name}: {_cell(value)}" for name, value in facts.items()),
            "",
            _HEAD,
            "|" + "---|" * (_HEAD.count("|") - 1),
            *map(_row, report.outcomes),
            "",
            *_reasons(report),
            *_not_tested(report),
            *_left_out(report),
        ]
    )


def _row(outcome: Outcome) -> str:
    cell, judgement = outcome.cell, outcome.subject.judgement
    numbers = ["-"] * 6 if judgement is None else _numbers(judgement)
    cells = [cell.scenario, cell.guarantee, outcome.verdict.value, *numbers, _control(outcome)]
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _numbers(judgement: Judgement) -> list[str]:
    counts, recovery = judgement.counts, judgement.counts.recovery_s
    others = [f"{n} {each.value}" for each in Anomaly if each not in _ALWAYS and (n := judgement.shows(each))]
    return [
        str(counts.sent),
        str(counts.faults),
        *(str(judgement.shows(each)) for each in _ALWAYS),
        ", ".join(others) or "-",
        "-" if recovery is None else f"{recovery:.1f}",
    ]


def _control(outcome: Outcome) -> str:
    control = None if outcome.control is None else outcome.control.judgement
    if control is None:
        return "-" if outcome.control is None else "not run"
    broken = [f"{control.shows(each)} {each.value}" for each in Anomaly if each in outcome.cell.breaks]
    return f"{', '.join(broken)} ({outcome.cell.control})"


def _reasons(report: Report) -> list[str]:
    lines = [f"- {outcome.cell.name}: {_cell(reason)}" for outcome in report.outcomes for reason in outcome.reasons]
    return ["## What does not hold, or was not shown", "", *lines, ""] if lines else []


def _not_tested(report: Report) -> list[str]:
    """What is not in the table though it applies is not to be taken for something that holds."""
    cells = ", ".join(f"{scenario}.{word}" for scenario, word in report.not_tested)
    return [f"Not tested, though the fault applies: {_cell(cells)}.", ""] if cells else []


def _left_out(report: Report) -> list[str]:
    """Why there is no such cell, or no control."""
    lines = [f"- {scenario}.{word}: {_cell(why)}" for scenario, word, why in report.not_applicable]
    lines += [f"- {scenario}, no control: {_cell(why)}" for scenario, why in report.without_control]
    return ["## What is left out, and why", "", *lines, ""] if lines else []


def _cell(text: str) -> str:
    """Nothing that a run has to tell can end a cell of a table, or a line."""
    return text.replace("|", "\\|").replace("\n", " ")
