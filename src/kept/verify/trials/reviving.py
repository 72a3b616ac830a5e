"""A program that may die of what happens to its database, and is started again by whoever looks after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kept.verify.trials.arena import PATIENCE, Arena, Sink
from kept.verify.trials.lives import Life


@dataclass
class Revived:
    """The life that is at work now; `begin` starts another one."""

    arena: Arena
    sink: Sink
    begin: Callable[[], Life]

    def __post_init__(self) -> None:
        self.life = self.begin()

    def reach(self, effects: int) -> None:
        """Until so many effects are there, with a new life for each that has ended by itself."""
        self._until(lambda: self.sink.how_much() >= effects, f"{effects} effects")

    def go_on(self, *, unaided: bool = False) -> None:
        """Until there is more than there was: who cannot go on has ended by then, and another one does.

        `unaided`: the very life that met the fault has to; that it has ended cuts the trial short.
        """
        before = self.sink.how_much()

        def goes_on() -> bool:
            return self.sink.complete() or self.sink.how_much() > before

        if unaided:
            self.life.wait(goes_on, "it goes on by itself", PATIENCE)
        else:
            self._until(goes_on, "it goes on")

    def _until(self, condition: Callable[[], bool], awaited: str) -> None:
        def there() -> bool:
            if self.life.end(0) is not None:
                self.life = self.begin()
            return condition()

        self.arena.wait(there, awaited, PATIENCE)
