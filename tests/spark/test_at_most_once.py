"""At most once into Postgres, driven without Spark: what is lost behind progress is told, and not taken for done."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import kept
from kept.errors import Refused
from kept.local import Cluster
from kept.spark import Limits, postgres_sink
from kept.spark.postgres_sink import PostgresDriver
from kept.spark.sinks import TaskSink
from kept.spark.tasks import Task
from kept.verify.proxy import PostgresProxy
from tests.spark.scenes import InPostgres, put_aside, values

NAME = "scarce"
KEYS = pytest.mark.parametrize("upsert", [False, True], ids=["rows apart", "upsert"])


@pytest.fixture
def scene(dsn: str) -> Iterator[InPostgres]:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE out (value text PRIMARY KEY CHECK (value <> 'v07'))")
    with ExitStack() as stack:
        yield InPostgres(NAME, stack, dsn)


def begun(scene: InPostgres, *, upsert: bool = False, dsn: str | None = None) -> PostgresDriver:
    sink = kept.PostgresSink(dsn or scene.dsn, "out", key="value", upsert=upsert)
    opened = sink.open(NAME, kept.AtMostOnce())
    opened._columns = ("value",)
    scene.begun(opened)
    return opened


def report(scene: InPostgres, sink: TaskSink, start: int, end: int) -> dict[str, Any]:
    """What a task of Spark tells its driver."""
    topic, partition = scene.part
    count = end - start
    columns = {
        "value": pa.array(values(start, end)),
        "_kept_topic": pa.array([topic] * count),
        "_kept_partition": pa.array([partition] * count, pa.int32()),
        "_kept_offset": pa.array(range(start, end), pa.int64()),
    }
    task = Task({}, sink, Limits(patience=30))
    (told,) = task.run([pa.RecordBatch.from_pydict(columns)], scene.assigned(start, end)).to_pylist()
    assert isinstance(told, dict)
    return told


@KEYS
def test_rows_that_fail_behind_progress_are_told_and_count_for_nothing(
    scene: InPostgres, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, upsert: bool
) -> None:
    """Somebody holds the table. Tried again they would be found below progress, as if they were there."""
    monkeypatch.setattr(postgres_sink, "LOCK_WITHIN", 0.5)
    tasks = begun(scene, upsert=upsert).for_tasks()
    with psycopg.connect(scene.dsn) as person:
        person.execute("LOCK TABLE out IN SHARE MODE")
        told = report(scene, tasks, 0, 5)
    assert (told["reached"], told["rows"], told["dropped"], told["stopped"]) == (5, 0, 0, None)
    assert "5 rows that progress has passed may not have been written" in caplog.text
    told = report(scene, tasks, 5, 7)
    assert (told["reached"], told["rows"], told["dropped"]) == (7, 2, 0)
    assert scene.held() == values(5, 7)


@KEYS
def test_a_row_that_is_refused_says_what_is_lost_with_it(scene: InPostgres, upsert: bool) -> None:
    told = report(scene, begun(scene, upsert=upsert).for_tasks(), 0, 10)
    error = pickle.loads(told["stopped"])
    assert isinstance(error, Refused)
    assert "progress has passed 10 rows" in str(error)
    assert "kept pipelines replay" in error.way_out
    assert scene.held() == []


def test_a_row_that_is_refused_in_batch_mode_says_it_too(scene: InPostgres) -> None:
    driver = begun(scene)
    staged = put_aside(driver, 0, 10, "9c8b7f4e-6a53-4d5e-9d8e-0a1b2c3d4e5f")
    with pytest.raises(Refused, match="progress has passed 10 rows"):
        driver.move(scene.batch(0, 0, 10), [scene.assigned(0, 10)], [staged])


def test_a_lost_answer_about_progress_is_told(
    cluster: Cluster, scene: InPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """The next try finds the rows below progress; only this one knows that nobody has written them."""
    with PostgresProxy(cluster.layout.listens("postgres")) as proxy:
        tasks = begun(scene, dsn=proxy.dsn(scene.dsn)).for_tasks()
        proxy.swallow_commit_reply()
        told = report(scene, tasks, 0, 5)
        assert (told["reached"], told["rows"], told["dropped"]) == (5, 0, 5)
        assert "progress may have passed 5 rows" in caplog.text
        assert scene.held() == []
        scene.stack.close()
