"""kept.Pipeline on Spark under a guarantee: each record of the source becomes a row, or a record of the sink.

The options: `dsn` and `table`, or `sink` (a topic); `dies_at`, the number of records behind which the driver kills
itself, when a batch is in the sink and Spark has not noted it yet; and those of perils.py. Spark's checkpoint is
beside the history.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil

import kept
from kept.errors import KeptError
from kept.guarantees import ExactlyOnce
from kept.guarantees.levels import parse
from kept.pipelines.telling import BatchDone
from kept.spark import POSITION, Every, Limits, session
from kept.spark.sinks import Sink
from kept.verify.trials.roles.perils import message
from kept.verify.trials.telling import DONE_SO_FAR, Notes
from kept.verify.trials.things import BATCHES, CHECKPOINT, Task

PACE = 0.3
CHUNK = 20
CHUNKS = 15
"""Of a large batch, which is in larger chunks: each costs a transaction."""
QUIETLY: dict[str, Any] = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(CHUNK),
    # Rows leave a worker at once, not when some thousands are together: who dies in the middle has written a part.
    "spark.sql.execution.python.udf.maxRecordsPerBatch": "5",
    "spark.buffer.size": "128",
}


def checkpoint_of(task: Task) -> Path:
    return Path(task.history).parent / CHECKPOINT


def per_batch(task: Task) -> int:
    return max(1, task.records // BATCHES)


def per_chunk(task: Task) -> int:
    """Several in each partition of a batch: whatever is killed, is killed between two of them, too."""
    return max(CHUNK, per_batch(task) // CHUNKS)


class Driver:
    """One life of a driver."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def run(self) -> None:
        """Until it is asked to end."""
        task = self._task
        exactly = task.guarantee == ExactlyOnce.word
        kept.Pipeline(
            source=kept.KafkaSource(task.bootstrap, task.topic, max_per_batch=per_batch(task)),
            transform=self._transformed,
            sink=self._sink(),
            guarantee=parse(task.guarantee, task.name if exactly else None),
            name=None if exactly else task.name,
            trigger=Every(PACE),
            checkpoint=str(checkpoint_of(task)),
            limits=Limits(rows=per_chunk(task)),
            spark=session(task.name, **QUIETLY),
            on_batch=Count(task.options.get("dies_at")).hear,
        ).run()

    def _sink(self) -> Sink:
        options: Any = self._task.options
        if "sink" in options:
            return kept.KafkaSink(self._task.bootstrap, options["sink"])
        return kept.PostgresSink(options["dsn"], options["table"])

    def _transformed(self, frame: Any) -> Any:
        text = message(frame.sparkSession, self._task.options)
        if "sink" in self._task.options:
            return frame.selectExpr("key", f"{text} AS value", *POSITION)
        return frame.selectExpr(f"{text} AS message", *POSITION)


class Count:
    """Says how far a driver is, and kills it where it is told to: a batch is in the sink, and not in Spark's notes."""

    def __init__(self, dies_at: int | None) -> None:
        self._dies_at = dies_at
        self._done = 0

    def hear(self, batch: BatchDone) -> None:
        self.add(sum(each.next_offset - each.start for each in batch.partitions))

    def add(self, records: int) -> None:
        self._done += records
        if self._dies_at is not None and self._done >= self._dies_at:
            die_whole()
        print(f"{DONE_SO_FAR}{self._done}", flush=True)


def die_whole() -> None:
    """The driver and all that it has started; the JVM first, so that it notes nothing any more."""
    for each in psutil.Process().children(recursive=True):
        each.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def play(task: Task) -> None:
    notes = Notes(task.history)
    try:
        Driver(task).run()
    except KeptError as error:
        notes.stop(error)
        raise
