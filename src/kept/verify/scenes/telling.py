"""What a scene tells: numbered steps, what was seen at each on both sides, and the numbers at the end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

LOST = "lost"
"""What every scene counts, whatever its harm is: a fix that loses records is none."""


@dataclass(frozen=True)
class Step:
    """One step: what is done, the same on both sides; what was seen then, and the records, some of them harmed."""

    done: str
    seen: str = ""
    records: tuple[str, ...] = ()
    harmed: frozenset[int] = frozenset()  # positions in `records`

    def document(self) -> dict[str, object]:
        return {
            "step": self.done,
            "seen": self.seen,
            "records": list(self.records),
            "harmed": [self.records[position] for position in sorted(self.harmed)],
        }


class Story:
    """Collects the steps of one side while it is played."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def tell(self, done: str, seen: str = "", records: Sequence[str] = (), harmed: Collection[int] = ()) -> None:
        self.steps.append(Step(done, seen, tuple(records), frozenset(harmed)))


@dataclass(frozen=True)
class Side:
    """The scene once, under one word: its steps and what was counted; or why the fault did not strike."""

    word: str
    steps: tuple[Step, ...]
    counted: Mapping[str, int] = field(default_factory=dict)
    not_struck: str | None = None

    def document(self) -> dict[str, object]:
        return {
            "word": self.word,
            "steps": [step.document() for step in self.steps],
            "counted": dict(self.counted),
            "not_struck": self.not_struck,
        }


@dataclass(frozen=True)
class Scene:
    """A scene as it was played: without the fix, and with it; `harm` names the number that should differ."""

    name: str
    title: str
    deck: str
    why: str
    harm: str
    without: Side
    fixed: Side
    seconds: float

    @property
    def struck(self) -> bool:
        """Did the fault happen on both sides, and do harm where nothing prevents it?"""
        return (
            all(side.not_struck is None for side in (self.without, self.fixed)) and self.without.counted[self.harm] > 0
        )

    @property
    def prevented(self) -> bool:
        """No harm on the side that has the fix, and nothing lost for it."""
        return self.fixed.not_struck is None and not self.fixed.counted[self.harm] and not self.fixed.counted[LOST]

    @property
    def as_promised(self) -> bool:
        return self.struck and self.prevented

    @property
    def verdict(self) -> str:
        """The end of it in a sentence."""
        for side in (self.without, self.fixed):
            if side.not_struck is not None:
                return f"the fault did not strike under {side.word}, so this shows nothing: {side.not_struck}"
        before = self.without.counted[self.harm]
        if not before:
            return f"the fault did no harm under {self.without.word}, so this shows nothing; play the scene again"
        if not self.prevented:
            counts = ", ".join(f"{name}: {count}" for name, count in self.fixed.counted.items())
            return f"the harm was not prevented by {self.fixed.word}: {counts}"
        return f"{self.harm}: {before} without the fix, none with it"

    def document(self) -> dict[str, object]:
        return {
            "name": self.name,
            "title": self.title,
            "deck": self.deck,
            "why": self.why,
            "without": self.without.document(),
            "with": self.fixed.document(),
            "harm": self.harm,
            "struck": self.struck,
            "as_promised": self.as_promised,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 1),
        }
