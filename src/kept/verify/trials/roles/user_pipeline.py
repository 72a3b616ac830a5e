"""A user's pipeline as its file describes it, on a cluster that stands in for the one that the file names.

The options: `file`; `overrides`, what stands in for which key of it; `until_end`, to end at the end of what is there;
`dies_at`, as for a pipeline of ours, and those of perils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as File
from typing import Any, cast

from kept.errors import KeptError
from kept.pipelines.files import read
from kept.pipelines.lines import Path
from kept.spark.from_file import FromFile
from kept.spark.source import KafkaSource
from kept.verify.trials.roles.perils import perilous
from kept.verify.trials.roles.pipeline import CHUNK, PACE, QUIETLY, Count, checkpoint_of, per_batch
from kept.verify.trials.telling import Notes
from kept.verify.trials.things import Task

OF_ANOTHER_CLUSTER: tuple[Path, ...] = (
    ("source", "client"),
    ("source", "pattern"),
    ("sink", "producer"),
    ("spark", "master"),
)


@dataclass(frozen=True)
class OnTrial(FromFile):
    """The pipeline of a file, whose records have perils."""

    perils: Mapping[str, Any] = field(default_factory=dict)

    def source(self) -> KafkaSource:
        return cast("KafkaSource", PerilousSource(super().source(), self.perils))


class PerilousSource:
    """A source whose values kill tasks; otherwise what it stands before."""

    def __init__(self, source: KafkaSource, perils: Mapping[str, Any]) -> None:
        self._source = source
        self._perils = perils

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __str__(self) -> str:
        return str(self._source)

    def frame(self, *told: Any, **more: Any) -> Any:
        return perilous(self._source.frame(*told, **more), self._perils)


def standing_in(values: Mapping[Path, Any], task: Task) -> dict[Path, Any]:
    """What the file says, except for where, how much at once, and whose progress it is."""
    ours: dict[Path, Any] = {tuple(key.split(".")): value for key, value in task.options["overrides"].items()}
    return {
        **{path: value for path, value in values.items() if path not in OF_ANOTHER_CLUSTER},
        **ours,
        ("name",): task.name,
        ("trigger",): PACE,
        ("checkpoint",): str(checkpoint_of(task)),
        ("source", "start"): "beginning",
        ("source", "max_per_batch"): per_batch(task),
        ("limits", "rows"): CHUNK,
        ("spark", "conf"): {**values.get(("spark", "conf"), {}), **QUIETLY},
    }


def play(task: Task) -> None:
    notes = Notes(task.history)
    said = read(File(task.options["file"]))
    ready = OnTrial(
        replace(said, values=standing_in(said.values, task)),
        until_end=bool(task.options.get("until_end")),
        perils=task.options,
    )
    try:
        ready.pipeline(ready.session(), Count(task.options.get("dies_at")).hear).run()
    except KeptError as error:
        notes.stop(error)
        raise
