"""Silent: the product owed its user an error, and never gave it."""

from __future__ import annotations

from kept.verify.checkers.evidence import Anomaly, Evidence
from kept.verify.history.view import History


def silent(history: History) -> list[Evidence]:
    """At most one. Where no fault struck nothing was owed, and a run that was cut short had no time to tell."""
    owed, ended = history.trial.tells, history.ended
    if owed is None or not history.faults or ended is None or ended.cut_short is not None:
        return []
    if history.stopped_as_owed or any(told.what.startswith(f"{owed}: ") for told in history.told):
        return []
    others = [f"{stopped.error}: {stopped.what}" for stopped in history.stops] + [told.what for told in history.told]
    instead = f"; it told instead: {others[0]}" if others else ""
    return [Evidence(Anomaly.SILENT, owed, f"the product owed its user the error {owed}, and did not tell it{instead}")]
