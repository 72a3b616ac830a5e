"""Dead letters in batch mode: what cannot be read is set apart before the shuffle, and buried with its batch."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from kept.errors import FixConfiguration, Refused
from kept.local import Cluster
from kept.spark import DeadLetterTable, Emit, KafkaSource
from kept.spark.transforms import ReadFirst, with_values
from tests.brokers.pipes import new_topic
from tests.spark.batches import Dying, Groups, PowerCut, power_cut
from tests.spark.letters import (
    FILE,
    INTO_TABLE,
    INTO_TOPIC,
    UNREADABLE,
    from_file,
    in_table,
    in_topic,
    pay,
    payments,
    promised,
    refuse_unwhole,
)
from tests.spark.things import pipeline, read_all

SHUFFLED = FILE.replace("SELECT ", "SELECT /*+ REPARTITION(2) */ ")
EARLY = len([number for number in UNREADABLE if number < 45])
"""The first batch of 45 records has these."""
GOOD = [number for number in range(1, 90) if number not in UNREADABLE]


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize("into", ["postgres", "kafka"])
def test_records_that_cannot_be_read_are_buried_with_their_batch(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, into: str
) -> None:
    out, dead = new_topic(cluster.bootstrap), new_topic(cluster.bootstrap)
    pay(cluster, topic, payments(UNREADABLE))
    sink = INTO_TABLE if into == "postgres" else INTO_TOPIC.replace("OUT", out).replace("DEAD", dead)
    text = (SHUFFLED + sink).replace("TOPIC", topic)
    ran = from_file(text).pipeline(spark).run()
    assert (ran.rows, ran.buried) == (len(GOOD), len(UNREADABLE))
    if into == "postgres":
        with psycopg.connect(dsn) as connection:
            found = [number for (number,) in connection.execute("SELECT n FROM out").fetchall()]
        refuse_unwhole(in_table(dsn, f"to-{topic}"), topic, UNREADABLE)
    else:
        found = [json.loads(value)["n"] for value in read_all(cluster.bootstrap, out)]
        refuse_unwhole(in_topic(cluster, dead), topic, UNREADABLE)
    assert sorted(found) == GOOD
    assert from_file(text).pipeline(spark).run().buried == 0, "and not once more"


def counted(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("value.n % 5 as k").groupBy("k").count()


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_driver_that_dies_around_the_move_leaves_every_letter_once(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, tmp_path: Path, at: str
) -> None:
    pay(cluster, topic, payments(UNREADABLE))
    read = with_values("id STRING, n INT", lambda what: FixConfiguration(what, way_out="mend it"), buries=True)
    more = {
        "source": KafkaSource(cluster.bootstrap, topic, max_per_batch=45),
        "transform": ReadFirst(read, counted),
        "checkpoint": str(tmp_path / "checkpoint"),
        "dead_letters": DeadLetterTable(),
        "emit": Emit.CHANGES,
    }
    table, guarantee = Groups(dsn), promised("exactly-once", topic)
    with pytest.raises(PowerCut):
        pipeline(cluster, topic, Dying(table.sink, 1, **{at: power_cut}), guarantee, spark, **more).run()
    assert len(in_table(dsn, f"to-{topic}")) == (len(UNREADABLE) if at == "after" else EARLY)
    pipeline(cluster, topic, table.sink, guarantee, spark, **more).run()
    assert table.held() == Counter(number % 5 for number in range(90) if number not in UNREADABLE)
    refuse_unwhole(in_table(dsn, f"to-{topic}"), topic, UNREADABLE)


@pytest.mark.usefixtures("said")
def test_a_row_that_the_table_refuses_has_no_record_there_and_stops_the_pipeline(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE out (id text, n int CHECK (n <> 7))")
    pay(cluster, topic, payments(UNREADABLE))
    with pytest.raises(Refused, match="out_n_check"):
        from_file((SHUFFLED + INTO_TABLE).replace("TOPIC", topic)).pipeline(spark).run()
    assert in_table(dsn, f"to-{topic}") == [], "letters are moved with their batch, or not at all"
