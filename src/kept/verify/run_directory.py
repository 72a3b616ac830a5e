"""Where a run is kept: what was planned, and the history of each side of each cell. Judging needs nothing else."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kept.errors import FixConfiguration, KeptError
from kept.verify.cells import Cell, Outcome, Trace, sides
from kept.verify.checkers import Anomaly
from kept.verify.history import Side, read_history
from kept.verify.timeline import timeline
from kept.verify.verdict import judge

PLAN = "run.json"
CELLS = "cells"
CLAIMS = "claims"
SHOWN = 3
"""Of what a run differs in."""


@dataclass(frozen=True)
class Plan:
    """A run before it began: its seed, what it runs on and with which code, its cells, and how much of each.

    `volumes`, by scenario: how many records, and how many faults.
    """

    seed: int
    started: str
    versions: Mapping[str, str]
    cells: Sequence[Cell]
    smoke: bool = False
    volumes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def differs_from(self, other: Plan) -> str:
        """In what a run that was planned is not the same as another, whenever each began; nothing when it is."""
        here, there = dict(self.versions), dict(other.versions)
        found = [
            f"{name} was {here.get(name, 'not noted')}, and is {there.get(name, 'not noted')}"
            for name in dict.fromkeys((*here, *there))
            if here.get(name) != there.get(name)
        ]
        found += [
            f"{name} had (records, faults) {self.volumes.get(name, 'not noted')}, and has {other.volumes.get(name)}"
            for name in dict.fromkeys((*self.volumes, *other.volumes))
            if self.volumes.get(name) != other.volumes.get(name)
        ]
        if list(self.cells) != list(other.cells):
            found.append(f"there were {len(self.cells)} cells, and there are {len(other.cells)}, or others")
        more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        return "; ".join([*found[:SHOWN], *more])


class RunDirectory:
    """One directory, one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, plan: Plan) -> None:
        """Write down what is going to be done; a directory that holds a run already is left alone."""
        document = {
            "seed": plan.seed,
            "started": plan.started,
            "versions": dict(plan.versions),
            "smoke": plan.smoke,
            "volumes": {name: list(volume) for name, volume in plan.volumes.items()},
            "cells": [{**asdict(cell), "breaks": sorted(cell.breaks)} for cell in plan.cells],
        }
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / PLAN).open("x") as file:
                json.dump(document, file, indent=1)
        except FileExistsError as error:
            raise FixConfiguration(
                f"{self.path} holds a run already", way_out="choose another directory with --out"
            ) from error
        except OSError as error:
            raise FixConfiguration(
                f"{self.path} cannot be written: {error.strerror}", way_out="choose another directory with --out"
            ) from error

    def refuse_other(self, plan: Plan) -> None:
        """A run is not gone on with where the rest would not be of the same things."""
        if differences := self.plan.differs_from(plan):
            raise FixConfiguration(
                f"the run in {self.path} is of other things: {differences}",
                way_out="start another run; this one can still be judged",
            )

    @contextmanager
    def claimed(self, scenario: str) -> Iterator[bool]:
        """Have a scenario to oneself; False when another process is at work on it. Whoever dies has let go of it."""
        claims = self.path / CLAIMS
        claims.mkdir(exist_ok=True)
        with (claims / scenario).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def new_folder(self, cell: Cell, side: Side) -> Path:
        """For a trial that begins. What is there is of a runner that ended in the middle of it, and goes."""
        folder = self.folder(cell, side)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def left(self) -> list[tuple[Cell, Side]]:
        """What has not been played to its end."""
        return [(cell, side) for cell, side in sides(self.plan.cells) if not self.is_played(cell, side)]

    def is_played(self, cell: Cell, side: Side) -> bool:
        """Did it come to its end, whatever it has shown?"""
        folder = self.folder(cell, side)
        return any(folder.glob("*.jsonl")) and read_history(folder).ended is not None

    def folder(self, cell: Cell, side: Side) -> Path:
        return self.path / CELLS / cell.folder(side)

    @property
    def plan(self) -> Plan:
        try:
            document = json.loads((self.path / PLAN).read_text())
            cells = [Cell(**{**cell, "breaks": frozenset(map(Anomaly, cell["breaks"]))}) for cell in document["cells"]]
            smoke = bool(document.get("smoke", False))
            volumes = {name: tuple(map(int, volume)) for name, volume in document.get("volumes", {}).items()}
            seed, started, versions = int(document["seed"]), str(document["started"]), dict(document["versions"])
            return Plan(seed, started, versions, cells, smoke, volumes)
        except FileNotFoundError:
            raise FixConfiguration(
                f"{self.path} holds no run", way_out="name a directory that `kept verify` made: it holds a run.json"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FixConfiguration(
                f"{self.path / PLAN} cannot be read: {error}", way_out="run it again: a plan is never changed by hand"
            ) from error

    def outcome(self, cell: Cell) -> Outcome:
        """Judge what is stored of a cell."""
        control = None if cell.control is None else self._trace(cell, Side.CONTROL)
        return Outcome(cell, self._trace(cell, Side.SUBJECT), control)

    def outcomes(self) -> list[Outcome]:
        return [self.outcome(cell) for cell in self.plan.cells]

    def _trace(self, cell: Cell, side: Side) -> Trace:
        folder = self.folder(cell, side)
        if not folder.is_dir():
            return Trace(None, missing=f"the {side.value} was not run")
        try:
            history = read_history(folder)
            trial = history.trial
            played = Side.SUBJECT if cell.control_is is not None else side
            if (trial.scenario, trial.side) != (cell.scenario, played):
                return Trace(None, missing=f"{folder} holds the history of another cell: {trial.scenario}")
            return Trace(judge(history), timeline(history))
        except KeptError as error:
            return Trace(None, missing=error.what)
