"""A tiny world that can be interrupted anywhere: workers are generators, and each `yield` is a place to die.

A worker yields, in plain words, what it is ABOUT to do; being scheduled again does it. So a crash can fall
before and after every step, a worker that is not scheduled for a while is a zombie, and a schedule is
nothing but the list of choices that were made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from kept.errors import Fenced, PersonMustLook

Worker: TypeAlias = Generator[str, None, None]
Fault: TypeAlias = tuple[str, Callable[[], None]]

DISTURBED_STEPS = 40
CALM_ROUNDS = 150


class AttemptOver(Exception):
    """This attempt ends (fenced, aborted, or nobody knows): whoever started it starts the next one."""


class Chooser(Protocol):
    """Where a world's luck comes from: a seeded generator, or an enumeration of all of it."""

    def pick(self, options: int) -> int:
        """One of 0 .. options - 1."""

    def rarely(self) -> bool:
        """Whether something unlikely happens now."""


@dataclass(frozen=True)
class Outcome:
    """What the oracle saw at the end; multisets, record by record."""

    lost: tuple[Hashable, ...] = ()
    duplicated: tuple[Hashable, ...] = ()
    reordered: tuple[Hashable, ...] = ()
    stalled: bool = False
    stopped: str = ""

    @property
    def anomalies(self) -> frozenset[str]:
        """The names of what went wrong; stopping loudly is not wrong."""
        found = {"lost": self.lost, "duplicated": self.duplicated, "reordered": self.reordered}
        return frozenset([name for name, what in found.items() if what] + ["stalled"] * self.stalled)

    def __str__(self) -> str:
        parts = [f"lost {list(self.lost)}"] * bool(self.lost)
        parts += [f"duplicated {list(self.duplicated)}"] * bool(self.duplicated)
        parts += [f"reordered {list(self.reordered)}"] * bool(self.reordered)
        parts += ["stalled"] * self.stalled + [f"stopped: {self.stopped}"] * bool(self.stopped)
        return ", ".join(parts) or "every record exactly once"


class World(ABC):
    """Workers, the faults that may strike them, and a judge. A subclass is one failure that a rule closes."""

    RULE: ClassVar[int] = 0
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {}
    """What can be left out, and the harm that must then be found."""
    WORKERS: ClassVar[Sequence[str]] = ("the worker",)
    ALLOWED: ClassVar[frozenset[str]] = frozenset()
    """Anomalies that the guarantee at hand permits."""
    CRASHES: ClassVar[int] = 2
    MISFORTUNES: ClassVar[int] = 2

    def __init__(self, luck: Chooser, without: str = "") -> None:
        if without and without not in self.SWITCHES:
            raise ValueError(f"{type(self).__name__} cannot leave out {without!r}: {list(self.SWITCHES)}")
        self.luck = luck
        self.without = without
        self.calm = False
        self.trace: list[str] = []
        self.stopped = ""
        self.running: dict[str, tuple[Worker, str]] = {}
        self.down: list[str] = []
        self.retired: set[str] = set()
        self.last = ""
        self.crashes = self.CRASHES
        self.misfortunes = self.MISFORTUNES

    @abstractmethod
    def worker(self, name: str) -> Worker:
        """The life of one worker, from (re)start to its end."""

    def faults(self) -> list[Fault]:
        """What may strike now, besides crashes; each is told and done."""
        return []

    def heal(self) -> None:  # noqa: B027 - most worlds have nothing to heal
        """The end of all faults."""

    @abstractmethod
    def judge(self) -> Outcome:
        """What was lost, duplicated or reordered in the end."""

    def note(self, event: str) -> None:
        """Something that happened inside a step, for the reader of the trace."""
        self.trace.append(f"    {event}")

    def unlucky(self, event: str) -> bool:
        """Whether a small misfortune strikes this step; never in the calm at the end."""
        if self.calm or not self.misfortunes or not self.luck.rarely():
            return False
        self.misfortunes -= 1
        self.note(event)
        return True

    def stop(self, reason: PersonMustLook) -> None:
        self.stopped = f"{type(reason).__name__}: {reason.what}"
        self.note(f"stops loudly: {self.stopped}")

    def start(self, name: str) -> None:
        self._resume(name, self.worker(name))

    def step(self, name: str) -> None:
        worker, about_to = self.running[name]
        self.trace.append(f"{name} {about_to}")
        self._resume(name, worker)

    def crash(self, name: str) -> None:
        worker, about_to = self.running.pop(name)
        self.trace.append(f"{name} is killed before it {about_to}")
        self.crashes -= 1
        worker.close()
        self.down.append(name)

    def _resume(self, name: str, worker: Worker) -> None:
        self.running.pop(name, None)
        try:
            self.running[name] = (worker, next(worker))
        except StopIteration:
            pass
        except AttemptOver:
            self.down.append(name)
        except Fenced as fenced:
            self.note(f"{name} ends for good: {fenced.what}")
            self.retired.add(name)
        except PersonMustLook as reason:
            self.stop(reason)

    def disturb(self) -> None:
        """Steps, crashes, restarts and faults in whatever order luck has it."""
        for name in self.WORKERS:
            self.start(name)
        for _ in range(DISTURBED_STEPS):
            if self.stopped or not (self.running or self.down):
                return
            if self._strike():
                continue
            name = self._next()
            if name in self.running:
                self.step(name)
            else:
                self.down.remove(name)
                self.trace.append(f"{name} starts again")
                self.start(name)

    def _next(self) -> str:
        """Mostly the same worker again: harm often needs a long run of one while the other sleeps."""
        alive = [*self.running, *self.down]
        if len(alive) == 1:
            self.last = alive[0]
        elif self.last not in alive or self.luck.pick(4) == 0:
            self.last = alive[self.luck.pick(len(alive))]
        return self.last

    def _strike(self) -> bool:
        faults = self.faults()
        killable = list(self.running) if self.crashes > 0 else []
        options = len(faults) + len(killable)
        if not options or not self.luck.rarely():
            return False
        which = self.luck.pick(options) if options > 1 else 0
        if which < len(faults):
            told, act = faults[which]
            self.trace.append(f"! {told}")
            act()
        else:
            self.crash(killable[which - len(faults)])
        return True

    def finish(self) -> Outcome:
        """No more faults: whoever did not end for good starts again, and all that can be done is done."""
        self.calm = True
        self.trace.append("-- no more faults")
        self.heal()
        self.down.clear()
        for name in self.WORKERS:
            if name not in self.running and name not in self.retired and not self.stopped:
                self.start(name)
        for _ in range(CALM_ROUNDS):
            if self.stopped or not (self.running or self.down):
                return self.judge()
            for name in list(self.running):
                self.step(name)
            for name in list(self.down):
                self.down.remove(name)
                self.start(name)
        return Outcome(stalled=True)


def compare(expected: Iterable[Hashable], delivered: Iterable[Hashable], stopped: str = "") -> Outcome:
    """Multisets, never sets. What a loud stop left undone is not lost: it was said."""
    wanted, got = Counter(expected), Counter(delivered)
    lost = () if stopped else tuple((wanted - got).elements())
    return Outcome(lost=lost, duplicated=tuple((got - wanted).elements()), stopped=stopped)
