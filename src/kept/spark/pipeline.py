"""A pipeline: Kafka in, a transform of rows, a sink out, under one of the three guarantees.

kept.Pipeline(
    source=kept.KafkaSource("localhost:9091", "payments"),
    transform=parse,  # DataFrame -> DataFrame
    sink=kept.PostgresSink(dsn, table="payments", key="idempotency_key"),
    guarantee=kept.ExactlyOnce("payments-to-postgres"),
).run()
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kept.consumer import Start
from kept.consumer.signals import stopped_by_signals
from kept.errors import FixConfiguration
from kept.guarantees import ExactlyOnce, Guarantee
from kept.pipelines.telling import BatchDone
from kept.progress import Mode
from kept.spark import checkpoints, endings, jvm, plans
from kept.spark.batch_mode import BatchMode
from kept.spark.dead_letters import (
    DeadLetterPlace,
    Unreadable,
    not_in_batch_mode,
    refuse_elsewhere,
    refuse_going_round,
    refuse_unusable,
)
from kept.spark.driver import Driver, Ran
from kept.spark.kafka_sink import KafkaSink
from kept.spark.looking import Looking
from kept.spark.mirror import Mirror
from kept.spark.position import POSITION, REFUSED
from kept.spark.sessions import refuse_weakened, session, usable
from kept.spark.sinks import DriverSink, Sink
from kept.spark.source import KafkaSource
from kept.spark.subscriptions import Pattern, refuse_feeding_itself
from kept.spark.tasks import Limits
from kept.spark.transforms import ReadFirst, Transform
from kept.spark.triggers import Emit, Every, Trigger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

GLANCE = 0.2
SETTLES_WITHIN = 5.0


class Pipeline:
    """Reads, transforms and writes until it is stopped, or its trigger says that it is done.

    Progress lives in the sink, so the `checkpoint` may be lost, restored or left out: without one, a directory that is
    thrown away serves. Only a transform that keeps state (aggregations, joins of streams) needs one that stays. `emit`
    says what such a transform lets out: changes where the sink upserts, else final results. `name` says whose progress
    it is where the guarantee does not. `dead_letters` says where records go that cannot be read or are refused by the
    sink; without it, one of them stops the pipeline. `on_batch` hears of every batch that is done.
    """

    def __init__(
        self,
        *,
        source: KafkaSource,
        sink: Sink,
        guarantee: Guarantee,
        transform: Transform | None = None,
        name: str | None = None,
        trigger: Trigger | None = None,
        checkpoint: str | None = None,
        limits: Limits | None = None,
        spark: SparkSession | None = None,
        emit: Emit | None = None,
        dead_letters: DeadLetterPlace | None = None,
        on_batch: Callable[[BatchDone], None] | None = None,
    ) -> None:
        self.guarantee = guarantee
        self.name = _name(guarantee, name)
        source.settings(guarantee)  # refuses now what would weaken it
        if isinstance(sink, KafkaSink) and sink.bootstrap == source.bootstrap:
            refuse_feeding_itself(sink.topic, source.topics)
        if dead_letters is not None:
            refuse_elsewhere(sink, sink.buries_in, dead_letters)
        self._dead_letters = dead_letters
        self._source = source
        self._sink = sink
        self._transform: Transform = transform or (lambda frame: frame)
        self._trigger = trigger or Every()
        self._checkpoint = checkpoint
        self._limits = limits or Limits()
        self._spark = spark
        self._emit = emit or (Emit.CHANGES if getattr(sink, "upsert", False) else Emit.FINAL)
        self._on_batch = on_batch
        self._stopping = threading.Event()
        self._at_work = threading.Lock()
        self._failure: BaseException | None = None

    def run(self) -> Ran:
        """Until the end. SIGTERM and Ctrl-C finish the batch in hand; so does `stop` from another thread."""
        self._stopping.clear()
        self._failure = None
        spark = usable(self._spark) if self._spark is not None else session(f"kept {self.name}")
        refuse_weakened(spark, self.guarantee)
        looking = Looking(self._source.client)
        with self._opened_sink() as sink, _directory(self._checkpoint) as checkpoint:
            driver = Driver(looking, sink, Mirror(self._source.client, _group(self.name)), self._limits, self._on_batch)
            try:
                frame = self._prepared(spark, looking, driver, sink)
                self._serve(frame, driver, checkpoint)
            finally:
                driver.close()
        return driver.ran

    def stop(self) -> None:
        """Finish the batch in hand, then end `run`."""
        self._stopping.set()

    def _prepared(self, spark: SparkSession, looking: Looking, driver: Driver, sink: DriverSink) -> DataFrame:
        """Everything that can be refused is refused here, before an earlier driver is disturbed."""
        topics = self._topics(spark, looking, sink)
        if isinstance(self._sink, KafkaSink):
            self._sink.refuse_feeding_itself(topics, looking.cluster_id)
        if self._dead_letters is not None:
            refuse_going_round(self._dead_letters, topics, getattr(self._sink, "topic", None))
        self._refuse_lost_progress(spark, sink, topics)
        # A topic that a pattern finds later belongs to the pipeline from its first record on.
        later = None if self._source.pattern is None else Start.BEGINNING
        positions = driver.be_born(topics, self._source.start, later=later)
        source = self._source.frame(spark, self.guarantee, positions, whole=self._dead_letters is not None)
        frame = plans.inlined(self._transform(source))
        shape = plans.shape(frame)
        refuse_unusable(frame, self._dead_letters)
        if shape.mode is Mode.PARTITION:
            plans.refuse_without_position(frame, source)
            shaped = sink.shaped(frame if self._dead_letters is None else plans.carrying(frame))
            driver.take_over()
        else:
            shaped, way = self._in_batches(frame, source, shape, sink)
            driver.take_over(way)
        letters = "" if self._dead_letters is None else f", dead letters in {self._dead_letters}"
        print(  # a person who starts it wants to know what was chosen, and why
            f"{self.name}: {self._source} to {self._sink}, {self.guarantee.word}, {shape}, {self._trigger}{letters}",
            flush=True,
        )
        return shaped

    def _refuse_lost_progress(self, spark: SparkSession, sink: DriverSink, topics: Sequence[str]) -> None:
        """A birth at the beginning needs no such look: a checkpoint that has read on is a gap there, and stops.

        So it is with a topic that a pattern has found later; while it was empty only the checkpoint knew of it.
        """
        if self._checkpoint is None or self._source.start is Start.BEGINNING:
            return
        unborn = [topic for topic in topics if sink.born(topic) is None]
        found_later = self._source.pattern is not None and len(unborn) < len(topics)
        if unborn and not found_later:
            checkpoints.refuse_lost_progress(spark, self._checkpoint, self.name, unborn)

    def _in_batches(
        self, frame: DataFrame, source: DataFrame, shape: plans.Shape, sink: DriverSink
    ) -> tuple[DataFrame, BatchMode]:
        spark, unreadable = frame.sparkSession, None
        if self._dead_letters is not None:
            if not isinstance(self._transform, ReadFirst) or REFUSED in frame.columns:
                raise not_in_batch_mode(shape.in_the_way)
            unreadable = Unreadable(self.name, self.guarantee, self._source, spark, self._transform.read)
            frame = plans.inlined(self._transform.then(unreadable.set_apart(source)))
        self._refuse_unsound(frame, source, shape)
        shaped = sink.shaped(frame.drop(*POSITION))
        if shape.stateful:
            checkpoint = checkpoints.needed(self._checkpoint)
            checkpoints.refuse_lost_state(checkpoints.query_id(spark, checkpoint), checkpoint, sink.last_batch())
        return shaped, BatchMode(sink, self._limits, unreadable, stateful=shape.stateful)

    def _refuse_unsound(self, frame: DataFrame, source: DataFrame, shape: plans.Shape) -> None:
        """What batch mode cannot keep."""
        plans.refuse_other_streams(frame, source)
        plans.refuse_unsupported(frame, self._emit)
        if shape.stateful and not shape.repeatable and isinstance(self.guarantee, ExactlyOnce):
            raise FixConfiguration(
                "the transform keeps state, and does not always come to the same result (rand, uuid, first, "
                "collect_list and the like): computed again after a crash, state and what was written would differ",
                way_out="use functions whose result depends on the rows alone, or choose at-least-once",
            )
        keys: Sequence[str] = getattr(self._sink, "keys", ())
        if shape.stateful and self._emit is Emit.CHANGES and keys and not getattr(self._sink, "upsert", False):
            raise FixConfiguration(
                f"the transform keeps state and lets out its changes, and {self._sink} keeps the first row of each "
                f"{', '.join(keys)}: every later change of a result would be thrown away, and nobody told",
                way_out='let a change take the place of what is there: upsert=True, in a file mode = "upsert"; or '
                'leave the key out: every change is a row; or let out final results, with a watermark: emit = "final"',
            )

    def _topics(self, spark: SparkSession, looking: Looking, sink: DriverSink) -> list[str]:
        pattern = self._source.pattern
        if pattern is None:
            return list(self._source.topics)
        matches: Callable[[str, str], bool] = spark._jvm.java.util.regex.Pattern.matches  # type: ignore[union-attr]
        asked = Pattern(str(self._source), lambda topic: matches(pattern, topic))
        return asked.topics(self.name, looking.topics(), sink.topics())

    def _serve(self, frame: DataFrame, driver: Driver, checkpoint: str) -> None:
        started = threading.Event()
        queries: list[StreamingQuery] = []
        drivers = [driver]  # emptied at the end: a session keeps `batch`, and the driver has clients with threads

        def batch(rows: DataFrame, batch_id: int) -> None:
            # Whoever asks for the end, and then waits for this lock, knows that no batch begins any more.
            with self._at_work:
                started.wait()  # the first batch may come before `start` has returned
                if self._stopping.is_set() or not drivers:
                    raise _Stopped
                try:
                    drivers[0].batch(rows, batch_id, queries[0])
                except BaseException as error:
                    self._failure = error  # Spark passes its text on, and nothing else
                    raise

        writer = frame.writeStream.foreachBatch(batch).outputMode(self._emit.value)
        writer = writer.option("checkpointLocation", checkpoint)
        try:
            queries.append(self._trigger.given_to(writer).start())
            started.set()
            with stopped_by_signals(self.stop):
                self._await(queries[0], driver)
            driver.ended(queries[0])
        finally:
            drivers.clear()
            # Spark goes on with a start that Ctrl-C has cut short, and nobody has the query in hand to stop it: its
            # first batch must not wait for ever, and finds no driver, which ends it.
            started.set()
            with jvm.unless_gone():
                for query in queries:
                    query.stop()

    def _await(self, query: StreamingQuery, driver: Driver) -> None:
        from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - heavy, and only needed here

        try:
            while not query.awaitTermination(GLANCE) and not self._stopping.is_set():  # type: ignore[arg-type]
                pass
            with self._at_work:
                pass
            deadline = time.monotonic() + SETTLES_WITHIN  # Spark writes down that the batch is done
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
                time.sleep(0.02)
        except StreamingQueryException as error:
            if not self._stopping.is_set() or self._failure is not None:
                raise endings.told(self._failure, error, self.name, driver.missing) from self._failure
        except Exception as error:
            if not jvm.gone(error):
                raise
            raise endings.cut_off(self._failure) from error
        if isinstance(self._failure, Exception):  # of the batch in hand when the end was asked for: Spark tells nobody
            raise endings.told(self._failure, self._failure, self.name, driver.missing) from self._failure

    @contextmanager
    def _opened_sink(self) -> Iterator[DriverSink]:
        sink = self._sink.open(self.name, self.guarantee, self._dead_letters)
        try:
            yield sink
        finally:
            sink.close()


class _Stopped(Exception):
    """No batch begins after the end was asked for."""


@contextmanager
def _directory(checkpoint: str | None) -> Iterator[str]:
    """The checkpoint that was named, or one for this run only: without state progress does not depend on it."""
    if checkpoint is not None:
        yield checkpoint
        return
    made = tempfile.mkdtemp(prefix="kept-checkpoint-")
    try:
        yield f"file://{made}"
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _name(guarantee: Guarantee, name: str | None) -> str:
    if isinstance(guarantee, ExactlyOnce):
        if name not in (None, guarantee.name):
            raise FixConfiguration(
                f"the pipeline is named {name!r} and its guarantee {guarantee.name!r}", way_out="leave name out"
            )
        return guarantee.name
    if name is None:
        raise FixConfiguration(
            "a pipeline needs a name: its progress is kept under it", way_out="give name='payments-to-postgres'"
        )
    return ExactlyOnce(name).name  # the same names are allowed for all guarantees


def _group(name: str) -> str:
    return ExactlyOnce(name).group
