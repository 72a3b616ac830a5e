"""A task of partition mode: the rows of one source partition, checked, cut into chunks, each written by itself.

A task never sees a real end of its input (rule 8): it moves progress past the last row that it wrote, and reports how
far it came. The report counts only when Spark accepted the task.
"""

from __future__ import annotations

import gc
import pickle
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kept.errors import (
    Fenced,
    FixConfiguration,
    KeptError,
    NotPersisted,
    OutcomeUnknown,
    PersonMustLook,
    Refused,
    TransactionAborted,
    TryAgain,
    UnsoundInput,
)
from kept.progress import Range, check_rows
from kept.spark.position import OFFSET, OURS, PARTITION, POSITION, TOPIC
from kept.spark.sinks import Assignment, PartWriter, Rows, TaskSink, Written

REPORT = "topic string, partition int, reached long, rows long, dropped long, buried long, chunks int, stopped binary"
_REPORT = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("reached", pa.int64()),
        ("rows", pa.int64()),
        ("dropped", pa.int64()),
        ("buried", pa.int64()),
        ("chunks", pa.int32()),
        ("stopped", pa.binary()),
    ]
)
# Another attempt would end the same: it is told to the driver as what it is, not as a failure to be tried again.
NO_USE_TRYING = (PersonMustLook, Fenced, FixConfiguration, Refused, NotPersisted)
PAUSE = 0.2


@dataclass(frozen=True)
class Limits:
    """How much one transaction holds, and how long a task waits for a store that is away."""

    rows: int = 50_000
    bytes: int = 32 << 20
    seconds: float = 5.0
    patience: float = 60.0

    def __post_init__(self) -> None:
        if min(self.rows, self.bytes) < 1 or self.seconds <= 0 or self.patience < 0:
            raise FixConfiguration(f"{self} leaves nothing to write", way_out="use positive numbers")


class FencedAttempt(TryAgain):
    """Another attempt at the same partition came later: this one ends, at once; to fence back would starve both."""


@dataclass(frozen=True)
class Task:
    """What every task of a micro-batch runs; its number says which source partition it has."""

    assignments: Mapping[int, Assignment]
    sink: TaskSink
    limits: Limits

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield self.run(batches, self.assignments[begun()])

    def run(self, batches: Iterable[pa.RecordBatch], assignment: Assignment) -> pa.RecordBatch:
        """Write everything that comes; report how far."""
        progress = _Tally(assignment.range.start)
        try:
            self._write(batches, assignment, progress)
        except NO_USE_TRYING as error:
            return progress.report(assignment.range, error)
        return progress.report(assignment.range, None)

    def _write(self, batches: Iterable[pa.RecordBatch], assignment: Assignment, tally: _Tally) -> None:
        rest = assignment.range
        writer = _Patient(self.sink, assignment, self.limits.patience)
        try:
            for gathered in chunks(batches, self.limits):
                rows = checked(gathered, rest)
                last = int(rows.offsets[-1])
                tally.add(writer.write(rows, replace(rest, end=last + 1)))
                rest = replace(rest, start=last + 1)
        finally:
            writer.close()


def begun() -> int:
    """A task has begun in this worker of Spark: its number."""
    from pyspark import TaskContext  # noqa: PLC0415 - in a worker of Spark

    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a task runs in a worker of Spark")
    set_modules_aside()
    return context.partitionId()


@lru_cache(maxsize=1)
def set_modules_aside() -> None:
    """Once in the life of a worker: what is there now stays, and is not looked through again.

    PySpark has the garbage collector look through everything after each task. That is mostly what the modules hold,
    it takes tens of milliseconds, and the next task waits for it.
    """
    gc.freeze()


@dataclass
class _Tally:
    """What a task has done so far."""

    reached: int
    rows: int = 0
    dropped: int = 0
    buried: int = 0
    chunks: int = 0

    def add(self, written: Written) -> None:
        self.reached = max(self.reached, written.reached)
        self.rows += written.rows
        self.dropped += written.dropped
        self.buried += written.buried
        self.chunks += 1

    def report(self, wanted: Range, stopped: KeptError | None) -> pa.RecordBatch:
        told = None if stopped is None else pickle.dumps(stopped)
        done = (self.reached, self.rows, self.dropped, self.buried, self.chunks)
        values = (wanted.topic, wanted.partition, *done, told)
        return pa.RecordBatch.from_arrays(
            [pa.array([value], field.type) for value, field in zip(values, _REPORT, strict=True)], schema=_REPORT
        )


class _Patient:
    """A writer that outlives a store which is away for a while: every try looks at progress anew."""

    def __init__(self, sink: TaskSink, assignment: Assignment, patience: float) -> None:
        self._sink = sink
        self._assignment = assignment
        self._patience = patience
        self._open: PartWriter | None = None

    def write(self, rows: Rows, wanted: Range) -> Written:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return self._writer().write(rows, wanted)
            except FencedAttempt:
                raise
            except (TryAgain, OutcomeUnknown, TransactionAborted):
                self.close()
                if time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE * random.uniform(0.5, 1.5))  # noqa: S311 - not a secret

    def _writer(self) -> PartWriter:
        self._open = self._open or self._sink.open(self._assignment)
        return self._open

    def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()


def chunks(batches: Iterable[pa.RecordBatch], limits: Limits) -> Iterator[list[pa.RecordBatch]]:
    """Batches put together until there are enough rows or bytes, or the first has waited long enough; each in memory
    before its transaction begins (rule 10)."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    begun = 0.0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        begun = begun if gathered else time.monotonic()
        gathered.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= limits.rows or size >= limits.bytes or time.monotonic() - begun >= limits.seconds:
            yield gathered
            gathered, rows, size = [], 0, 0
    if gathered:
        yield gathered


def checked(batches: list[pa.RecordBatch], wanted: Range) -> Rows:
    """Rule 12: all of one source partition, inside its range, in strictly rising offsets."""
    table = pa.Table.from_batches(batches)
    _refuse_another(table.column(TOPIC), wanted.topic, wanted)
    _refuse_another(table.column(PARTITION), wanted.partition, wanted)
    column = table.column(OFFSET)
    if column.null_count:
        raise UnsoundInput(f"a row of {wanted.topic}[{wanted.partition}] has no offset", way_out="keep _kept_offset")
    offsets = column.to_numpy().astype(np.int64, copy=False)
    rising = bool(np.all(offsets[1:] > offsets[:-1]))
    if not (rising and offsets[0] >= wanted.start and offsets[-1] < wanted.end):
        unsound = check_rows(wanted, offsets.tolist())
        raise unsound.error() if unsound else AssertionError("offsets are in order after all")
    ours = [name for name in OURS if name in table.column_names]
    told = [name for name in ours if name not in POSITION]
    return Rows(offsets, table.drop_columns(ours), table.select(told) if told else None)


def _refuse_another(column: pa.ChunkedArray, expected: object, wanted: Range) -> None:
    others = [value for value in pc.unique(column).to_pylist() if value != expected]
    if others:
        raise UnsoundInput(
            f"the task of {wanted.topic}[{wanted.partition}] was given rows of {others[0]!r}",
            way_out="use batch mode: the plan mixes source partitions",
        )
