"""A judged run as one page of HTML that needs nothing beside itself: no script, no font, no network."""

from __future__ import annotations

from html import escape
from pathlib import Path

from kept.guarantees.levels import WORDS
from kept.verify.applicable import why_not
from kept.verify.cells import Cell, Outcome, Trace
from kept.verify.checkers import Anomaly
from kept.verify.report.chart import NUMBERED, as_svg
from kept.verify.report.document import SHOWN, Report, shown
from kept.verify.verdict import Judgement, Verdict

_CSS = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
# A shape for each verdict, so that no colour stands alone: a round tick, an eight-sided cross, a square question.
_SHAPES = {
    Verdict.HOLDS: '<circle cx="12" cy="12" r="11"/><path class="in" d="M6.5 12.5l4 4 7.5-8.5"/>',
    Verdict.VIOLATED: '<path d="M7.5 1h9L23 7.5v9L16.5 23h-9L1 16.5v-9z"/><path class="in" d="M8 8l8 8M16 8l-8 8"/>',
    Verdict.UNKNOWN: '<rect x="1.5" y="1.5" width="21" height="21" rx="2"/>'
    '<path class="in" d="M8.5 9a3.5 3.5 0 1 1 5.2 3c-1.2.7-1.7 1.3-1.7 2.5M12 17.8v.4"/>',
}
NOT_TESTED = '<span class="small">not tested</span>'
_SAYS = {
    Verdict.HOLDS: "Every cell holds: nothing was seen that its guarantee forbids, and every control broke.",
    Verdict.VIOLATED: "A guarantee was violated.",
    Verdict.UNKNOWN: "Nothing was violated, and not every cell could be shown: an unknown cell is not a green one.",
}


def as_page(report: Report) -> str:
    """The whole page."""
    order = {Verdict.VIOLATED: 0, Verdict.UNKNOWN: 1, Verdict.HOLDS: 2}
    cells = sorted(report.outcomes, key=lambda outcome: order[outcome.verdict])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>kept verify: {report.verdict.value}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        f"<main>\n<h1>Are the guarantees kept?</h1>\n{_sum(report)}\n{_facts(report)}\n"
        f"<h2>Faults against guarantees</h2>\n{_matrix(report)}\n{_legend()}\n{_left_out(report)}"
        "<h2>Cell by cell</h2>\n" + "\n".join(map(_cell, cells)) + "\n</main>\n</body>\n</html>\n"
    )


def _verdict(verdict: Verdict) -> str:
    icon = f'<svg viewBox="0 0 24 24" fill="currentColor" aria-hidden="true">{_SHAPES[verdict]}</svg>'
    return f'<span class="verdict {verdict.value}">{icon}{verdict.value}</span>'


def _sum(report: Report) -> str:
    tally = "".join(f"<li>{count} {verdict.value}</li>" for verdict, count in report.tally().items())
    says = escape(_SAYS[report.verdict] if report.outcomes else "Nothing was run.")
    return (
        f'<div class="sum {report.verdict.value}">{_verdict(report.verdict)}<div style="color:var(--ink)">'
        f"<p>{says}</p><ul>{tally}</ul></div></div>"
    )


def _facts(report: Report) -> str:
    facts = {"seed": str(report.plan.seed), "started": report.plan.started, **report.plan.versions}
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{rows}</dl>'


def _matrix(report: Report) -> str:
    rows: dict[str, dict[str, Outcome]] = {}
    for outcome in report.outcomes:
        rows.setdefault(outcome.cell.scenario, {})[outcome.cell.guarantee] = outcome
    heads = "".join(f'<th scope="col">{word.replace("-", " ")}</th>' for word in WORDS)
    body = "".join(_row(scenario, cells) for scenario, cells in rows.items())
    return (
        f'<table class="matrix"><thead><tr><th scope="col">fault</th>{heads}</tr></thead><tbody>{body}</tbody></table>'
    )


def _row(scenario: str, cells: dict[str, Outcome]) -> str:
    first = next(iter(cells.values())).cell
    title = first.title
    head = f'<th scope="row"><b>{escape(scenario)}</b><span class="small soft">{escape(title)}</span></th>'
    return f"<tr>{head}{''.join(_square(first, word, cells.get(word)) for word in WORDS)}</tr>"


def _square(first: Cell, word: str, outcome: Outcome | None) -> str:
    of = f'<span class="of">{word.replace("-", " ")}</span>'
    if outcome is None:
        applies = why_not(first.scenario, first.row, word) is None
        missing = NOT_TESTED if applies else '<span aria-label="does not apply">&ndash;</span>'
        return f'<td class="none">{of}{missing}</td>'
    judgement = outcome.subject.judgement
    counts = "not run" if judgement is None else _short(judgement)
    return (
        f'<td class="{outcome.verdict.value}"><a href="#{escape(outcome.cell.name)}">{of}{_verdict(outcome.verdict)}'
        f'<span class="small">{escape(counts)}</span></a></td>'
    )


def _short(judgement: Judgement) -> str:
    """Lost and duplicated always, the others when there are any."""
    always = [f"{judgement.shows(anomaly)} {anomaly.value}" for anomaly in (Anomaly.LOST, Anomaly.DUPLICATED)]
    others = [anomaly for anomaly in Anomaly if anomaly not in (Anomaly.LOST, Anomaly.DUPLICATED)]
    return ", ".join([*always, *(f"{n} {anomaly.value}" for anomaly in others if (n := judgement.shows(anomaly)))])


def _legend() -> str:
    said = {
        Verdict.HOLDS: "nothing that the guarantee forbids, and the control broke",
        Verdict.VIOLATED: "the evidence is below",
        Verdict.UNKNOWN: "the run shows nothing; its reasons are below",
    }
    items = "".join(f"<li>{_verdict(verdict)} {escape(words)}</li>" for verdict, words in said.items())
    items += "<li>&ndash; the fault does not apply to this guarantee</li>"
    return f'<ul class="legend">{items}</ul>'


def _left_out(report: Report) -> str:
    """What the matrix has no verdict for, or a verdict without a control, by its reason."""
    lines = [(f"{scenario}, {word.replace('-', ' ')}", why) for scenario, word, why in report.not_applicable]
    lines += [(f"{scenario}, no control", why) for scenario, why in report.without_control]
    items = "".join(f"<li><b>{escape(what)}</b>: {escape(why)}</li>" for what, why in lines)
    return f'<h3>What is left out, and why</h3><ul class="small">{items}</ul>\n' if items else ""


def _cell(outcome: Outcome) -> str:
    cell = outcome.cell
    heading = f"{cell.scenario}, {cell.guarantee.replace('-', ' ')}"
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in outcome.reasons)
    parts = [
        f"<header><h3>{escape(heading)}</h3>{_verdict(outcome.verdict)}</header>",
        f'<p class="small soft">{escape(cell.title)}</p>',
        f'<ul class="reasons">{reasons}</ul>' if reasons else "",
        _counts(outcome),
        _figure("under test", cell.thing, outcome.subject, "subject"),
        "" if outcome.control is None else _figure("control", cell.control or "", outcome.control, "control"),
        _told(outcome.subject.judgement),
        _evidence(outcome.subject.judgement, "What was seen of it", is_open=outcome.verdict is Verdict.VIOLATED),
    ]
    if outcome.control is not None:
        parts.append(_evidence(outcome.control.judgement, "What broke in the control", is_open=False))
    return f'<section class="cell {outcome.verdict.value}" id="{escape(cell.name)}">{"".join(parts)}</section>'


def _counts(outcome: Outcome) -> str:
    """A tile for each number, that of the control beneath."""
    subject = outcome.subject.judgement
    control = None if outcome.control is None else outcome.control.judgement
    ours = {} if subject is None else subject.counts.document()
    theirs = {} if control is None else control.counts.document()
    names = ["sent", "persisted", "refused", "unknown", "found", *(anomaly.value for anomaly in Anomaly), "recovery_s"]
    tiles = "".join(_tile(name, ours.get(name), theirs.get(name), len(theirs) > 0) for name in names)
    return f'<dl class="counts">{tiles}</dl>' if ours or theirs else ""


def _tile(name: str, ours: object, theirs: object, has_control: bool) -> str:
    label = "recovery, s" if name == "recovery_s" else name
    hit = " hit" if ours and name in {anomaly.value for anomaly in Anomaly} else ""
    control = f'<dd class="soft">control {_shown(theirs)}</dd>' if has_control else ""
    return f'<div class="tile{hit}"><dt>{label}</dt><dd class="number">{_shown(ours)}</dd>{control}</div>'


def _shown(number: object) -> str:
    return "&ndash;" if number is None else str(number)


def _figure(name: str, thing: str, trace: Trace, side: str) -> str:
    if trace.judgement is None:
        return f'<p class="small">{escape(f"{name} ({thing}): {trace.missing}")}</p>'
    if trace.timeline is None:
        return ""
    strikes = trace.timeline.strikes
    label = escape(f"records arriving over {trace.timeline.seconds:.0f} s, {len(strikes)} faults")
    items = "".join(f"<li>{escape(strike.what)} ({strike.at:.1f} s)</li>" for strike in strikes[:NUMBERED])
    rest = f'<p class="small soft">and {len(strikes) - NUMBERED} more</p>' if len(strikes) > NUMBERED else ""
    return (
        f'<figure class="{side}"><figcaption>{escape(f"{name}: {thing}")}</figcaption>{as_svg(trace.timeline, label)}'
        f'<ol class="faults">{items}</ol>{rest}</figure>'
    )


def _told(judgement: Judgement | None) -> str:
    said = () if judgement is None else tuple(dict.fromkeys(judgement.told))
    torn = () if judgement is None else judgement.torn_lines
    lists = []
    for title, lines in (("What the product told its user", said), ("Torn lines of killed processes, kept out", torn)):
        if lines:
            items = "".join(f"<li>{escape(line)}</li>" for line in lines[:SHOWN])
            lists.append(f"<details><summary>{title} ({len(lines)})</summary><ul>{items}</ul></details>")
    return "".join(lists)


def _evidence(judgement: Judgement | None, title: str, *, is_open: bool) -> str:
    evidence = () if judgement is None else judgement.evidence
    if not evidence:
        return ""
    items = "".join(f"<li><b>{one.anomaly.value}</b> {escape(one.what)}</li>" for one in shown(evidence))
    more = f", the first {SHOWN} of each" if len(shown(evidence)) < len(evidence) else ""
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{title} ({len(evidence)}{more})</summary><ul>{items}</ul></details>"
