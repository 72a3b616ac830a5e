"""What a sink is to a pipeline: a part on the driver, a part in every task, and the rows between them.

A sink keeps effects and progress in one place. The driver gives every source partition its first progress, takes them
over, and closes ranges after Spark accepted all tasks; a task writes chunks, each with its own look at progress.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kept.guarantees import Guarantee
from kept.progress import Accept, Batch, BatchRecord, Owner, Progress, Range, Source, Stop
from kept.stores import Birth, Part, Seed

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from kept.consumer.dead_letters import DeadLetter
    from kept.spark.dead_letters import DeadLetterPlace
    from kept.spark.plans import Planned
    from kept.spark.staging import Staged, Staging


@dataclass(frozen=True)
class Rows:
    """Rows of one source partition: their offsets, strictly rising, and their columns without kept's own.

    `origin` has, where dead letters are kept, the record that each row was, and why it was given up.
    """

    offsets: NDArray[np.int64]
    table: pa.Table
    origin: pa.Table | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def at_or_above(self, offset: int) -> Rows:
        """Without the rows that are done."""
        first = int(self.offsets.searchsorted(offset))
        return self if first == 0 else self.some(range(first, len(self)))

    def some(self, numbers: Sequence[int]) -> Rows:
        """Those that stand together: `numbers` is a part of range(len(rows))."""
        first, count = (numbers[0], len(numbers)) if numbers else (0, 0)
        origin = None if self.origin is None else self.origin.slice(first, count)
        return Rows(self.offsets[first : first + count], self.table.slice(first, count), origin)

    def where(self, mask: pa.ChunkedArray) -> Rows:
        """Those for which the mask is true."""
        origin = None if self.origin is None else self.origin.filter(mask)
        return Rows(self.offsets[mask.to_numpy()], self.table.filter(mask), origin)


@dataclass(frozen=True)
class Assignment:
    """What a task was given, and its source as it was before a row of it was read."""

    range: Range
    source: Source


@dataclass(frozen=True)
class Done:
    """A range of which every row was seen: `reached` is where the task's own progress stood."""

    assignment: Assignment
    reached: int


@dataclass(frozen=True)
class Written:
    """What became of a chunk: where progress stands, how many rows were written, done before, or buried."""

    reached: int
    rows: int
    dropped: int
    buried: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(
            max(self.reached, other.reached),
            self.rows + other.rows,
            self.dropped + other.dropped,
            self.buried + other.buried,
        )


@dataclass(frozen=True)
class InHand:
    """A micro-batch: its rows, who it is, what its tasks were given, and where progress stands.

    `look_again` stops when the source is not the one that was looked at before.
    """

    frame: DataFrame
    batch: Batch
    assignments: Mapping[int, Assignment]
    progress: Mapping[Part, int]
    look_again: Callable[[], None]


@dataclass(frozen=True)
class Carried:
    """What became of a micro-batch."""

    recorded: Mapping[Part, Progress]
    rows: int
    dropped: int = 0
    buried: int = 0


class Way(Protocol):
    """How a micro-batch is carried: one of the two modes."""

    @property
    def stateful(self) -> bool: ...

    def planned(self, query: StreamingQuery) -> Sequence[Planned] | None:
        """What the batch reads; None: there is nothing to do."""

    def ended(self, query: StreamingQuery) -> None:
        """No batch comes any more: tell what is not told yet."""

    def ranges(self, plan: Sequence[Planned], recorded: Mapping[Part, Progress]) -> Mapping[Part, Planned]:
        """Of every partition that takes part in the batch, what it gives."""

    def check(self, wanted: Range, recorded: Progress, source: Source, owner: Owner) -> Accept | Stop: ...

    def carry(self, given: InHand) -> Carried:
        """Effects and progress, in the guarantee's order."""


class PartWriter(Protocol):
    """Writes the chunks of one source partition, in a task."""

    def write(self, rows: Rows, wanted: Range) -> Written:
        """The rows of this range that are not done, and progress past the last of them, in the guarantee's order."""

    def close(self) -> None: ...


class TaskSink(Protocol):
    """The part of a sink that travels to the tasks."""

    def open(self, assignment: Assignment) -> PartWriter: ...


class DriverSink(Protocol):
    """The part of a sink that lives on the driver, as long as the pipeline runs."""

    def shaped(self, frame: DataFrame) -> DataFrame:
        """The frame as the sink takes it; one that does not fit is refused, before anything starts."""

    def born(self, topic: str) -> Birth | None:
        """Whether this pipeline has ever begun to read a topic."""

    def topics(self) -> Collection[str]:
        """Every topic that this pipeline has begun to read."""

    def seed(self, seeds: Mapping[str, Sequence[Seed]]) -> Mapping[str, Mapping[int, Progress]]:
        """Give every partition of these topics its first progress, once; later only those that are new.

        No topic counts as born before all of them have theirs: cut short, it is to be said again.
        """

    def take_over(self, parts: Sequence[Part]) -> Mapping[Part, Progress]:
        """Own these partitions; earlier owners stop for good."""

    def for_tasks(self) -> TaskSink:
        """What tasks need to write as this owner."""

    def close_ranges(self, done: Sequence[Done]) -> Mapping[Part, Progress]:
        """Rule 8: progress past the last row, by the driver alone, after Spark accepted every task."""

    def last_batch(self) -> BatchRecord | None:
        """The last batch that batch mode has recorded."""

    def staging(self) -> Staging:
        """What tasks of batch mode need to put rows aside, as this owner."""

    def move(
        self,
        batch: Batch,
        assignments: Sequence[Assignment],
        staged: Sequence[Staged],
        letters: Sequence[DeadLetter] = (),
    ) -> Mapping[Part, Progress]:
        """The rows that were put aside, letters, the batch's record and progress, in the guarantee's order; once."""

    def close(self) -> None: ...


class Sink(Protocol):
    """What a person gives to a pipeline."""

    @property
    def buries_in(self) -> type[DeadLetterPlace]:
        """Where dead letters can be in one transaction with the rows."""

    def open(self, pipeline: str, guarantee: Guarantee, dead_letters: DeadLetterPlace | None = None) -> DriverSink: ...


__all__ = [
    "Assignment",
    "Carried",
    "Done",
    "DriverSink",
    "InHand",
    "Part",
    "PartWriter",
    "Rows",
    "Sink",
    "TaskSink",
    "Way",
    "Written",
]
