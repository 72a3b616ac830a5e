"""A scenario as a value: what is under test, the weaker things that must break, the fault, and how much of it all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from kept.verify.cells import Cell
from kept.verify.checkers import Anomaly
from kept.verify.trials.things import Thing

if TYPE_CHECKING:
    from kept.verify.trials.arena import Arena


class Need(str, Enum):
    """What a scenario needs beside a Kafka and processes of its own: not every cluster may be treated so."""

    BROKERS = "it kills, stops or fills brokers"
    POSTGRES = "it needs a Postgres of its own"
    PROXY = "it needs a proxy in front of the brokers"


Play: TypeAlias = "Callable[[Arena, Thing], None]"


@dataclass(frozen=True)
class Volume:
    """How many records, and how many faults."""

    records: int
    faults: int


@dataclass(frozen=True)
class Control:
    """The same fault, and a thing that must show one of these."""

    thing: Thing
    breaks: frozenset[Anomaly]


@dataclass(frozen=True)
class Scenario:
    """`play` brings workload, fault and thing together, and is the same for both sides.

    `at_risk`: how many records a fault may cost a guarantee that allows a cost; `at_risk_under`: one that meets another
    fault than the others do; `batches`: where the work is done in so many of them, it may cost one, of whatever size.
    `patience`: for how long nothing may arrive; `patience_under`: where what is under test takes longer to start.
    `tells`, by guarantee: the error, by its class, that the product owes its user. A product that stops with it has
    lost nothing by stopping.
    """

    name: str
    row: int
    title: str
    things: Mapping[str, Thing]
    controls: Mapping[str, Control]
    play: Play
    full: Volume
    smoke: Volume
    at_risk: int | None = None
    at_risk_under: Mapping[str, int] = field(default_factory=dict)
    batches: int | None = None
    patience: float = 30.0
    patience_under: Mapping[str, float] = field(default_factory=dict)
    tells: Mapping[str, str] = field(default_factory=dict)
    needs: frozenset[Need] = frozenset()

    def may_cost(self, word: str, volume: Volume) -> int | None:
        """How many records each fault may cost under a guarantee, in a trial of this volume."""
        if self.batches is not None:
            return -(-volume.records // self.batches)
        return self.at_risk_under.get(word, self.at_risk)

    def cells(self) -> list[Cell]:
        return [self._cell(word, thing, self.controls.get(word)) for word, thing in self.things.items()]

    def _cell(self, word: str, thing: Thing, control: Control | None) -> Cell:
        return Cell(
            self.name,
            self.row,
            self.title,
            word,
            thing.words,
            None if control is None else control.thing.words,
            frozenset() if control is None else control.breaks,
            None if control is None else self._under_test(control.thing),
        )

    def _under_test(self, thing: Thing) -> str | None:
        """Under which guarantee this very thing is a subject, if it is one: it need not be played twice."""
        return next((word for word, subject in self.things.items() if subject == thing), None)
