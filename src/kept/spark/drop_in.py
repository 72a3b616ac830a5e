"""Sinks of kept behind Spark's own writer: `.format("kept_kafka")` and `.format("kept_postgres")`.

kept.spark.register(spark)
rows = kept.spark.with_position(spark.readStream.format("kafka").options(...).load())
query = (
    rows.select("key", "value", *kept.spark.POSITION)
    .writeStream.format("kept_kafka")
    .option("kafka.bootstrap.servers", "localhost:9091").option("topic", "copies")
    .option("pipeline", "copies-of-payments").option("guarantee", "exactly-once")
    .start()
)

Every promise is that of kept.Pipeline in partition mode, since the same driver does the work, batch by batch, from
foreachBatch; decision 17 says why it is no Python data source. The frame is read anew from where progress stands, so
`startingOffsets` counts once, when the pipeline is new, and the checkpoint may be lost. What a frame of a user does
besides selecting and filtering is refused: kept.Pipeline has a mode for that.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

from kept.errors import FixConfiguration
from kept.guarantees import ExactlyOnce
from kept.pipelines.checkpoints import Checkpoint
from kept.spark import checkpoints, plans, writers
from kept.spark.driver import Driver
from kept.spark.drop_in_options import FORMATS, Asked, asked_for, source_of
from kept.spark.kafka_sink import KafkaSink
from kept.spark.looking import Beginning, Looking
from kept.spark.mirror import Mirror
from kept.spark.sessions import refuse_weakened, usable
from kept.spark.source import KafkaSource
from kept.spark.tasks import Limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger("kept.spark")
OURS = "_kept_formats"


def register(spark: SparkSession) -> None:
    """From now on `writeStream` knows the formats of kept, in this process. Other formats are not touched."""
    from pyspark.sql.streaming import readwriter  # noqa: PLC0415 - heavy, and only needed here

    writers.refuse_unknown(usable(spark))
    writer: Any = readwriter.DataStreamWriter
    sparks = writer.start
    if hasattr(sparks, OURS):
        return  # once is enough

    @wraps(sparks)
    def start(
        self: DataStreamWriter,
        path: str | None = None,
        format: str | None = None,  # noqa: A002
        outputMode: str | None = None,  # noqa: N803
        partitionBy: Any = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> Any:
        if (format or writers.format_of(self)).lower() not in FORMATS:
            return sparks(self, path, format, outputMode, partitionBy, queryName, **options)
        named = {"path": path, "queryName": queryName, **options}
        self.options(**{name: value for name, value in named.items() if value is not None})
        if format is not None:
            self.format(format)
        if outputMode is not None:
            self.outputMode(outputMode)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        return _started(writers.given(self))

    setattr(start, OURS, True)
    writer.start = start


def _started(given: writers.Given) -> StreamingQuery:
    """Everything that can be refused is refused before an earlier driver is disturbed; then the query begins."""
    if given.laid_out:
        raise FixConfiguration(
            f"{given.format} lays out no files: partitionBy and clusterBy have no meaning", way_out="leave them out"
        )
    if str(given.mode) == "Complete":
        raise FixConfiguration(
            "rows one by one have no complete result to let out", way_out="leave outputMode out, or use append"
        )
    if not given.by_batches:
        raise FixConfiguration(
            "a guarantee is kept from micro-batch to micro-batch, and this trigger makes none",
            way_out="use trigger(processingTime=...) or trigger(availableNow=True)",
        )
    asked = asked_for(given.format, given.options)
    refuse_weakened(usable(given.frame.sparkSession), asked.guarantee)
    source = source_of(plans.kafka_options(given.frame), asked.client)
    source.settings(asked.guarantee)  # refuses now what would weaken it
    plans.refuse_strange_position(given.frame)
    with ExitStack() as opened:
        query = _begun(given, asked, source, opened)
        threading.Thread(target=_close_after, args=(query, opened.pop_all()), daemon=True).start()
    return query


def _begun(given: writers.Given, asked: Asked, source: KafkaSource, opened: ExitStack) -> StreamingQuery:
    looking = Looking(source.client)
    if isinstance(asked.sink, KafkaSink):
        asked.sink.refuse_feeding_itself(source.topics, looking.cluster_id)
    sink = asked.sink.open(asked.name, asked.guarantee)
    opened.callback(sink.close)
    driver = Driver(looking, sink, Mirror(source.client, ExactlyOnce(asked.name).group), Limits())
    opened.callback(driver.close)
    unread = [topic for topic in source.topics if sink.born(topic) is None]
    start: Beginning = _where_to_begin(unread, given, asked, source) if unread else source.start
    positions = driver.be_born(source.topics, start)
    frame = plans.read_anew(given.frame, source.from_there(asked.guarantee, positions))
    shaped = sink.shaped(frame)
    driver.take_over()
    log.info("%s: %s to %s, %s", asked.name, source, asked.sink, asked.guarantee.word)
    handed = threading.Event()
    queries: list[StreamingQuery] = []
    drivers = [driver]  # emptied at the end: a session keeps `batch`, and the driver has clients with threads
    opened.callback(drivers.clear)

    def batch(rows: DataFrame, batch_id: int) -> None:
        handed.wait()  # the first batch may come before `start` has returned
        drivers[0].batch(rows, batch_id, queries[0])

    try:
        queries.append(given.handed_on(shaped.writeStream.foreachBatch(batch), asked.for_spark).start())
    finally:
        handed.set()
    return queries[0]


def _where_to_begin(unread: list[str], given: writers.Given, asked: Asked, source: KafkaSource) -> Beginning:
    """Topics that are new to the pipeline, under a checkpoint that is not: it was read into another sink, or this one
    has lost its progress.

    From the latest on, what that query has left unread would count as done, and be lost; from the earliest on, the
    checkpoint would be a gap. So a person says what is meant, and of which batch.
    """
    spark, checkpoint = given.frame.sparkSession, given.checkpoint()
    if checkpoint is not None and checkpoints.query_id(spark, checkpoint) is not None:
        found = checkpoints.standing(spark, checkpoint)
    elif asked.first_batch is None:
        return source.start
    else:
        found = None
    if found is not None and found.next_batch == asked.first_batch:
        return found.restart
    raise _unclear_beginning(f"{', '.join(unread)} is new to the pipeline {asked.name!r}", checkpoint, found)


def _unclear_beginning(new: str, checkpoint: str | None, found: Checkpoint | None) -> FixConfiguration:
    anew = (
        "to begin by startingOffsets leave start out, and name a checkpointLocation that is new; "
        "if the pipeline has read this before, its progress is lost: restore the sink"
    )
    if found is None:
        return FixConfiguration(f"{new}, and {checkpoint or 'no checkpoint'} has no batch to go on with", way_out=anew)
    return FixConfiguration(
        f"{new}, and {checkpoint} has been used before: its next batch is {found.next_batch}",
        way_out=f'to go on where that query was, add .option("start", "batch {found.next_batch}"): what it did not '
        f"finish comes again; {anew}",
    )


def _close_after(query: StreamingQuery, opened: ExitStack) -> None:
    """What ended the query is told to whoever waits for it; here it only has to have ended."""
    with opened, suppress(Exception):
        query.awaitTermination()
