"""A cell of the matrix: one scenario under one guarantee, beside its control."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kept.verify.checkers import Anomaly
from kept.verify.history.events import Side
from kept.verify.timeline import Timeline
from kept.verify.verdict import Judgement, Verdict

_NO_LETTER = re.compile("[^a-z0-9]+")


@dataclass(frozen=True)
class Cell:
    """What a cell is: the thing under test, and the weaker thing that must show one of `breaks` under the same fault.

    Where the control is what another cell of the scenario has under test, `control_is` names that one's guarantee.
    """

    scenario: str
    row: int
    title: str
    guarantee: str
    thing: str
    control: str | None
    breaks: frozenset[Anomaly]
    control_is: str | None = None

    @property
    def name(self) -> str:
        return f"{self.scenario}.{self.guarantee}"

    def folder(self, side: Side) -> str:
        """Where its history is. Cells of a scenario with the same control share that one."""
        if side is Side.SUBJECT:
            return self.name
        if self.control_is is not None:
            return f"{self.scenario}.{self.control_is}"
        return f"{self.scenario}.control.{_NO_LETTER.sub('-', (self.control or '').lower()).strip('-')}"


def sides(cells: Iterable[Cell]) -> list[tuple[Cell, Side]]:
    """What there is to play for these cells: the subjects, then each control once that is not a subject already."""
    wanted: dict[str, tuple[Cell, Side]] = {}
    cells = list(cells)
    for cell in cells:
        wanted[cell.folder(Side.SUBJECT)] = cell, Side.SUBJECT
    for cell in cells:
        if cell.control is not None:
            wanted.setdefault(cell.folder(Side.CONTROL), (cell, Side.CONTROL))
    return list(wanted.values())


@dataclass(frozen=True)
class Trace:
    """One side of a cell as it went: its judgement and its timeline; or why there is none."""

    judgement: Judgement | None
    timeline: Timeline | None = None
    missing: str = ""


@dataclass(frozen=True)
class Outcome:
    """A cell that was judged."""

    cell: Cell
    subject: Trace
    control: Trace | None

    @property
    def verdict(self) -> Verdict:
        if self.subject.judgement is not None and self.subject.judgement.verdict is Verdict.VIOLATED:
            return Verdict.VIOLATED
        return Verdict.UNKNOWN if self.reasons else Verdict.HOLDS

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not `holds`; nothing when it is."""
        subject = self.subject.judgement
        own = (self.subject.missing,) if subject is None else subject.reasons
        return (*own, *self._doubts_of_control)

    @property
    def control_broke(self) -> bool:
        """Did the fault do the harm that it must do where nothing prevents it?"""
        return self.control is not None and not self._doubts_of_control

    @property
    def _doubts_of_control(self) -> tuple[str, ...]:
        if self.control is None:
            return ()
        if self.control.judgement is None:
            return (f"the control shows nothing: {self.control.missing}",)
        doubt = _why_not_broken(self.cell, self.control.judgement)
        return () if doubt is None else (doubt,)


def _why_not_broken(cell: Cell, control: Judgement) -> str | None:
    """A control that only died has shown nothing: what it left undone is not what the fault has cost."""
    unseen = "no fault struck it" if control.counts.faults == 0 else control.unread
    if unseen is not None:
        return f"the control shows nothing ({cell.control}): {unseen}"
    shown = {anomaly for anomaly in cell.breaks if control.shows(anomaly)}
    if not shown:
        wanted = " or ".join(sorted(anomaly.value for anomaly in cell.breaks))
        return f"the control did not break ({cell.control}: nothing {wanted}), so the fault may have missed"
    if shown == {Anomaly.LOST} and control.undone is not None:
        return f"what the control lacks ({cell.control}) may only be undone, not lost: {control.undone}"
    return None
