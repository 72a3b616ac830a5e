"""A task of kept's sink with one thing broken on purpose, as a role of `kept verify`; it must be caught."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from kept.spark import partition_mode
from kept.spark.postgres_sink import PostgresPart
from kept.spark.sinks import Assignment
from kept.spark.tasks import Task, _Patient, _Tally, checked, chunks
from kept.verify.trials.roles import pipeline
from kept.verify.trials.things import Task as Part

ROLE = __name__


class ToTheEnd(Task):
    """Rule 8 taken out: with its first rows a task moves progress to the end of its range, whatever of it is written.

    As long as all of its input comes, nobody notices: whoever comes second, behind its own death, leaves out all.
    """

    def _write(self, batches: Iterable[pa.RecordBatch], assignment: Assignment, tally: _Tally) -> None:
        writer, done = _Patient(self.sink, assignment, self.limits.patience), None
        try:
            for gathered in chunks(batches, self.limits):
                rows = checked(gathered, assignment.range)
                if done is None:
                    written = writer.write(rows, assignment.range)
                    tally.add(written)
                    done = written.dropped == len(rows)
                elif not done:
                    part = writer._writer()
                    assert isinstance(part, PostgresPart)
                    with part._store.apart() as session:
                        part._effect.apply(session, rows)
        finally:
            writer.close()


def play(task: Part) -> None:
    """kept.Pipeline, mutated. The class travels to the workers by its name."""
    setattr(partition_mode, "Task", ToTheEnd)  # noqa: B010 - a name that it does not export
    pipeline.play(task)
