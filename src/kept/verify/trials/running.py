"""Runs scenarios on a cluster: the subject and the control of each cell, each with its history in the run directory."""

from __future__ import annotations

import math
import platform
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

import confluent_kafka

from kept._version import __version__
from kept.errors import KeptError
from kept.local import Cluster
from kept.local.jars import broker_jars
from kept.verify.cells import Cell, Outcome, sides
from kept.verify.history import Ended, Recorder, Side, Trial
from kept.verify.leftovers import forget_groups
from kept.verify.report import write_reports
from kept.verify.report.document import Report
from kept.verify.run_directory import Plan, RunDirectory
from kept.verify.scenarios import scenario as named
from kept.verify.trials.arena import PREFIX, Arena
from kept.verify.trials.code import code
from kept.verify.trials.elsewhere import Elsewhere
from kept.verify.trials.scenario import Scenario, Volume
from kept.verify.trials.things import Thing

Say: TypeAlias = Callable[[str], None]
ITS_OWN = "its own"


class Runner:
    """One run: its seed decides keys, moments and victims of every trial, in whatever order they are run."""

    def __init__(
        self,
        cluster: Cluster | Elsewhere,
        run: RunDirectory,
        seed: int,
        *,
        smoke: bool,
        lasting: bool,
        say: Say,
        prefix: str = PREFIX,
    ) -> None:
        """`lasting`: the cluster stays after the run, which leaves nothing in it. `prefix`: of topics and groups."""
        self._cluster = cluster
        self._run = run
        self._seed = seed
        self._smoke = smoke
        self._lasting = lasting
        self._say = say
        self._prefix = prefix
        self._groups: list[str] = []

    def run(self, scenarios: Sequence[Scenario], minutes: float = math.inf) -> Report:
        """All of them, but no trial begins after so many minutes. Whatever ends it, what was run is reported."""
        self._run.begin(self._plan(scenarios))
        return self._go_through(scenarios, minutes)

    def resume(self, scenarios: Sequence[Scenario], minutes: float = math.inf, *, backwards: bool = False) -> Report:
        """Go on with a run. What came to its end stays, whatever it has shown: nothing is tried until it fits.

        `backwards`: from the last of them on, beside another process that goes through them in their order.
        """
        self._run.refuse_other(self._plan(scenarios))
        return self._go_through(scenarios[::-1] if backwards else scenarios, minutes)

    def _go_through(self, scenarios: Sequence[Scenario], minutes: float) -> Report:
        until = time.monotonic() + 60 * minutes
        try:
            for number, scenario in enumerate(scenarios, start=1):
                if time.monotonic() >= until:
                    break
                with self._run.claimed(scenario.name) as is_ours:
                    left = [each for each in sides(scenario.cells()) if is_ours and not self._run.is_played(*each)]
                    if left:
                        self._say(f"[{number}/{len(scenarios)}] {scenario.name}: {scenario.title}")
                        self._scenario(scenario, left, until)
        finally:
            report = write_reports(self._run)
            if self._lasting:
                self._say("clearing up")
                forget_groups(self._cluster.bootstrap, self._groups)
        return report

    def _scenario(self, scenario: Scenario, left: Sequence[tuple[Cell, Side]], until: float) -> None:
        """What is left of it, while there is time; then its verdicts, where all of it was played."""
        for number, (cell, side) in enumerate(left):
            if time.monotonic() > until:
                self._say(f"  no time for the rest of it: {len(left) - number}")
                return
            subject = side is Side.SUBJECT
            thing = scenario.things[cell.guarantee] if subject else scenario.controls[cell.guarantee].thing
            self._trial(scenario, cell, side, thing)
        for cell in scenario.cells():
            self._say(f"  {cell.guarantee}: {summary(self._run.outcome(cell))}")

    def _plan(self, scenarios: Sequence[Scenario]) -> Plan:
        if isinstance(self._cluster, Elsewhere):
            return plan_of(scenarios, self._seed, {"cluster": self._cluster.bootstrap}, smoke=self._smoke)
        where = "the local one" if self._lasting else ITS_OWN
        return plan_of(scenarios, self._seed, {"kafka": _of_broker(), "cluster": where}, smoke=self._smoke)

    def _trial(self, scenario: Scenario, cell: Cell, side: Side, thing: Thing) -> None:
        """One side. Whatever goes wrong cuts this trial short, which is told in its history, and the run goes on."""
        self._say(f"  {side.value}: {thing.words}")
        folder = self._run.new_folder(cell, side)
        doubts: list[str] = []
        try:
            self._play(scenario, cell, side, thing, doubts)
        except Exception as error:  # noqa: BLE001 - clearing up failed; the other trials are whole all the same
            doubts.append(_in_words(error, folder))
        with Recorder(folder / "end.jsonl") as recorder:  # when all is cleared up: that may fail, too
            recorder.write(Ended(recorder.now(), cut_short="; ".join(doubts) or None))

    def _play(self, scenario: Scenario, cell: Cell, side: Side, thing: Thing, doubts: list[str]) -> None:
        # A control is there to break, and has shown enough when it does: half the time of a full run would be theirs.
        little = self._smoke or side is Side.CONTROL
        folder, volume = self._run.folder(cell, side), volume_of(scenario, smoke=little)
        with Arena(self._cluster, folder, volume, self._seed, lasting=self._lasting, prefix=self._prefix) as arena:
            self._groups += arena.groups
            recorder = arena.recorder
            trial = Trial(
                scenario.name,
                cell.guarantee,
                side,
                thing.words,
                self._seed,
                recorder.now(),
                scenario.may_cost(cell.guarantee, volume),
                scenario.patience_under.get(cell.guarantee, scenario.patience),
                scenario.tells.get(cell.guarantee),
            )
            recorder.write(trial)
            try:
                scenario.play(arena, thing)
            except Exception as error:  # noqa: BLE001 - a fault of ours, or of something below
                doubts.append(_in_words(error, folder))
            doubts += arena.doubts


def _in_words(error: Exception, folder: Path) -> str:
    """An error of kept says what happened; of any other it is to be seen where it comes from, too."""
    if isinstance(error, KeptError):
        return error.what
    with (folder / "error.log").open("a") as log:
        log.writelines(traceback.format_exception(error))
    return f"{type(error).__name__}: {error}"


def summary(outcome: Outcome) -> str:
    """A line for a person."""
    subject, control = outcome.subject.judgement, None if outcome.control is None else outcome.control.judgement
    numbers = []
    for name, judgement in (("", subject), ("control ", control)):
        if judgement is not None:
            shown = [f"{count} {anomaly.value}" for anomaly, count in judgement.counts.anomalies.items() if count]
            numbers.append(f"{name}{judgement.counts.sent} sent, {', '.join(shown) or 'nothing amiss'}")
    reasons = f"; {outcome.reasons[0]}" if outcome.reasons else ""
    return f"{outcome.verdict.value}: {'; '.join(numbers)}{reasons}"


def plan_of(scenarios: Sequence[Scenario], seed: int, cluster: Mapping[str, str], *, smoke: bool) -> Plan:
    """What is going to be run, with which code, how much of it, and on what."""
    volumes = {scenario.name: astuple(volume_of(scenario, smoke=smoke)) for scenario in scenarios}
    return Plan(seed, _now(), {**versions(), **cluster}, _cells(scenarios), smoke, volumes)


def in_full(names: Sequence[str], seed: int) -> Plan:
    """What a run of these would be that begins now, in full, on a cluster of its own."""
    cluster = {"kafka": _of_broker(), "cluster": ITS_OWN}
    return plan_of([named(name) for name in names], seed, cluster, smoke=False)


def volume_of(scenario: Scenario, *, smoke: bool) -> Volume:
    return scenario.smoke if smoke else scenario.full


def versions() -> dict[str, str]:
    return {
        "kept": __version__,
        "code": code(),
        "confluent-kafka": version("confluent-kafka"),
        "librdkafka": str(confluent_kafka.libversion()[0]),
        "python": platform.python_version(),
    }


def _of_broker() -> str:
    return next(jar.coordinate.rpartition(":")[2] for jar in broker_jars() if ":kafka-server:" in jar.coordinate)


def _cells(scenarios: Sequence[Scenario]) -> list[Cell]:
    return [cell for scenario in scenarios for cell in scenario.cells()]


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
