"""What is put to the test, as a value: which program plays it, under which guarantee, with which settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

CHECKPOINT = "checkpoint"
"""Where Spark notes how far it is: beside the history of a trial, the same from life to life."""
PIPELINE = "pipeline"
"""The role of kept's own driver of Spark."""
BATCHES = 10
"""In which a driver of Spark reads its workload, at least: a fault can be met in the middle of it, and costs one."""
Setting: TypeAlias = str | int | float | bool


@dataclass(frozen=True)
class Thing:
    """`words` are for people. `role` names a program of `roles`, or any module; `options` are that program's own."""

    words: str
    role: str
    guarantee: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """What one process is told: a thing, and its part in the workload. It travels as JSON."""

    role: str
    guarantee: str
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    bootstrap: str
    topic: str
    name: str
    """Of the exactly-once process or of the group; the same from life to life."""
    history: str
    records: int
    seed: int
    sender: str = "s1"
    keys: int = 20
    first: int = 0
    """The number to begin with: a successor goes on where its source says."""
    per_second: int = 2000
    life: int = 0

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Task:
        return cls(**json.loads(text))
