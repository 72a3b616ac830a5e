"""A sink that knows nothing of a pipeline, under a checkpoint that has read on: no birth makes what is unread done."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

import kept
from kept.admin.topics import Topics
from kept.consumer import Start
from kept.errors import ProgressLost
from kept.guarantees import Guarantee
from kept.local import Cluster
from kept.pipelines.checkpoints import read
from kept.spark import Every, KafkaSource
from tests.conftest import Eventually
from tests.spark.things import OutPostgres, beside, fill, out_of, pipeline


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def lose_births(dsn: str) -> None:
    """As a backup from before the pipeline began leaves it."""
    with psycopg.connect(dsn) as connection:
        connection.execute("TRUNCATE kept_pipelines, kept_progress, kept_sinks")


def born(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [topic for (topic,) in connection.execute("SELECT topic FROM kept_pipelines").fetchall()]


def between(start: int, end: int) -> Counter[str]:
    return Counter(f"v{number}" for number in range(start, end))


@pytest.mark.parametrize("into", ["postgres", "kafka"])
def test_a_birth_at_the_end_stops_under_a_checkpoint_that_has_read_on_and_without_it_begins(
    request: pytest.FixtureRequest, cluster: Cluster, topic: str, spark: SparkSession, checkpoint: Path, into: str
) -> None:
    """Rule 2. To a Kafka it is another name: births there are not deleted so easily."""
    out, name = out_of(request, into), f"to-{topic}"
    source = KafkaSource(cluster.bootstrap, topic, start=Start.END)

    def run() -> int:
        more = {"source": source, "checkpoint": str(checkpoint)}
        return pipeline(cluster, topic, out.sink, kept.ExactlyOnce(name), spark, **more).run().rows

    fill(cluster, topic, 30)
    assert run() == 0
    fill(cluster, topic, 30, 30)
    assert run() == 30, "a restart in good order"
    fill(cluster, topic, 30, 60)
    if into == "postgres":
        lose_births(request.getfixturevalue("dsn"))
    else:
        name = f"again-{topic}"
    with pytest.raises(ProgressLost, match=f"has begun to read {topic}, and the sink knows of no progress") as stopped:
        run()
    assert "restore the progress" in stopped.value.way_out
    assert "move the checkpoint away" in stopped.value.way_out
    checkpoint.rename(checkpoint.with_name("away"))
    assert run() == 0
    fill(cluster, topic, 30, 90)
    assert run() == 30
    assert out.held() == between(30, 60) + between(90, 120)


def test_a_topic_that_is_added_is_new_to_sink_and_checkpoint(
    cluster: Cluster, topic: str, dsn: str, exactly: Guarantee, spark: SparkSession, checkpoint: Path
) -> None:
    """It begins at the end; it is the other one that has lost its birth, before the first record of either."""
    other = f"{topic}-other"
    Topics(cluster.bootstrap).create(other, 3, kept.ExactlyOnce("tests"))

    def run(*topics: str) -> None:
        source = KafkaSource(cluster.bootstrap, topics, start=Start.END)
        more = {"source": source, "checkpoint": str(checkpoint)}
        pipeline(cluster, topic, OutPostgres(dsn).sink, exactly, spark, **more).run()

    run(topic)
    fill(cluster, other, 30)
    run(topic, other)
    assert sorted(born(dsn)) == [topic, other]
    assert OutPostgres(dsn).recorded(other) == {0: 10, 1: 10, 2: 10}
    fill(cluster, topic, 30)
    lose_births(dsn)
    with pytest.raises(ProgressLost, match=f"has begun to read {topic}"):
        run(topic, other)
    assert born(dsn) == [], "nothing was left behind"


def test_a_topic_that_was_empty_when_a_pattern_found_it_does_not_stop_a_restart(
    cluster: Cluster,
    topic: str,
    dsn: str,
    exactly: Guarantee,
    spark: SparkSession,
    checkpoint: Path,
    eventually: Eventually,
) -> None:
    """It is born with its first record: until then only the checkpoint knows of it."""
    out, later = OutPostgres(dsn), f"{topic}-later"
    source = KafkaSource(cluster.bootstrap, pattern=f"{topic}.*", start=Start.END)
    more = {"source": source, "checkpoint": str(checkpoint)}
    pipeline(cluster, topic, out.sink, exactly, spark, **more).run()

    def is_noted() -> bool:
        fill(cluster, topic, 3)
        found = read(str(checkpoint))
        return found is not None and (later, 0) in found.restart

    with beside(pipeline(cluster, topic, out.sink, exactly, spark, trigger=Every(), **more)) as ended:
        fill(cluster, topic, 3)
        eventually(lambda: out.held().total() > 0, "it is at work: what it finds at its start is born there", 60)
        Topics(cluster.bootstrap).create(later, 3, kept.ExactlyOnce("tests"))
        eventually(is_noted, "a batch has ended that knows of the topic")
    assert ended == []
    assert born(dsn) == [topic]
    fill(cluster, later, 30)
    pipeline(cluster, topic, out.sink, exactly, spark, **more).run()
    assert out.recorded(later) == {0: 10, 1: 10, 2: 10}
    assert set(between(0, 30)) <= set(out.held())
