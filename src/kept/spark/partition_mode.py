"""Partition mode around a micro-batch: tasks write by themselves, then each range is closed."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kept.errors import UnsoundInput
from kept.progress import Accept, Owner, Progress, Range, Source, Stop, check
from kept.spark.plans import Planned, planned
from kept.spark.sinks import Assignment, Carried, Done, DriverSink, InHand, Part
from kept.spark.tasks import REPORT, Limits, Task

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class PartitionMode:
    """Each source partition by itself, by offset: rows that are done are dropped."""

    stateful = False

    def __init__(self, sink: DriverSink, limits: Limits) -> None:
        self._sink = sink
        self._limits = limits

    def planned(self, query: StreamingQuery) -> Sequence[Planned] | None:
        return planned(query) or None

    def ended(self, query: StreamingQuery) -> None:
        """Nothing is left to tell."""

    def ranges(self, plan: Sequence[Planned], recorded: Mapping[Part, Progress]) -> dict[Part, Planned]:  # noqa: ARG002
        """What the tasks were given, in the order of their numbers."""
        return {(each.topic, each.partition): each for each in plan}

    def check(self, wanted: Range, recorded: Progress, source: Source, owner: Owner) -> Accept | Stop:
        return check(wanted, recorded, source, owner)

    def carry(self, given: InHand) -> Carried:
        """Rows carry their place: offsets decide, and not who the batch is."""
        task = Task(given.assignments, self._sink.for_tasks(), self._limits)
        reports = given.frame.mapInArrow(task, REPORT).collect()
        done = _accounted(given.assignments, reports)
        given.look_again()
        # Rule 8: only here progress moves past the last row that was written.
        recorded = self._sink.close_ranges(done)
        rows, dropped, buried = (sum(each[name] for each in reports) for name in ("rows", "dropped", "buried"))
        return Carried(recorded, rows, dropped, buried)


def _accounted(assignments: Mapping[int, Assignment], reports: Sequence[Any]) -> list[Done]:
    """What every task came to; one that was stopped stops the pipeline."""
    for report in reports:
        if report.stopped is not None:
            raise pickle.loads(bytes(report.stopped))  # noqa: S301 - written by our own task
    reached = {(report.topic, report.partition): report.reached for report in reports}
    expected = {(each.range.topic, each.range.partition): each for each in assignments.values()}
    if reached.keys() != expected.keys() or len(reports) != len(expected):
        raise UnsoundInput(
            f"Spark planned {len(expected)} tasks, and {len(reports)} have reported",
            way_out="start it again: nothing was closed, progress is where the rows are",
        )
    return [Done(expected[part], offset) for part, offset in reached.items()]
