"""Whose turn it is: several runs at once, except where a fault needs for itself what others use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Condition, Thread
from typing import NamedTuple

from tests.spark.faults import EVERYTHING, NEEDS
from tests.spark.verdicts import PARTITION, Key


class Run(NamedTuple):
    """What one world is made from."""

    fault: str
    sink: str
    word: str
    seed: int
    records: int
    mode: str = PARTITION

    @property
    def key(self) -> Key:
        return self.fault, self.sink, self.word, self.mode, self.seed


class Turns:
    """Runs in their order. Who waits for what another uses lets others pass, but not who waits to be alone."""

    def __init__(self, runs: Sequence[Run], lanes: int) -> None:
        self._waiting = list(runs)
        self._at_work: list[Run] = []
        self._changed = Condition()
        self._lanes = lanes

    def take(self, play: Callable[[Run], None], until: float) -> int:
        """Until all had their turn, or no time is left; returns how many had none. `play` does not raise."""
        lanes = [Thread(target=self._lane, args=(play, until), name=f"lane-{n}") for n in range(self._lanes)]
        for each in lanes:
            each.start()
        for each in lanes:
            each.join()
        return len(self._waiting)

    def _lane(self, play: Callable[[Run], None], until: float) -> None:
        while (run := self._next(until)) is not None:
            try:
                play(run)
            finally:
                with self._changed:
                    self._at_work.remove(run)
                    self._changed.notify_all()

    def _next(self, until: float) -> Run | None:
        with self._changed:
            while self._waiting and time.monotonic() < until:
                run = next_of(self._waiting, self._at_work)
                if run is not None:
                    self._waiting.remove(run)
                    self._at_work.append(run)
                    return run
                self._changed.wait()
        return None


def next_of(waiting: Sequence[Run], at_work: Sequence[Run]) -> Run | None:
    """The first that may begin beside those that are at work."""
    taken = {NEEDS.get(run.fault) for run in at_work} - {None}
    if EVERYTHING in taken:
        return None
    for run in waiting:
        needs = NEEDS.get(run.fault)
        if needs == EVERYTHING:
            return None if at_work else run
        if needs not in taken:
            return run
    return None
