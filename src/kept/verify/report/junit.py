"""A judged run as JUnit's XML: a violated cell has failed, an unknown one is an error, and neither is green."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from kept.verify.cells import Outcome
from kept.verify.report.document import Report, shown
from kept.verify.verdict import Verdict

_ELEMENTS = {Verdict.VIOLATED: "failure", Verdict.UNKNOWN: "error"}
_NOT_IN_XML = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 65534, 65535), "�")


def as_junit(report: Report) -> str:
    """One suite, a test case for each cell."""
    tally = report.tally()
    numbers = f'tests="{len(report.outcomes)}" failures="{tally[Verdict.VIOLATED]}" errors="{tally[Verdict.UNKNOWN]}"'
    cases = "".join(map(_case, report.outcomes))
    properties = {"seed": str(report.plan.seed), **report.plan.versions}
    lines = "".join(
        f"  <property name={_quoted(name)} value={_quoted(value)}/>\n" for name, value in properties.items()
    )
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuite name="kept verify" {numbers} '
        f"timestamp={_quoted(report.plan.started)}>\n <properties>\n{lines} </properties>\n{cases}</testsuite>\n"
    )


def _case(outcome: Outcome) -> str:
    cell, timeline = outcome.cell, outcome.subject.timeline
    seconds = 0.0 if timeline is None else timeline.seconds
    opening = (
        f" <testcase classname={_quoted(cell.scenario)} name={_quoted(cell.guarantee)} time={_quoted(f'{seconds:.1f}')}"
    )
    element = _ELEMENTS.get(outcome.verdict)
    if element is None:
        return f"{opening}/>\n"
    judgement = outcome.subject.judgement
    evidence = [] if judgement is None else [one.what for one in shown(judgement.evidence)]
    text = escape("\n".join([*outcome.reasons, *evidence]).translate(_NOT_IN_XML))
    message = _quoted(outcome.reasons[0])
    return f"{opening}>\n  <{element} message={message}>{text}</{element}>\n </testcase>\n"


def _quoted(text: str) -> str:
    return quoteattr(text.translate(_NOT_IN_XML))
