"""The pictures of the demo's report, as SVG: rows over time with the crashes, and how far the money is off. Pure.

Colours come from the page (light, dark, print); nothing is told by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kept.demo.audit import Audit, off
from kept.demo.running import Died, Outcome

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 14, 386, 44, 214
ROW = 64


def curve(outcome: Outcome, seconds: float, rows: int) -> str:
    """Rows in the table over time; `seconds` and `rows` are what the axes reach, so that pictures compare."""
    found = outcome.audit

    def across(at: float) -> float:
        return LEFT + (RIGHT - LEFT) * at / max(seconds, 0.001)

    def up(count: int) -> float:
        return BOTTOM - (BOTTOM - TOP) * count / max(rows, 1)

    line = [f"M{across(0):.1f} {up(0):.1f}"]
    before = 0
    for at, count in outcome.samples:
        if count != before:
            line.append(f"H{across(at):.1f} V{up(count):.1f}")
            before = count
    line.append(f"H{across(outcome.seconds):.1f}")
    area = f"{' '.join(line)} V{up(0):.1f} Z"
    wanted = up(found.sent)
    told = (
        f"{found.guarantee}: {found.stored} rows after {outcome.seconds:.0f} seconds, {found.sent} were sent; "
        + "; ".join(f"killed at {each.seconds:.0f} s, {each.title}" for each in outcome.died)
    )
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(told)}">',
            f'<path class="area" d="{area}"/>',
            f'<path class="axis" d="M{LEFT} {BOTTOM} H{RIGHT}"/>',
            f'<path class="wanted" d="M{LEFT} {wanted:.1f} H{RIGHT}"/>',
            f'<text class="small" x="{LEFT}" y="{wanted - 6:.1f}">sent {found.sent:,}</text>',
            f'<path class="line" d="{" ".join(line)}"/>',
            *(_death(number, each, across(each.seconds)) for number, each in enumerate(outcome.died, start=1)),
            f'<circle class="dot" cx="{across(outcome.seconds):.1f}" cy="{up(found.stored):.1f}" r="4"/>',
            f'<text class="small" x="{LEFT}" y="{HEIGHT - 18}">0 s</text>',
            f'<text class="small end" x="{RIGHT}" y="{HEIGHT - 18}">{seconds:.0f} s</text>',
            f'<text class="strong" x="{LEFT}" y="20">{found.stored:,} stored{_difference(found)}</text>',
            "</svg>",
        ]
    )


def balance(audits: Sequence[Audit]) -> str:
    """Money too little to the left of the middle, too much to the right."""
    most = max((abs(each.cents_off) for each in audits), default=0)
    middle, reach = WIDTH / 2, WIDTH / 2 - LEFT
    parts = []
    for number, each in enumerate(audits):
        top = number * ROW
        width = reach * abs(each.cents_off) / most if most else 0.0
        start = middle if each.cents_off > 0 else middle - width
        words = "balances" if not each.cents_off else f"{off(each.cents_off)} EUR"
        kind = "more" if each.cents_off > 0 else "less"
        parts.append(f'<text class="small" x="{LEFT}" y="{top + 18}">{escape(each.guarantee)}</text>')
        parts.append(f'<text class="strong end" x="{RIGHT}" y="{top + 18}">{escape(words)}</text>')
        if each.cents_off:
            parts.append(
                f'<rect class="{kind}" x="{start:.1f}" y="{top + 28}" width="{width:.1f}" height="18" rx="2"/>'
            )
        else:
            parts.append(f'<circle class="dot" cx="{middle}" cy="{top + 37}" r="6"/>')
    height = len(audits) * ROW
    told = "; ".join(f"{each.guarantee} is off by {off(each.cents_off)} EUR" for each in audits)
    axis = "".join(f"M{middle} {number * ROW + 24} v26 " for number in range(len(audits)))
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {height + 24}" role="img" aria-label="{escape(told)}">',
            *parts,
            f'<path class="axis" d="{axis}"/>',
            f'<text class="small" x="{LEFT}" y="{height + 14}">money lost</text>',
            f'<text class="small end" x="{RIGHT}" y="{height + 14}">money from nowhere</text>',
            "</svg>",
        ]
    )


def _death(number: int, died: Died, x: float) -> str:
    """A dashed line with a cross and its number."""
    top = BOTTOM + 12
    cross = f"M{x - 5:.1f} {top - 5} l10 10 m0 -10 l-10 10"
    return (
        f'<path class="death" d="M{x:.1f} {TOP} V{BOTTOM}"/><path class="cross" d="{cross}"/>'
        f'<text class="small middle" x="{x:.1f}" y="{HEIGHT - 2}">kill {number}</text>'
        f"<title>{escape(f'killed {died.title} at {died.rows:,} rows')}</title>"
    )


def _difference(found: Audit) -> str:
    more = found.stored - found.sent
    return f": {abs(more):,} too {'many' if more > 0 else 'few'}" if more else ": as many as were sent"
