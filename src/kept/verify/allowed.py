"""What a guarantee permits. Detection is apart from it: checkers report everything."""

from __future__ import annotations

from kept.errors import FixConfiguration
from kept.guarantees.levels import WORDS, AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.verify.checkers.evidence import Anomaly

_ALLOWED: dict[str, frozenset[Anomaly]] = {
    # A batch that was refused by a broker which does not lead yet may come behind the next one (docs/settings.md).
    AtMostOnce.word: frozenset({Anomaly.LOST, Anomaly.REORDERED}),
    # Without idempotence, which this guarantee allows, a retry may do both (docs/settings.md).
    AtLeastOnce.word: frozenset({Anomaly.DUPLICATED, Anomaly.REORDERED}),
    ExactlyOnce.word: frozenset(),
}


def allowed_anomalies(guarantee: str) -> frozenset[Anomaly]:
    """The anomalies that a guarantee, by its word, may show; how many of them, the run says (`Trial.at_risk`)."""
    if guarantee not in _ALLOWED:
        raise FixConfiguration(f"{guarantee!r} is not a guarantee", way_out=f"it is one of {', '.join(WORDS)}")
    return _ALLOWED[guarantee]
