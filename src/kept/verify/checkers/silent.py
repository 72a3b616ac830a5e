"""Silent: the product owed its user an error, and never gave it; or it gave it with a wrong number, or with none."""

from __future__ import annotations

import re

from kept.verify.checkers.evidence import Anomaly, Evidence
from kept.verify.history.events import Fate
from kept.verify.history.view import History

_PLACE = r"(?P<topic>\S+)\[(?P<partition>\d+)\]"
_COUNTED = (
    re.compile(rf"{_PLACE}.*?\b(?P<count>\d+) at most\b", re.DOTALL),  # a consumer's
    re.compile(rf"\b(?P<count>\d+) offsets from {_PLACE}@"),  # a pipeline's
)


def silent(history: History) -> list[Evidence]:
    """One when the error was not told, or one for each telling whose number is not what is really gone.

    Where no fault struck nothing was owed, and a run that was cut short had no time to tell.
    """
    owed, ended = history.trial.tells, history.ended
    if owed is None or not history.faults or ended is None or ended.cut_short is not None:
        return []
    told = [f"{stopped.error}: {stopped.what}" for stopped in history.stops] + [told.what for told in history.told]
    as_owed = [what for what in told if what.startswith(f"{owed}: ")]
    if as_owed:
        return [_evidence(owed, wrong) for what in as_owed if (wrong := _miscounted(history, what))]
    instead = f"; it told instead: {told[0]}" if told else ""
    return [_evidence(owed, f"did not tell it{instead}")]


def _evidence(owed: str, what: str) -> Evidence:
    return Evidence(Anomaly.SILENT, owed, f"the product owed its user the error {owed}, and {what}")


def _miscounted(history: History, what: str) -> str | None:
    """What is wrong with the number in a telling; None when it is right, or none was owed.

    The product counts offsets, and here records are counted: the source of a trial holds nothing else. Which of them
    were read before they were deleted is known when all effects were found.
    """
    if not history.shortened or not history.read_whole:
        return None
    counted = next(filter(None, (form.search(what) for form in _COUNTED)), None)
    if counted is None:
        return f"told it without the number of records that are gone: {what}"
    place = (counted["topic"], int(counted["partition"]))
    gone, said = _gone(history, place), int(counted["count"])
    return None if said == gone else f"said that {said} records of {place[0]}[{place[1]}] are gone, where {gone} are"


def _gone(history: History, place: tuple[str, int]) -> int:
    """Records of a partition that lay before the place where its log begins now, and that nobody had read."""
    first = max((each.first for each in history.shortened if (each.topic, each.partition) == place), default=0)
    here = [each for each in history.settled if (each.topic, each.partition) == place and each.fate is Fate.PERSISTED]
    return sum(
        1 for each in here if each.offset is not None and each.offset < first and each.value not in history.copies
    )
