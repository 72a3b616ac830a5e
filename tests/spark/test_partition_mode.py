"""Each sink under each guarantee: every row once, wherever a task, a checkpoint or a driver is lost."""

from __future__ import annotations

import gc
import shutil
import threading
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

import kept
from kept.guarantees import Guarantee, parse
from kept.local import Cluster
from kept.spark import Every, Limits
from kept.spark.driver import Driver
from tests.conftest import Eventually
from tests.spark.things import Faulty, Out, OutPostgres, beside, each_once, fill, out_of, pipeline

WORDS = ["at-most-once", "at-least-once", "exactly-once"]


@pytest.fixture(params=["postgres", "kafka"])
def out(request: pytest.FixtureRequest) -> Out:
    """Each of the sinks: the same must hold for all."""
    return out_of(request, request.param)


def promised(word: str, topic: str) -> Guarantee:
    return parse(word, f"to-{topic}" if word == "exactly-once" else None)


@pytest.mark.parametrize("word", WORDS)
def test_every_row_arrives_and_progress_says_so(
    cluster: Cluster, topic: str, out: Out, spark: SparkSession, eventually: Eventually, word: str
) -> None:
    fill(cluster, topic, 300, transactions=True)
    sink, guarantee = out.sink, promised(word, topic)
    ran = pipeline(cluster, topic, sink, guarantee, spark).run()
    assert (ran.rows, ran.dropped) == (300, 0)
    if word == "at-most-once":  # a leader's word is enough for it; readers see a record when the followers have it
        eventually(lambda: out.held().total() == 300, "readers see what the leaders have acknowledged")
    assert out.held() == each_once(300)
    # Behind a transaction's records stands its marker: the driver has moved progress over it.
    assert out.recorded(topic) == {0: 101, 1: 101, 2: 101}
    if word != "exactly-once":
        return  # to go on from progress is the same for all
    fill(cluster, topic, 30, 300)
    assert pipeline(cluster, topic, sink, guarantee, spark).run().rows == 30
    assert out.held() == each_once(330)
    assert out.recorded(topic) == {0: 111, 1: 111, 2: 111}


def test_a_pipeline_that_has_ended_leaves_no_clients_behind(
    cluster: Cluster, topic: str, out: Out, exactly: Guarantee, spark: SparkSession
) -> None:
    """Spark keeps the function of every query for as long as its session lives, and what that holds."""

    def drivers() -> int:
        gc.collect()
        return sum(type(each) is Driver for each in gc.get_objects())

    before = drivers()
    fill(cluster, topic, 30)
    pipeline(cluster, topic, out.sink, exactly, spark).run()
    assert drivers() <= before


@pytest.mark.parametrize("at", ["before", "between", "after"])
def test_a_task_that_dies_around_its_commit_leaves_every_row_once(
    cluster: Cluster, topic: str, out: Out, exactly: Guarantee, spark: SparkSession, tmp_path: Path, at: str
) -> None:
    fill(cluster, topic, 300)
    step = out.between["exactly-once"] if at == "between" else at
    sink = Faulty(out.sink, step, tmp_path / "died")
    ran = pipeline(cluster, topic, sink, exactly, spark, limits=Limits(rows=40)).run()
    assert (tmp_path / "died").exists()
    assert out.held() == each_once(300)
    assert out.recorded(topic) == {0: 100, 1: 100, 2: 100}
    assert (ran.dropped > 0) == (at == "after"), "rows that were committed are read again, and dropped"


def test_between_its_two_moves_at_most_once_loses_a_chunk_and_repeats_none(
    cluster: Cluster, topic: str, out: Out, spark: SparkSession, tmp_path: Path, eventually: Eventually
) -> None:
    fill(cluster, topic, 300)
    sink = Faulty(out.sink, out.between["at-most-once"], tmp_path / "died")
    pipeline(cluster, topic, sink, kept.AtMostOnce(), spark).run()
    eventually(lambda: out.held().total() == 200, "the chunk of one partition is missing, and nothing else")
    assert set(out.held().values()) == {1}
    assert out.recorded(topic) == {0: 100, 1: 100, 2: 100}


def test_between_its_two_moves_at_least_once_repeats_a_chunk_and_loses_none(
    cluster: Cluster, topic: str, out: Out, spark: SparkSession, tmp_path: Path
) -> None:
    fill(cluster, topic, 300)
    sink = Faulty(out.sink, out.between["at-least-once"], tmp_path / "died")
    pipeline(cluster, topic, sink, kept.AtLeastOnce(), spark).run()
    assert each_once(300) <= out.held()
    assert Counter(out.held().values()) == {1: 200, 2: 100}
    assert out.recorded(topic) == {0: 100, 1: 100, 2: 100}


def test_a_batch_that_spark_did_not_write_down_is_repeated_without_effect(
    cluster: Cluster, topic: str, out: Out, exactly: Guarantee, spark: SparkSession, tmp_path: Path
) -> None:
    """What a driver leaves that died after the sink wrote: offsets/N without commits/N."""
    fill(cluster, topic, 300)
    sink, checkpoint = out.sink, tmp_path / "checkpoint"
    pipeline(cluster, topic, sink, exactly, spark, checkpoint=str(checkpoint)).run()
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink()
    fill(cluster, topic, 30, 300)
    ran = pipeline(cluster, topic, sink, exactly, spark, checkpoint=str(checkpoint)).run()
    assert (ran.rows, ran.dropped) == (30, 300)
    assert out.held() == each_once(330)


def test_a_checkpoint_from_a_backup_uses_its_numbers_again_and_nothing_is_lost(
    cluster: Cluster, topic: str, out: Out, exactly: Guarantee, spark: SparkSession, tmp_path: Path
) -> None:
    """Rule 4: batches 1 and 2 come again with other offsets; a sink that skips by number would lose the new rows."""
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    sink = out.sink

    def run() -> None:
        pipeline(cluster, topic, sink, exactly, spark, checkpoint=str(checkpoint)).run()

    fill(cluster, topic, 90)
    run()
    shutil.copytree(checkpoint, backup)
    fill(cluster, topic, 90, 90)
    run()
    assert (checkpoint / "commits" / "1").exists()
    shutil.rmtree(checkpoint)
    backup.rename(checkpoint)
    fill(cluster, topic, 90, 180)
    run()
    assert out.held() == each_once(270)


def test_a_checkpoint_that_is_ahead_of_the_sink_stops_and_without_it_nothing_is_skipped(
    cluster: Cluster, topic: str, out: Out, exactly: Guarantee, spark: SparkSession, tmp_path: Path
) -> None:
    """Rule 2: a pipeline that was born later is given the checkpoint of another, which has read on."""
    checkpoint = str(tmp_path / "checkpoint")
    fill(cluster, topic, 90)
    other = kept.ExactlyOnce(f"before-{topic}")
    pipeline(cluster, topic, out.sink, other, spark, checkpoint=checkpoint).run()
    fill(cluster, topic, 30, 90)
    with pytest.raises(kept.errors.Gap, match=r"the input starts at 30, progress is .*@0"):
        pipeline(cluster, topic, out.sink, exactly, spark, checkpoint=checkpoint).run()
    assert out.held() == each_once(90)
    pipeline(cluster, topic, out.sink, exactly, spark).run()
    assert out.held() == each_once(120) + each_once(90)


def test_a_database_from_a_backup_stops_where_a_checkpoint_would_skip_and_goes_on_without_one(
    cluster: Cluster, topic: str, dsn: str, exactly: Guarantee, spark: SparkSession, tmp_path: Path
) -> None:
    """Rule 2: the sink went back in time, and the checkpoint did not."""
    out, checkpoint = OutPostgres(dsn), str(tmp_path / "checkpoint")
    fill(cluster, topic, 90)
    pipeline(cluster, topic, out.sink, exactly, spark, checkpoint=checkpoint).run()
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE rows_then AS SELECT * FROM out")
        connection.execute("CREATE TABLE progress_then AS SELECT * FROM kept_progress")
    fill(cluster, topic, 90, 90)
    pipeline(cluster, topic, out.sink, exactly, spark, checkpoint=checkpoint).run()
    with psycopg.connect(dsn) as connection:
        connection.execute("TRUNCATE out, kept_progress")
        connection.execute("INSERT INTO out SELECT * FROM rows_then")
        connection.execute("INSERT INTO kept_progress SELECT * FROM progress_then")
    fill(cluster, topic, 30, 180)
    with pytest.raises(kept.errors.Gap, match=r"the input starts at 60, progress is .*@30"):
        pipeline(cluster, topic, out.sink, exactly, spark, checkpoint=checkpoint).run()
    assert out.held() == each_once(90)
    pipeline(cluster, topic, out.sink, exactly, spark).run()
    assert out.held() == each_once(210)


def test_of_two_drivers_the_older_stops_for_good(
    cluster: Cluster, topic: str, out: Out, exactly: Guarantee, spark: SparkSession, eventually: Eventually
) -> None:
    fill(cluster, topic, 90)
    sink = out.sink
    older = pipeline(cluster, topic, sink, exactly, spark, trigger=Every())
    with beside(older) as ended:
        eventually(lambda: out.held().total() == 90, "the older one has written")
        pipeline(cluster, topic, sink, exactly, spark).run()
        fill(cluster, topic, 90, 90)
        eventually(lambda: ended, "the older one has met its successor")
        assert isinstance(ended[0], kept.Fenced)
        assert out.held() == each_once(90)
        pipeline(cluster, topic, sink, exactly, spark).run()
        assert out.held() == each_once(180)


def test_stop_finishes_the_batch_in_hand(
    cluster: Cluster, topic: str, out: Out, exactly: Guarantee, spark: SparkSession, eventually: Eventually
) -> None:
    fill(cluster, topic, 90)
    running = pipeline(cluster, topic, out.sink, exactly, spark, trigger=Every())
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        eventually(lambda: out.held().total(), "the first rows are there", within=120)
    finally:
        running.stop()
        thread.join(30)
    assert not thread.is_alive()
    assert out.held() == each_once(90)
    assert out.recorded(topic) == {0: 30, 1: 30, 2: 30}


def test_a_batch_that_fails_after_the_end_was_asked_for_is_told(
    cluster: Cluster, topic: str, request: pytest.FixtureRequest, exactly: Guarantee, spark: SparkSession
) -> None:
    """Spark tells nobody: it seemed to have ended well."""

    def asks_and_fails(_batch: object) -> None:
        running.stop()
        raise kept.TryAgain("the batch in hand has failed", way_out="see what is the matter")

    fill(cluster, topic, 30)
    running = pipeline(cluster, topic, out_of(request, "postgres").sink, exactly, spark, on_batch=asks_and_fails)
    with pytest.raises(kept.TryAgain, match="the batch in hand has failed"):
        running.run()
