"""A driver in a process of its own: told to end, and killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

import kept
from kept.admin.topics import Topics
from kept.local import Cluster
from kept.spark import Emit
from kept.spark.sinks import Sink
from tests.conftest import Eventually
from tests.spark.batches import Groups, counted, counted_records, groups
from tests.spark.drivers import Order, driver, under_spark_submit
from tests.spark.things import OutKafka, OutPostgres, Transform, each_once, fill, pipeline


def test_told_to_end_it_finishes_its_batch_and_killed_it_is_succeeded(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, tmp_path: Path, eventually: Eventually
) -> None:
    name, said = f"out-of-{topic}", tmp_path / "said"
    Topics(cluster.bootstrap).create(name, 2, kept.ExactlyOnce("tests"))
    table, out = OutPostgres(dsn), OutKafka(cluster.bootstrap, name, f"to-{topic}")
    fill(cluster, topic, 6000)
    with driver(said, cluster.bootstrap, topic, dsn, name) as running:
        eventually(lambda: table.held().total(), "it has written to Postgres", within=90)
        running.send_signal(signal.SIGTERM)
        eventually(lambda: "ended well after" in said.read_text(), "it has ended its first pipeline", within=60)
        assert f"{topic} to table out of Postgres, exactly-once, partition mode" in said.read_text()
        written = table.held()
        assert set(written.values()) == {1}
        assert sum(table.recorded(topic).values()) == written.total(), "the batch in hand was finished"
        eventually(lambda: out.held().total() >= 300, "it has written to Kafka", within=60)
        os.kill(running.pid, signal.SIGKILL)
        exactly = kept.ExactlyOnce(f"to-{topic}")
        for each in (out, table):
            pipeline(cluster, topic, each.sink, exactly, spark).run()
            assert each.held() == each_once(6000)


def test_a_driver_killed_around_the_move_of_a_batch_leaves_it_once(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Into Postgres it is killed between staging and move, into Kafka between the move and Spark's own record."""
    name, exactly = f"out-of-{topic}", kept.ExactlyOnce(f"to-{topic}")
    Topics(cluster.bootstrap).create(name, 2, kept.ExactlyOnce("tests"))
    table, out = Groups(dsn), OutKafka(cluster.bootstrap, name, f"to-{topic}")
    fill(cluster, topic, 90)
    with driver(tmp_path / "said", cluster.bootstrap, topic, dsn, name, str(tmp_path), program="batches") as running:
        assert running.wait(120) == -signal.SIGKILL
    assert table.held() == groups(45)
    assert len(table.staging()) == 1, "what it had put aside is still there"
    assert out.held() == Counter({"9": 5, "18": 5})
    fill(cluster, topic, 45, 90)
    source = kept.KafkaSource(cluster.bootstrap, topic, max_per_batch=45)
    runs: list[tuple[Sink, Transform, str]] = [(table.sink, counted, "a"), (out.sink, counted_records, "b")]
    for sink, transform, place in runs:
        more = {"transform": transform, "checkpoint": str(tmp_path / place), "source": source, "emit": Emit.CHANGES}
        pipeline(cluster, topic, sink, exactly, spark, **more).run()
    assert table.held() == groups(135)
    assert table.staging() == []
    assert out.held() == Counter({"9": 5, "18": 5, "27": 5})


def test_under_spark_submit_the_master_is_the_one_that_was_given(cluster: Cluster, topic: str, dsn: str) -> None:
    """On another one the pipeline would run on the driver's machine alone, and nobody would notice."""
    fill(cluster, topic, 90)
    order = Order(cluster.bootstrap, topic, f"to-{topic}", dsn)
    command, environment = under_spark_submit(order)
    submitted = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert "master local[1]\n" in submitted.stdout, submitted.stderr[-3000:]
    assert "rows 90\n" in submitted.stdout, submitted.stderr[-3000:]
    assert order.out.held() == each_once(90)
