"""A run directory as `kept verify` leaves it, with every verdict in it; made without a cluster."""

from __future__ import annotations

import random
from pathlib import Path

from kept.guarantees.levels import WORDS
from kept.verify.cells import Cell
from kept.verify.checkers import Anomaly
from kept.verify.history import Begun, Ended, Fate, Fault, Found, Read, Recorder, Settled, Side, Told, Trial
from kept.verify.run_directory import Plan, RunDirectory

AT_MOST, AT_LEAST, EXACTLY = WORDS
BEGAN = 1_800_000_000.0
EITHER = frozenset({Anomaly.LOST, Anomaly.DUPLICATED})


def cell(scenario: str, guarantee: str, title: str = "something goes wrong <in the middle>") -> Cell:
    return Cell(scenario, 1, title, guarantee, f"kept.Producer, {guarantee}", "idempotence off & hope", EITHER)


def play(
    run: RunDirectory, of: Cell, side: Side, *, lost: int = 0, twice: int = 0, records: int = 600, ends: bool = True
) -> None:
    """A history of so many records over some seconds, with a few faults, and so many lost or there twice."""
    folder = run.folder(of, side)
    folder.mkdir(parents=True)
    dice = random.Random(f"{of.name}{side}")
    with Recorder(folder / "runner.jsonl") as runner, Recorder(folder / "sender.jsonl") as sender:
        runner.write(Trial(of.scenario, of.guarantee, side, of.thing, 7, BEGAN))
        at, offset = BEGAN, 0
        for number in range(records):
            at += dice.expovariate(60) + (1.5 if number == 250 else 0)
            value = f"s1/k{number % 5}/{number}"
            sender.write(Begun(value, at), Settled(value, Fate.PERSISTED, at + 0.01, None, "payments", 0, number))
            if number >= 300 and lost:
                lost -= 1
                continue
            for _ in range(2 if number >= 300 and twice > 0 else 1):
                runner.write(Found(value, "payments", 0, offset, at + 0.01))
                offset += 1
            twice -= number >= 300
        runner.write(
            Fault("killed broker 2, leader of payments[0]", BEGAN + 4.1),
            Fault("followers cut off", BEGAN + 6, BEGAN + 8),
        )
        runner.write(Told("OutcomeUnknown: it may or may not have happened", BEGAN + 5), Read("payments", at, True))
        if ends:
            runner.write(Ended(at))


def make_run(path: Path) -> RunDirectory:
    """Five cells: holds, holds with what is allowed, violated, unknown for its control, unknown as it was cut short."""
    cells = [
        cell("lost-acknowledgement", AT_MOST, "an acknowledgement is lost after the record was appended"),
        cell("lost-acknowledgement", AT_LEAST, "an acknowledgement is lost after the record was appended"),
        cell("lost-acknowledgement", EXACTLY, "an acknowledgement is lost after the record was appended"),
        cell("leader-killed", EXACTLY, "the leader of a partition is killed, and its successor, ten times over"),
        cell("outbox-restarted", EXACTLY),
    ]
    run = RunDirectory(path)
    run.begin(Plan(7, "2027-01-15 08:00:00", {"kept": "0.1.0", "kafka": "4.3.1"}, cells))
    play(run, cells[0], Side.CONTROL, twice=9)  # the others of this scenario share it
    play(run, cells[0], Side.SUBJECT, lost=4)
    play(run, cells[1], Side.SUBJECT)
    play(run, cells[2], Side.SUBJECT, lost=2, twice=30)
    play(run, cells[3], Side.SUBJECT)
    play(run, cells[3], Side.CONTROL)
    play(run, cells[4], Side.SUBJECT, ends=False)
    return run
