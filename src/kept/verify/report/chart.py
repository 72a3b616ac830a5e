"""The timeline of a run as a picture: bars of what arrived, and each fault as a numbered mark or a shaded stretch."""

from __future__ import annotations

import math

from kept.verify.timeline import Timeline

WIDTH, HEIGHT = 720, 190
LEFT, RIGHT, TOP, BOTTOM = 8, 8, 54, 32
NUMBERED = 12
"""More marks than that stand too close for numbers."""


def as_svg(timeline: Timeline, label: str) -> str:
    """Inline SVG; its colours come from the page. `label` is for those who do not see it, and already escaped."""
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    whole = max(timeline.seconds, timeline.slice * len(timeline.arrived))

    def x(seconds: float) -> float:
        return LEFT + across * seconds / whole

    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        + "".join(_stretch(x(strike.at), x(strike.until)) for strike in timeline.strikes)
        + _bars(timeline, across * timeline.slice / whole, down)
        + _axis(whole, across)
        + "".join(_mark(number, x(s.at), timeline) for number, s in enumerate(timeline.strikes, start=1))
        + f'<text x="{LEFT}" y="{TOP - 32}">{_number(timeline.peak)} records/s</text></svg>'
    )


def _bars(timeline: Timeline, wide: float, down: float) -> str:
    highest = max(timeline.arrived, default=0) or 1
    bars = []
    for number, arrived in enumerate(timeline.arrived):
        if arrived:
            tall = max(1.0, down * arrived / highest)
            bars.append(f"M{LEFT + number * wide:.1f} {TOP + down:.1f}h{max(1.0, wide - 0.7):.1f}v-{tall:.1f}"
                        f"h-{max(1.0, wide - 0.7):.1f}z")  # fmt: skip
    return f'<path class="bar" d="{"".join(bars)}"/>'


def _axis(whole: float, across: float) -> str:
    step = _step(whole)
    base = HEIGHT - BOTTOM
    parts = [f'<path class="axis" d="M{LEFT} {base + 0.5}H{WIDTH - RIGHT}"/>']
    for number in range(int(whole / step) + 1):
        at = LEFT + across * number * step / whole
        anchor = "start" if number == 0 else "middle" if at < WIDTH - 30 else "end"
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{number * step:g} s</text>')
    return "".join(parts)


def _stretch(begin: float, end: float) -> str:
    if end - begin < 1:
        return ""
    box = f'x="{begin:.1f}" y="{TOP}" width="{end - begin:.1f}" height="{HEIGHT - TOP - BOTTOM}"'
    return f'<rect class="last" {box}/><rect class="edge" {box}/>'


def _mark(number: int, at: float, timeline: Timeline) -> str:
    line = f'<path class="strike" d="M{at:.1f} {TOP - 4}V{HEIGHT - BOTTOM}"/>'
    mark = f'<path class="mark" d="M{at - 5:.1f} {TOP - 10}h10l-5 8z"/>'
    if len(timeline.strikes) > NUMBERED:
        return line + mark
    anchor, beside = ("end", -7) if at > WIDTH - 40 else ("start", 7)
    named = f'<text x="{at + beside:.1f}" y="{TOP - 3}" text-anchor="{anchor}">{number}</text>'
    return line + mark + named


def _step(whole: float) -> float:
    """A round number of seconds that gives at most six ticks."""
    rough = whole / 6
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough)


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
