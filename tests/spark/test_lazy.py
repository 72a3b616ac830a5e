"""Rule 10: a result of Spark is computed once, and put aside, before the transaction that sends it is opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from kept.consumer.outgoing import Output
from kept.guarantees import Guarantee
from kept.local import Cluster
from kept.spark.batch_mode import BatchMode
from kept.spark.kafka_batches import KafkaBatches
from kept.spark.sinks import Carried, InHand
from tests.spark.things import OutKafka, each_once, fill, pipeline


def dealt_by_chance(frame: DataFrame) -> DataFrame:
    """Every computing of it deals the rows into two parts differently."""
    by_chance = F.expr("reflect('java.util.UUID', 'randomUUID')")
    return frame.select("value", by_chance.alias("chance")).repartition(2, "chance").select("value")


def lose_shuffles(spark: SparkSession, since: int) -> int:
    """What executors take with them when they die: the rows that they had dealt. Returns the next shuffle's number."""
    jvm: Any = spark._jvm
    context: Any = spark._jsc.sc()
    upto = int(context.newShuffleId())
    for number in range(since, upto):
        jvm.org.apache.spark.SparkEnv.get().blockManager().master().removeShuffle(number, True)
    return upto


def test_what_comes_out_differently_each_time_is_still_written_once(
    cluster: Cluster,
    topic: str,
    into_kafka: OutKafka,
    exactly: Guarantee,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shuffle is lost while the rows are sent; without the rule they are streamed into the open transaction."""
    staged_rows = KafkaBatches._outputs
    lazy: list[DataFrame] = []
    carry = BatchMode.carry

    def remembered(self: BatchMode, given: InHand) -> Carried:
        lazy.append(given.frame)
        return carry(self, given)

    def put_aside(self: KafkaBatches, *staged: Any) -> Iterator[Sequence[Output]]:
        for outputs in staged_rows(self, *staged):
            lose_shuffles(spark, begun)
            yield outputs

    def streamed(self: KafkaBatches, *_staged: Any) -> Iterator[Sequence[Output]]:
        for part in (0, 1):
            computed = lazy[-1].where(F.spark_partition_id() == part).toArrow()
            lose_shuffles(spark, begun)
            yield list(self._means.shape.records(computed))

    monkeypatch.setattr(BatchMode, "carry", remembered)
    for sent, start in ((put_aside, 0), (streamed, 60)):
        begun = lose_shuffles(spark, 2**31)
        monkeypatch.setattr(KafkaBatches, "_outputs", sent)
        fill(cluster, topic, 60, start)
        pipeline(cluster, topic, into_kafka.sink, exactly, spark, transform=dealt_by_chance).run()
        if sent is put_aside:
            assert into_kafka.held() == each_once(60)
    found = into_kafka.held()
    missing, again = each_once(120) - found, found - each_once(120)
    assert missing or again, "and no error"
    assert set(missing + again) <= set(each_once(120)) - set(each_once(60))
    assert into_kafka.recorded(topic) == {0: 40, 1: 40, 2: 40}, "and progress has passed them"
