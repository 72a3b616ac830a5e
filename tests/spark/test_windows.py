"""Windows with a watermark in batch mode: each comes to its true count, once, though the driver dies on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from kept.guarantees import Guarantee
from kept.local import Cluster
from kept.spark import Emit, KafkaSource
from kept.spark.sinks import Sink
from tests.spark.batches import Dying, Groups, PowerCut, power_cut, windows
from tests.spark.things import OutKafka, fill, pipeline

PER_BATCH = 15
LONG = 10
"""Records of a window."""


def told(frame: DataFrame) -> DataFrame:
    """The window and its count in one record."""
    return windows(frame).selectExpr("cast(k as string) as key", "concat(k, ' ', count) as value")


def changes(count: int) -> Counter[str]:
    """What comes of so many records, a batch at a time: each window that a batch has changed, once."""
    found: Counter[str] = Counter()
    sizes: Counter[int] = Counter()
    for start in range(0, count, PER_BATCH):
        batch = Counter(number // LONG * LONG for number in range(start, start + PER_BATCH))
        sizes += batch
        found += Counter(f"{window} {sizes[window]}" for window in batch)
    return found


def truth(count: int) -> dict[int, int]:
    return dict(Counter(number // LONG * LONG for number in range(count)))


@pytest.fixture(params=["postgres", "kafka"])
def into(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sink(request: pytest.FixtureRequest, into: str) -> Sink:
    if into == "kafka":
        out: OutKafka = request.getfixturevalue("into_kafka")
        return out.sink
    return Groups(request.getfixturevalue("dsn")).sink


@pytest.fixture
def refuse_harm(request: pytest.FixtureRequest, into: str) -> Callable[[int], None]:
    """Sees that the sink holds what so many records come to: the rows of a table, or every change in a topic."""
    if into == "kafka":
        out: OutKafka = request.getfixturevalue("into_kafka")

        def topic_is_true(count: int) -> None:
            assert out.held() == changes(count)
            said = [(int(each.split()[0]), int(each.split()[1])) for each in out.held()]
            assert dict(sorted(said)) == truth(count), "the largest count of each is the last"

        return topic_is_true
    table = Groups(request.getfixturevalue("dsn"))

    def table_is_true(count: int) -> None:
        assert table.held() == truth(count)

    return table_is_true


def test_changes_of_windows_are_written_once_wherever_the_driver_dies(
    cluster: Cluster,
    topic: str,
    into: str,
    sink: Sink,
    refuse_harm: Callable[[int], None],
    exactly: Guarantee,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Before the move of a batch; and after it, when Spark has not written commits/1."""
    checkpoint = tmp_path / "checkpoint"
    source = KafkaSource(cluster.bootstrap, topic, max_per_batch=PER_BATCH)
    transform = told if into == "kafka" else windows
    more = {"transform": transform, "checkpoint": str(checkpoint), "source": source, "emit": Emit.CHANGES}

    def run(sink: Sink) -> int:
        return pipeline(cluster, topic, sink, exactly, spark, **more).run().rows

    fill(cluster, topic, 3 * PER_BATCH)
    for dying, done in ((Dying(sink, 1, before=power_cut), 1), (Dying(sink, 1, after=power_cut), 2)):
        with pytest.raises(PowerCut):
            run(dying)
        refuse_harm(done * PER_BATCH)
    assert not (checkpoint / "commits" / "1").exists()
    assert run(sink) == 2, "of the last batch alone: batch 1 is computed for its state, and not written"
    refuse_harm(3 * PER_BATCH)


def test_final_windows_are_let_out_once_wherever_the_driver_dies(
    cluster: Cluster, topic: str, into_kafka: OutKafka, exactly: Guarantee, spark: SparkSession, tmp_path: Path
) -> None:
    """The batch that lets them out has no rows of the source: only its number tells that it was written."""
    checkpoint = tmp_path / "checkpoint"
    more = {"transform": told, "checkpoint": str(checkpoint), "emit": Emit.FINAL}
    fill(cluster, topic, 35)
    for dying, held in (
        (Dying(into_kafka.sink, 1, before=power_cut), Counter[str]()),
        (Dying(into_kafka.sink, 1, after=power_cut), Counter({"0 10": 1, "10 10": 1, "20 10": 1})),
    ):
        with pytest.raises(PowerCut):
            pipeline(cluster, topic, dying, exactly, spark, **more).run()
        assert into_kafka.held() == held
    assert not (checkpoint / "commits" / "1").exists()
    fill(cluster, topic, 16, 35)
    pipeline(cluster, topic, into_kafka.sink, exactly, spark, **more).run()
    assert into_kafka.held() == Counter({f"{start} 10": 1 for start in range(0, 50, LONG)})
