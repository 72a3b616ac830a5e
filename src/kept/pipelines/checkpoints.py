"""Spark's checkpoint, read without Spark: from where a restart would read, partition by partition.

`offsets/N` is written before batch N runs and says where it ends; `commits/N` after it. A batch that was not committed
runs again, from where the one before it ended; the first one from where the source began, `sources/0/0`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from kept.errors import FixConfiguration

Part: TypeAlias = tuple[str, int]
NOTHING = "-"


@dataclass(frozen=True)
class Checkpoint:
    """The last batch that was planned, whether it was committed, and where a restart begins."""

    directory: str
    batch: int
    committed: bool
    restart: Mapping[Part, int]

    @property
    def next_batch(self) -> int:
        """The number of the batch with which a restart begins."""
        return self.batch + self.committed


def read(place: str) -> Checkpoint | None:
    """What stands in a checkpoint; None when no batch was ever planned there."""
    directory = _local(place)
    try:
        planned, committed = _numbers(directory / "offsets"), _numbers(directory / "commits")
        if not planned:
            return None
        last = max(planned)
        done = last in committed
        before = last if done else max((number for number in planned if number < last), default=None)
        file = directory / "sources" / "0" / "0" if before is None else directory / "offsets" / str(before)
        text = file.read_text(encoding="utf-8")
        restart = ends(text) if before is not None else _beginnings(text)
    except (OSError, ValueError) as error:
        raise FixConfiguration(
            f"the checkpoint {directory} cannot be read: {error}", way_out="name the directory that the pipeline has"
        ) from error
    return Checkpoint(str(directory), last, done, restart)


def ends(text: str) -> dict[Part, int]:
    """Where a batch ends, from its file: a version, a line about the batch, then a line a source."""
    version, *lines = text.splitlines() or [""]
    if version != "v1" or not lines:
        raise ValueError(f"it begins with {version!r}, not with v1")
    found: dict[Part, int] = {}
    for line in lines[1:]:
        if line != NOTHING:
            found |= _offsets(line)
    return found


def _beginnings(text: str) -> dict[Part, int]:
    """The file begins with a byte for readers of long ago, then a version."""
    version, _, line = text.lstrip("\0").partition("\n")
    if version != "v1":
        raise ValueError(f"it begins with {version!r}, not with v1")
    return _offsets(line)


def _offsets(line: str) -> dict[Part, int]:
    said = json.loads(line)
    if not isinstance(said, dict):
        raise ValueError(f"{line!r} names no topics")  # noqa: TRY004 - told as what cannot be read
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in said.items()
        for partition, offset in partitions.items()
    }


def _numbers(directory: Path) -> set[int]:
    there: Iterable[Path] = directory.iterdir() if directory.is_dir() else ()
    return {int(file.name) for file in there if file.name.isdigit()}


def _local(place: str) -> Path:
    scheme, colon, rest = place.partition(":")
    if colon and scheme == "file":
        return Path("/" + rest.lstrip("/"))
    if colon and rest.startswith("//"):
        raise FixConfiguration(
            f"{place} is not on this machine", way_out="copy the directory here, and name the copy with --checkpoint"
        )
    return Path(place)
