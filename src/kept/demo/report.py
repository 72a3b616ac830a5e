"""The demo's report: one HTML page that needs nothing else, for screens large and small, light and dark, and paper."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kept._version import __version__
from kept.demo.audit import HEADINGS, Audit, money
from kept.demo.pictures import balance, curve
from kept.demo.running import Outcome
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce

HOW = """\
<p>A crash at a random moment rarely meets the gap between rows and progress, so the bad luck was made certain: a lock
in Postgres held the pipeline up just there, in the same way under every guarantee, and then its driver, JVM and workers
were killed together (SIGKILL) and started again.</p>
<p>Kill 1 strikes between progress and rows, kill 2 between rows and progress. The table has no key that could hide a
duplicate. The audit reads it with plain SQL, and compares it with the list of payments that were sent.</p>"""
ORDERS = {
    AtMostOnce.word: "progress first, then rows: kill 1 loses the rows in hand",
    AtLeastOnce.word: "rows first, then progress: kill 2 repeats the rows in hand",
    ExactlyOnce.word: "rows and progress in one transaction: there is no in between",
}
STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --quiet: #57606a; --rule: #d0d7de;
  --blue: #0067a5; --fill: #0067a522; --orange: #b34700; --good: #0b6e4f; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e8eaed; --quiet: #a3abb5; --rule: #3a414a;
  --blue: #6cb6ff; --fill: #6cb6ff26; --orange: #ffa25c; --good: #5fd3a6; } }
@media print { :root { --paper: #ffffff; --ink: #000000; --quiet: #333333; --rule: #999999; --blue: #0067a5;
  --fill: #0067a51a; --orange: #b34700; --good: #0b6e4f; } figure, tr { break-inside: avoid; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { max-width: 46rem; margin: .5rem 0; }
.verdict { border-left: .3rem solid var(--good); padding: .25rem .75rem; font-weight: 600; }
.verdict.bad { border-color: var(--orange); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .4rem .6rem; border-bottom: 1px solid var(--rule); vertical-align: top; }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; }
th { color: var(--quiet); font-weight: 600; }
td:first-child { font-weight: 600; white-space: nowrap; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(19rem, 100%), 1fr)); gap: 1.5rem; }
figure { margin: 0; } figcaption { font-weight: 600; } figcaption span { display: block; font-weight: 400;
  color: var(--quiet); font-size: .9rem; }
svg { display: block; width: 100%; height: auto; } .balance { max-width: 34rem; }
svg text { font-size: 13px; fill: var(--ink); font-family: inherit; }
svg .small { font-size: 12px; fill: var(--quiet); }
svg .strong { font-weight: 600; } svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg path { fill: none; } svg .axis { stroke: var(--quiet); } svg .area { fill: var(--fill); }
svg .line { stroke: var(--blue); stroke-width: 2; } svg .wanted { stroke: var(--quiet); stroke-dasharray: 2 4; }
svg .death { stroke: var(--orange); stroke-dasharray: 5 4; } svg .cross { stroke: var(--orange); stroke-width: 2.5; }
svg .dot { fill: var(--blue); } svg .more { fill: var(--orange); } svg .less { fill: var(--blue); }
footer { margin-top: 2rem; color: var(--quiet); font-size: .9rem; }
@media (max-width: 40rem) { table, tbody, tr, td { display: block; } thead { display: none; }
  tr { border-bottom: 1px solid var(--rule); padding: .5rem 0; }
  td, td:first-child, td:last-child { border: 0; padding: .1rem 0; text-align: left; display: flex; gap: 1rem;
    justify-content: space-between; } td:first-child { font-size: 1.05rem; } td:last-child { display: block; }
  td[data-name]::before { content: attr(data-name); color: var(--quiet); } }
"""


def conclusion(audits: Sequence[Audit]) -> str:
    """What the run shows, in a sentence."""
    broken = [each.guarantee for each in audits if not each.as_promised]
    if broken:
        return f"A promise was broken: {', '.join(broken)}."
    balanced = [each.guarantee for each in audits if each.balanced]
    if balanced == [ExactlyOnce.word] and len(audits) > 1:
        return "Only exactly-once balances. Every guarantee kept what it promises."
    if not balanced:
        return "Every guarantee kept what it promises; none of them promises to balance."
    lucky = [word for word in balanced if word != ExactlyOnce.word]
    luck = f" {' and '.join(lucky)} balanced too, this time: it is no promise there." if lucky else ""
    kept = "exactly-once balances." if ExactlyOnce.word in balanced else ""
    return f"{kept}{luck}".strip().capitalize()


def page(outcomes: Sequence[Outcome], seed: int) -> str:
    """The whole report."""
    audits = [each.audit for each in outcomes]
    sent = audits[0]
    seconds = max(each.seconds for each in outcomes)
    rows = max(max(each.audit.sent, each.audit.stored) for each in outcomes)
    verdict = "verdict" if all(each.as_promised for each in audits) else "verdict bad"
    again = f"kept demo --records {sent.sent} --seed {seed}"
    lead = (
        f"{sent.sent:,} payments over {money(sent.cents_sent)} EUR went from Kafka to Postgres through kept's pipeline "
        "on Spark, under each guarantee in turn. Each time the driver was killed twice and started again."
    )
    figures = "\n".join(
        f"<figure><figcaption>{escape(each.audit.guarantee)}<span>{escape(ORDERS[each.audit.guarantee])}</span>"
        f"</figcaption>\n{curve(each, seconds, rows)}\n</figure>"
        for each in outcomes
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Payments through two crashes</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>Payments through two crashes</h1>
<p>{escape(lead)}</p>
<p class="{verdict}">{escape(conclusion(audits))}</p>
<h2>The audit</h2>
{_table(audits)}
<h2>Rows in the table, over time</h2>
<div class="pictures">
{figures}
</div>
<h2>How far the money is off</h2>
<div class="balance">
{balance(audits)}
</div>
<h2>How it was done</h2>
{HOW}
</main>
<footer>kept {__version__}. The same payments and crashes again: <code>{again}</code></footer>
</body>
</html>
"""


def _table(audits: Sequence[Audit]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in HEADINGS)
    body = "\n".join(f"<tr>{_cells(each)}</tr>" for each in audits)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _cells(found: Audit) -> str:
    first, *middle, last = found.row()
    named = "".join(
        f'<td data-name="{escape(name)}">{escape(str(cell))}</td>'
        for name, cell in zip(HEADINGS[1:-1], middle, strict=True)
    )
    return f"<td>{escape(str(first))}</td>{named}<td>{escape(str(last))}</td>"
