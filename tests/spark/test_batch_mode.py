"""Plans with state, and plans that deal rows anew: every batch whole and once, wherever its driver dies."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

import kept
from kept.errors import FixConfiguration, ProgressMoved
from kept.guarantees import Guarantee
from kept.local import Cluster
from kept.spark import Emit, Every, KafkaSource
from kept.spark.staging import Staged, StagingLost
from tests.conftest import Eventually
from tests.spark.batches import (
    Dying,
    Groups,
    PowerCut,
    both_sides,
    counted,
    counted_records,
    groups,
    latest,
    lose_last_batch,
    power_cut,
    spread,
    spread_records,
    window_records,
    windows,
)
from tests.spark.test_partition_mode import WORDS, promised
from tests.spark.things import Faulty, Out, OutKafka, OutPostgres, beside, each_once, fill, out_of, pipeline, records

CHANGES = {"emit": Emit.CHANGES}


@pytest.fixture
def table(dsn: str) -> Groups:
    return Groups(dsn)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.mark.parametrize("word", WORDS)
def test_an_aggregation_is_upserted(
    cluster: Cluster,
    topic: str,
    table: Groups,
    spark: SparkSession,
    checkpoint: Path,
    word: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    guarantee = promised(word, topic)
    more = {"transform": counted, "checkpoint": str(checkpoint)}
    fill(cluster, topic, 90)
    pipeline(cluster, topic, table.sink, guarantee, spark, **more).run()
    assert table.held() == groups(90)
    assert OutPostgres(table.dsn).recorded(topic) == {0: 30, 1: 30, 2: 30}
    assert table.staging() == []
    said = capsys.readouterr().out
    assert "batch mode (the whole micro-batch at once, because of Aggregate; state in the checkpoint)" in said


def test_changes_into_a_table_that_keeps_the_first_row_of_a_key_are_refused(
    cluster: Cluster, topic: str, table: Groups, exactly: Guarantee, spark: SparkSession, checkpoint: Path
) -> None:
    """Each group would stay at its count of the first batch. Who follows the ways out comes to the true counts."""
    source = KafkaSource(cluster.bootstrap, topic, max_per_batch=45)
    more = {"transform": counted, "checkpoint": str(checkpoint), "source": source}
    first_stays = kept.PostgresSink(table.dsn, "groups", key="k")
    fill(cluster, topic, 90)
    with pytest.raises(FixConfiguration, match="watermark") as final:
        pipeline(cluster, topic, first_stays, exactly, spark, **more).run()
    assert 'emit = "changes" (into a table with mode = "upsert", or no key)' in final.value.way_out
    with pytest.raises(FixConfiguration, match="keeps the first row of each k") as refused:
        pipeline(cluster, topic, first_stays, exactly, spark, **more, **CHANGES).run()
    assert "upsert=True" in refused.value.way_out
    pipeline(cluster, topic, table.sink, exactly, spark, **more, **CHANGES).run()
    assert table.held() == groups(90)


@pytest.mark.parametrize("word", WORDS)
def test_an_aggregation_into_kafka_lets_out_every_change_once(
    cluster: Cluster, topic: str, into_kafka: OutKafka, spark: SparkSession, checkpoint: Path, word: str
) -> None:
    fill(cluster, topic, 60)
    more = {"transform": counted_records, "checkpoint": str(checkpoint), **CHANGES}
    pipeline(cluster, topic, into_kafka.sink, promised(word, topic), spark, **more).run()
    assert into_kafka.held() == Counter({"12": 5})
    assert into_kafka.recorded(topic) == {0: 20, 1: 20, 2: 20}


def test_windows_come_out_once_when_they_have_closed(
    cluster: Cluster,
    topic: str,
    table: Groups,
    into_kafka: OutKafka,
    exactly: Guarantee,
    spark: SparkSession,
    checkpoint: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The batch that lets a window out has no rows of the source: it is known by its number. What is late is told."""
    fill(cluster, topic, 35)
    runs = ((table.sink, windows, "a"), (into_kafka.sink, window_records, "b"))

    def run_both() -> None:
        for sink, transform, name in runs:
            place = str(checkpoint / name)
            more = {"transform": transform, "checkpoint": place, "emit": Emit.FINAL}
            pipeline(cluster, topic, sink, exactly, spark, **more).run()

    run_both()
    assert table.held() == {0: 10, 10: 10, 20: 10}
    assert sorted(latest(cluster.bootstrap, into_kafka.topic)) == ["10", "10", "10"]
    assert "later than the watermark" not in caplog.text
    fill(cluster, topic, 17, 35)
    fill(cluster, topic, 1)
    run_both()
    assert caplog.text.count("1 rows were later than the watermark, and left out") == 2
    assert table.held() == {0: 10, 10: 10, 20: 10, 30: 10, 40: 10}
    assert sorted(latest(cluster.bootstrap, into_kafka.topic)) == ["10"] * 5


@pytest.mark.parametrize(("into", "at"), [("postgres", "after"), ("kafka", "before")])
def test_a_batch_that_is_repeated_comes_to_the_same(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    topic: str,
    exactly: Guarantee,
    spark: SparkSession,
    checkpoint: Path,
    into: str,
    at: str,
) -> None:
    """The driver ends between staging and move, or after the move, before Spark wrote the batch down.

    The other two of the four are in test_drivers, with a driver that is killed.
    """
    fill(cluster, topic, 90)
    source = KafkaSource(cluster.bootstrap, topic, max_per_batch=45)
    sink = request.getfixturevalue("table" if into == "postgres" else "into_kafka").sink
    transform = counted if into == "postgres" else counted_records
    more = {"transform": transform, "checkpoint": str(checkpoint), "source": source, **CHANGES}
    with pytest.raises(PowerCut):
        pipeline(cluster, topic, Dying(sink, 1, **{at: power_cut}), exactly, spark, **more).run()
    fill(cluster, topic, 45, 90)
    pipeline(cluster, topic, sink, exactly, spark, **more).run()
    if into == "postgres":
        assert request.getfixturevalue("table").held() == groups(135)
        assert request.getfixturevalue("table").staging() == []
    else:
        assert request.getfixturevalue("into_kafka").held() == Counter({"9": 5, "18": 5, "27": 5})


def test_a_recorded_batch_is_computed_for_its_state_and_not_written(
    cluster: Cluster, topic: str, table: Groups, exactly: Guarantee, spark: SparkSession, checkpoint: Path
) -> None:
    more = {"transform": counted, "checkpoint": str(checkpoint)}
    fill(cluster, topic, 60)
    pipeline(cluster, topic, table.sink, exactly, spark, **more).run()
    lose_last_batch(checkpoint)
    shutil.rmtree(checkpoint / "state")  # what the second computing must bring back
    with psycopg.connect(table.dsn) as connection:
        connection.execute("UPDATE groups SET count = -1")
    assert pipeline(cluster, topic, table.sink, exactly, spark, **more).run().rows == 0
    assert set(table.held().values()) == {-1}, "what is recorded is not written again"
    fill(cluster, topic, 30, 60)
    pipeline(cluster, topic, table.sink, exactly, spark, **more).run()
    assert table.held() == groups(90), "the state had gone along"


@pytest.mark.parametrize("into", ["postgres", "kafka"])
def test_a_checkpoint_that_is_gone_or_older_stops_a_plan_with_state(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    topic: str,
    exactly: Guarantee,
    spark: SparkSession,
    checkpoint: Path,
    into: str,
) -> None:
    sink = request.getfixturevalue("table" if into == "postgres" else "into_kafka").sink
    transform = counted if into == "postgres" else counted_records
    more = {"transform": transform, "checkpoint": str(checkpoint), **CHANGES}

    def run() -> None:
        pipeline(cluster, topic, sink, exactly, spark, **more).run()

    fill(cluster, topic, 30)
    run()
    backup = checkpoint.with_name("backup")
    shutil.copytree(checkpoint, backup)
    fill(cluster, topic, 30, 30)
    run()
    shutil.rmtree(checkpoint)
    with pytest.raises(ProgressMoved, match="is empty, or was deleted"):
        run()
    backup.rename(checkpoint)
    fill(cluster, topic, 30, 60)
    with pytest.raises(ProgressMoved, match="does not follow what is recorded"):
        run()


@pytest.mark.parametrize("into", ["postgres", "kafka"])
def test_rows_that_are_multiplied_and_dealt_anew_need_no_checkpoint(
    request: pytest.FixtureRequest, cluster: Cluster, topic: str, exactly: Guarantee, spark: SparkSession, into: str
) -> None:
    fill(cluster, topic, 60, transactions=True)
    out = out_of(request, into)
    more = {"transform": spread if into == "postgres" else spread_records}
    for count in (60, 90):
        ran = pipeline(cluster, topic, out.sink, exactly, spark, **more).run()
        assert out.held() == both_sides(count)
        if count == 60:
            assert ran.rows == 120
            fill(cluster, topic, 30, 60)
    assert out.recorded(topic) == {0: 31, 1: 31, 2: 31}


def test_between_its_two_moves_at_least_once_repeats_a_batch_and_at_most_once_loses_one(
    cluster: Cluster, topic: str, dsn: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kept.spark.postgres_batches import PostgresBatches

    fill(cluster, topic, 30)
    for word, step, expected in (("at-least-once", "_record", 2), ("at-most-once", "_take_apart", 0)):
        out = OutPostgres(dsn)
        with monkeypatch.context() as patched:
            patched.setattr(PostgresBatches, step, lambda *_: power_cut([]))
            with pytest.raises(PowerCut):
                pipeline(
                    cluster, topic, out.sink, promised(word, topic), spark, transform=spread, name=f"{word}-{topic}"
                ).run()
        pipeline(cluster, topic, out.sink, promised(word, topic), spark, transform=spread, name=f"{word}-{topic}").run()
        assert set(Counter(out.held()).values()) == ({expected} if expected else set())
        with psycopg.connect(dsn) as connection:
            connection.execute("TRUNCATE out")


@pytest.mark.parametrize("into", ["postgres", "kafka"])
def test_staged_rows_that_are_gone_are_noticed_and_nothing_is_moved(
    request: pytest.FixtureRequest, cluster: Cluster, topic: str, exactly: Guarantee, spark: SparkSession, into: str
) -> None:
    """Rule 9: a set that was swept away, or cut, is not taken for an empty one."""
    fill(cluster, topic, 30)
    if into == "postgres":
        dsn = request.getfixturevalue("dsn")
        out: Out = OutPostgres(dsn)

        def sweep(staged: Sequence[Staged]) -> None:
            assert sum(each.rows for each in staged) == 60
            with psycopg.connect(dsn) as connection:
                (name,) = Groups(dsn).staging()
                connection.execute(f"DELETE FROM {name} WHERE v = 'av7'".encode())
    else:
        out = request.getfixturevalue("into_kafka")

        def sweep(staged: Sequence[Staged]) -> None:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            place = staged[0].place
            where = TopicPartition(f"kept.staging.to-{topic}", place.partition, place.last + 1)
            (deleted,) = admin.delete_records([where]).values()
            deleted.result(30)

    transform = spread if into == "postgres" else spread_records
    with pytest.raises(StagingLost):
        pipeline(cluster, topic, Dying(out.sink, 0, before=sweep), exactly, spark, transform=transform).run()
    assert out.held() == Counter()
    pipeline(cluster, topic, out.sink, exactly, spark, transform=transform).run()
    assert out.held() == both_sides(30)


@pytest.mark.parametrize("into", ["postgres", "kafka"])
def test_a_task_that_dies_when_it_has_put_its_rows_aside_leaves_every_row_once(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    topic: str,
    exactly: Guarantee,
    spark: SparkSession,
    tmp_path: Path,
    into: str,
) -> None:
    """Rule 9: what the first attempt has left has a name that nobody asks for."""
    fill(cluster, topic, 30)
    out = out_of(request, into)
    transform = spread if into == "postgres" else spread_records
    marker = tmp_path / "died"
    pipeline(cluster, topic, Faulty(out.sink, "after", marker), exactly, spark, transform=transform).run()
    assert marker.exists()
    assert out.held() == both_sides(30)


@pytest.mark.parametrize("into", ["postgres", "kafka"])
def test_a_driver_in_the_other_mode_ends_the_one_before(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    topic: str,
    exactly: Guarantee,
    spark: SparkSession,
    eventually: Eventually,
    into: str,
) -> None:
    """Rule 7: the ids of both modes guard the same progress."""
    fill(cluster, topic, 30)
    out = out_of(request, into)
    transform = spread if into == "postgres" else spread_records
    older = pipeline(cluster, topic, out.sink, exactly, spark, transform=transform, trigger=Every())
    with beside(older) as ended:
        eventually(lambda: out.held().total() == 60, "the older one has written")
        pipeline(cluster, topic, out.sink, exactly, spark).run()  # in partition mode
        fill(cluster, topic, 30, 30)
        eventually(lambda: ended, "the older one has met its successor")
        assert isinstance(ended[0], kept.Fenced)
        assert out.held() == both_sides(30)
        pipeline(cluster, topic, out.sink, exactly, spark).run()
        assert out.held() == both_sides(30) + (each_once(60) - each_once(30))


def of_nothing(frame: DataFrame) -> DataFrame:
    """A join with an empty table: Spark leaves the whole reading out of the plan that runs."""
    nobody = frame.sparkSession.createDataFrame([], "key BINARY")
    return records(frame).join(nobody, "key").select("key", "value")


@pytest.mark.parametrize("into", ["postgres", "kafka"])
def test_a_batch_of_which_no_row_can_come_out_is_done_all_the_same(
    request: pytest.FixtureRequest, cluster: Cluster, topic: str, exactly: Guarantee, spark: SparkSession, into: str
) -> None:
    out = out_of(request, into)
    fill(cluster, topic, 30)
    source = KafkaSource(cluster.bootstrap, topic, max_per_batch=10)
    ran = pipeline(cluster, topic, out.sink, exactly, spark, source=source, transform=of_nothing).run()
    assert (ran.batches >= 3, ran.rows) == (True, 0)
    assert out.recorded(topic) == {0: 10, 1: 10, 2: 10}
