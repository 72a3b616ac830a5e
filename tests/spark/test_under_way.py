"""What happens to a source while a pipeline is at work: it is told, and nothing is lost silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from kept.errors import Gap, SourceChanged
from kept.guarantees import Guarantee
from kept.local import Cluster
from kept.pipelines.telling import BatchDone
from kept.spark import Every
from kept.spark.dead_letters import DeadLetterPlace
from kept.spark.sinks import DriverSink, Sink, TaskSink
from kept.spark.staging import Staging
from tests.conftest import Eventually
from tests.spark.batches import spread
from tests.spark.test_source import made_anew
from tests.spark.things import AroundDriver, each_once, fill, out_of, pipeline

BOTH = pytest.mark.parametrize("into", ["postgres", "kafka"])


@dataclass(frozen=True)
class Meanwhile:
    """A sink around another: something happens when a batch's source was looked at, and none of its rows was read."""

    inner: Sink
    happens: Callable[[], None]

    @property
    def buries_in(self) -> type[DeadLetterPlace]:
        return self.inner.buries_in

    def open(self, pipeline: str, guarantee: Guarantee, dead_letters: DeadLetterPlace | None = None) -> DriverSink:
        return MeanwhileDriver(self.inner.open(pipeline, guarantee, dead_letters), self)


@dataclass
class MeanwhileDriver(AroundDriver):
    fault: Meanwhile

    def for_tasks(self) -> TaskSink:
        self.fault.happens()
        return self.inner.for_tasks()

    def staging(self) -> Staging:
        self.fault.happens()
        return self.inner.staging()


def delete_before(cluster: Cluster, topic: str, partition: int, offset: int) -> None:
    """As retention does."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})  # it has to live until the answer is there
    (deleted,) = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    deleted.result(30)


@BOTH
@pytest.mark.parametrize("when", ["between two batches", "in a batch"])
def test_retention_that_overtakes_a_pipeline_at_work_stops_it(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    topic: str,
    exactly: Guarantee,
    spark: SparkSession,
    when: str,
    into: str,
) -> None:
    """Between two batches our own look at the source finds it; in a batch it is Spark that misses records."""
    out, batches = out_of(request, into), [0]

    def overtake() -> None:
        delete_before(cluster, topic, 1, 15)

    def hear(_batch: BatchDone) -> None:
        batches[0] += 1
        fill(cluster, topic, 30, 30)
        if when == "between two batches":
            overtake()

    def happens() -> None:
        if when == "in a batch" and batches[0]:
            overtake()

    fill(cluster, topic, 30)
    with pytest.raises(Gap, match="deleted before") as told:
        pipeline(cluster, topic, Meanwhile(out.sink, happens), exactly, spark, trigger=Every(), on_batch=hear).run()
    assert "kept pipelines repair" in told.value.way_out
    assert batches == [1]
    assert out.recorded(topic)[1] == 10, "nothing was passed over"
    held = out.held()
    assert each_once(30) <= held <= each_once(60)
    with pytest.raises(Gap, match=r"5 offsets from .* were deleted before they were read"):
        pipeline(cluster, topic, out.sink, exactly, spark).run()


@pytest.mark.parametrize(("into", "in_batches"), [("postgres", False), ("kafka", False), ("postgres", True)], ids=str)
def test_a_topic_that_is_replaced_while_a_batch_is_read_is_told(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    topic: str,
    exactly: Guarantee,
    spark: SparkSession,
    eventually: Eventually,
    into: str,
    in_batches: bool,
) -> None:
    """Rows of the new one have the offsets that were planned, so nothing else shows it. Batch mode has moved none."""
    out = out_of(request, into)

    def replace() -> None:
        made_anew(cluster, topic, eventually)
        fill(cluster, topic, 60, 1000)

    more = {"transform": spread} if in_batches else {}
    fill(cluster, topic, 30)
    with pytest.raises(SourceChanged, match="deleted and made again while a batch was read") as told:
        pipeline(cluster, topic, Meanwhile(out.sink, replace), exactly, spark, **more).run()
    assert "compare the last batch" in told.value.way_out
    held = out.held()
    assert held == Counter() if in_batches else held.total() == 30
    with pytest.raises(SourceChanged, match="made anew"):
        pipeline(cluster, topic, out.sink, exactly, spark, **more).run()
    assert out.held() == held
