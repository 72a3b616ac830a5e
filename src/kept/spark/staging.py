"""The tasks of batch mode: rows put aside in the sink's own system, in counted sets, until the driver moves them.

Rule 9: a set is named by a uuid that is made for this very try, and returned with its count. A try whose outcome is not
known is left behind under its name, and the next has another: the driver moves only what accepted tasks have named.
"""

from __future__ import annotations

import logging
import pickle
import random
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from kept.errors import KeptError, OutcomeUnknown, TryAgain, UnsoundInput
from kept.progress import Batch
from kept.spark.tasks import NO_USE_TRYING, PAUSE, Limits, begun, chunks

log = logging.getLogger("kept.spark")
REPORT = "task int, rows long, staged binary, stopped binary"
_REPORT = pa.schema([("task", pa.int32()), ("rows", pa.int64()), ("staged", pa.binary()), ("stopped", pa.binary())])


@dataclass(frozen=True)
class Staged:
    """A set of rows of one task; `place` is where it is, if its name does not tell."""

    name: str
    rows: int
    place: Any = None


class StagingLost(TryAgain):
    """Staged rows are not all there any more: to move them again is no use, the batch has to be computed again."""


@contextmanager
def at_most_once(rows: int) -> Iterator[None]:
    """Rows that progress has passed already: a store that is away now is their loss, and told as that.

    What ends the pipeline here says so, too: a restart begins behind these rows, the good ones among them.
    """
    try:
        yield
    except (TryAgain, OutcomeUnknown) as error:
        log.warning("at most once: %d rows that progress has passed may not have been written: %s", rows, error)
    except KeptError as error:
        error.what += f"; at most once: progress has passed {rows} rows that were to be written, and may not have been"
        error.args = (error.what,)
        error.way_out += "; a restart does not bring these rows, `kept pipelines replay` reads them again"
        raise


def tell_lost(batch: Batch, staged: Sequence[Staged]) -> None:
    """At most once: a try before this one has recorded the batch, and its answer was lost."""
    rows = sum(each.rows for each in staged)
    log.warning("at most once: batch %d was recorded before; %d rows may not have been written", batch.batch_id, rows)


class StageWriter(Protocol):
    """Puts the rows of one task aside."""

    def write(self, name: str, first: int, rows: pa.Table) -> object:
        """A whole set, durable when this returns; `first` is the number of its first row in the task."""

    def close(self) -> None: ...


class Staging(Protocol):
    """The part of a sink that travels to the tasks of batch mode."""

    def open(self, task: int) -> StageWriter: ...


@dataclass(frozen=True)
class StageTask:
    """What every task of a micro-batch runs in batch mode."""

    staging: Staging
    limits: Limits

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield self.run(batches, begun())

    def run(self, batches: Iterable[pa.RecordBatch], number: int) -> pa.RecordBatch:
        """Put aside everything that comes; report which sets it became."""
        done = _Task(self.staging, number, self.limits.patience)
        try:
            for gathered in chunks(batches, self.limits):
                done.add(pa.Table.from_batches(gathered))
        except NO_USE_TRYING as error:
            return done.report(error)
        finally:
            done.close()
        return done.report(None)


@dataclass
class _Task:
    """One task: its sets so far, and a writer that outlives a store which is away for a while."""

    staging: Staging
    number: int
    patience: float
    rows: int = 0
    sets: list[Staged] = field(default_factory=list)
    writer: StageWriter | None = None

    def add(self, rows: pa.Table) -> None:
        deadline = time.monotonic() + self.patience
        while True:
            name = str(uuid.uuid4())
            try:
                self.writer = self.writer or self.staging.open(self.number)
                place = self.writer.write(name, self.rows, rows)
            except (TryAgain, OutcomeUnknown):
                self.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE * random.uniform(0.5, 1.5))  # noqa: S311 - not a secret
            else:
                self.sets.append(Staged(name, rows.num_rows, place))
                self.rows += rows.num_rows
                return

    def report(self, stopped: KeptError | None) -> pa.RecordBatch:
        told = None if stopped is None else pickle.dumps(stopped)
        values = (self.number, self.rows, pickle.dumps(self.sets), told)
        return pa.RecordBatch.from_arrays(
            [pa.array([value], of.type) for value, of in zip(values, _REPORT, strict=True)], schema=_REPORT
        )

    def close(self) -> None:
        opened, self.writer = self.writer, None
        if opened is not None:
            opened.close()


def accounted(reports: Sequence[Any]) -> list[Staged]:
    """The sets of every accepted task, in the order of the tasks; one that was stopped stops the pipeline."""
    for report in reports:
        if report.stopped is not None:
            raise pickle.loads(bytes(report.stopped))  # noqa: S301 - written by our own task
    ordered = sorted(reports, key=lambda report: report.task)
    if [report.task for report in ordered] != list(range(len(ordered))):
        raise UnsoundInput(
            f"the tasks that have reported are {[report.task for report in ordered]}",
            way_out="start it again: nothing was moved",
        )
    return [each for report in ordered for each in pickle.loads(bytes(report.staged))]  # noqa: S301 - our own
