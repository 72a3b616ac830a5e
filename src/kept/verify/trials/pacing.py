"""A workload that takes its time, so that faults strike in the middle of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from kept.verify.trials.things import Task
from kept.verify.workload import Value, Workload


def chunks(task: Task, together: int) -> Iterator[list[Value]]:
    """The task's values, so many at once, so many a second."""
    values = [
        value
        for value in Workload(task.sender, task.records, task.keys, task.seed).values()
        if value.number >= task.first
    ]
    began = time.monotonic()
    for start in range(0, len(values), together):
        due = began + start / task.per_second
        if (early := due - time.monotonic()) > 0:
            time.sleep(early)
        yield values[start : start + together]
