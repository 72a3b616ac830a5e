"""What becomes of a task at a point of a chunk: it dies, it waits for its copy, it waits for the end of its machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from pyspark import TaskContext

Act: TypeAlias = Callable[[str, bool], None]
"""Called at each point of a chunk, with the name of a file and whether this is the point that was chosen."""


def die_there(marker: str, there: bool) -> None:
    if there:
        die_once(marker)


def wait_for_copy(marker: str, there: bool) -> None:
    """The first task goes on from here only when a copy of it has come: that it was met is written down."""
    task = TaskContext.get()
    assert task is not None
    if task.partitionId() != 0:
        return
    copy = f"{marker}.copy"
    if task.attemptNumber() > 0:
        _wait_for(marker)  # one that comes early would be done, and the first be ended, before that is there
        Path(copy).touch()
    elif there and _first(marker):
        _wait_for(copy)
        Path(f"{marker}.met").touch()


def wait_to_be_killed(marker: str, there: bool) -> None:
    """The first tasks that come here say where they live, and go on only when they are told to.

    One that was begun again and is at work after that says so: what was killed had something left to do. It is known by
    its part, which another try was at: where shuffled rows are lost with a machine, Spark counts its tries anew.
    """
    task, go = TaskContext.get(), Path(f"{marker}.go")
    assert task is not None
    tried = Path(f"{marker}.{task.stageId()}-{task.partitionId()}.try")
    if there and not go.exists():
        tried.write_text(str(task.taskAttemptId()))
        told = Path(f"{marker}.{os.getpid()}.part")
        told.write_text(str(Path.cwd()))
        told.rename(told.with_suffix(".here"))
        _wait_for(str(go))
    if go.exists() and tried.exists() and tried.read_text() != str(task.taskAttemptId()):
        Path(f"{marker}.again").touch()


def _wait_for(path: str, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not Path(path).exists():
        assert time.monotonic() < deadline, f"nobody has made {path}"
        time.sleep(0.02)


def _first(marker: str) -> bool:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die_once(marker: str) -> None:
    """End this worker as a power cut would; whoever comes second goes on."""
    if _first(marker):
        os._exit(17)
