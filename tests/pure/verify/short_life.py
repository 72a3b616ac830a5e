"""A role that begins some records and ends at once: whatever strikes then meets nobody."""

from __future__ import annotations

import time
from pathlib import Path

from kept.verify.trials.pacing import chunks
from kept.verify.trials.telling import Notes
from kept.verify.trials.things import Task

ROLE = __name__


def play(task: Task) -> None:
    """The option `stays`: seconds to live on behind its last record; `until`: until there is such a file."""
    notes = Notes(task.history)
    for chunk in chunks(task, 10):
        notes.begin(chunk)
    time.sleep(task.options.get("stays", 0.0))
    while "until" in task.options and not Path(task.options["until"]).exists():
        time.sleep(0.02)
