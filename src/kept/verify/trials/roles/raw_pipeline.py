"""Spark's Structured Streaming as its documentation shows it, with what people write behind foreachBatch.

The options: `dsn` and `table`, or `sink` (a topic); `dies_at` and those of perils.py, as for kept's own;
`moves_to_end`: tasks move progress to the end of their range with their first rows, and skip what lies below it;
`apart`: Spark's checkpoint is each life's own; `skips_what_is_gone`: Spark's failOnDataLoss=false.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from kept.spark import session
from kept.verify.trials.roles.perils import message
from kept.verify.trials.roles.pipeline import CHUNK, PACE, QUIETLY, Count, checkpoint_of, per_batch
from kept.verify.trials.telling import Notes
from kept.verify.trials.things import Task

LOOKS_AGAIN = 0.2
PROGRESS = "CREATE TABLE IF NOT EXISTS reached (partition int PRIMARY KEY, next bigint NOT NULL)"
MOVE = "INSERT INTO reached VALUES (%s, %s) ON CONFLICT (partition) DO UPDATE SET next = excluded.next"


def play(task: Task) -> None:
    Notes(task.history)
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    spark = session(task.name, **QUIETLY)
    own = f"-{task.life}" if task.options.get("apart") else ""
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", task.bootstrap)
        .option("subscribe", task.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch(task))
        .option("failOnDataLoss", str(not task.options.get("skips_what_is_gone", False)).lower())
        .load()
    )
    query = (
        frame.writeStream.foreachBatch(Batches(task).take)
        .option("checkpointLocation", f"{checkpoint_of(task)}{own}")
        .trigger(processingTime=f"{round(PACE * 1000)} milliseconds")
        .start()
    )
    print(f"{task.name}: {task.topic} by foreachBatch", flush=True)
    while not asked_to_end.wait(LOOKS_AGAIN):
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
    query.stop()


class Batches:
    """What is done with each of them, and where the driver dies."""

    def __init__(self, task: Task) -> None:
        self._options: Any = task.options
        self._bootstrap = task.bootstrap
        self._count = Count(task.options.get("dies_at"))

    def take(self, frame: Any, _number: int) -> None:
        if "sink" in self._options:
            self._into_kafka(frame)
        else:
            self._into_postgres(frame)
        self._count.add(frame.count())

    def _into_kafka(self, frame: Any) -> None:
        text = message(frame.sparkSession, self._options)
        kafka = frame.selectExpr("key", f"{text} AS value").write.format("kafka")
        kafka.option("kafka.bootstrap.servers", self._bootstrap).option("topic", self._options["sink"]).save()

    def _into_postgres(self, frame: Any) -> None:
        text = message(frame.sparkSession, self._options)
        rows = frame.selectExpr("partition", "offset", f"{text} AS message")
        insert = SQL("INSERT INTO {} (message) VALUES (%s)").format(Identifier(self._options["table"]))
        dsn = self._options["dsn"]
        if not self._options.get("moves_to_end"):
            rows.foreachPartition(inserting(dsn, insert))
            return
        ends: dict[int, int] = dict(frame.groupBy("partition").agg({"offset": "max"}).collect())
        with psycopg.connect(dsn) as connection:
            connection.execute(PROGRESS)
        rows.foreachPartition(moving_to_end(dsn, insert, ends))


def inserting(dsn: str, insert: Composed) -> Callable[[Iterable[Any]], None]:
    """Row by row, as they come."""

    def write(rows: Iterable[Any]) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for row in rows:
                connection.execute(insert, (row.message,))

    return write


def moving_to_end(dsn: str, insert: Composed, ends: dict[int, int]) -> Callable[[Iterable[Any]], None]:
    """Rows and progress in one transaction, which looks right; but progress is that of the batch, not of the rows."""

    def write(rows: Iterable[Any]) -> None:
        below: int | None = None
        with psycopg.connect(dsn) as connection:
            for chunk in _chunks(rows):
                partition = chunk[0].partition
                below = _reached(connection, partition) if below is None else below
                with connection.cursor() as cursor:
                    cursor.executemany(insert, [(row.message,) for row in chunk if row.offset >= below])
                connection.execute(MOVE, (partition, ends[partition] + 1))
                connection.commit()

    return write


def _reached(connection: psycopg.Connection[Any], partition: int) -> int:
    found = connection.execute("SELECT next FROM reached WHERE partition = %s", (partition,)).fetchone()
    return 0 if found is None else int(found[0])


def _chunks(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """The first row alone: whoever fails soon has moved its progress by then, however few rows are in its range."""
    left = iter(rows)
    yield from ([row] for row in islice(left, 1))
    while chunk := list(islice(left, CHUNK)):
        yield chunk
