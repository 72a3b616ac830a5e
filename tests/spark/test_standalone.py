"""Pipelines on a real standalone cluster: a worker's machine is lost in the midst of a batch, and a task runs twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import kept
from kept.admin.topics import Topics
from kept.local import Cluster
from tests.spark.drivers import SMALL_BATCHES, Order
from tests.spark.faults import Means, World, speculation, worker_killed
from tests.spark.standalone import living
from tests.spark.things import each_once, fill

COUNT = 1500


@pytest.fixture(scope="module")
def means(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Means]:
    folder = tmp_path_factory.mktemp("means")
    with Means(cluster, lambda: request.getfixturevalue("spark"), folder, SMALL_BATCHES) as shared:
        yield shared
    assert living(folder) == [], "nothing is left running"


@pytest.fixture
def worlds(means: Means, topic: str, dsn: str, tmp_path: Path) -> list[World]:
    """From one topic into each of the sinks, exactly once."""
    fill(means.cluster, topic, COUNT)
    bootstrap, out, name = means.cluster.bootstrap, f"out-of-{topic}", f"to-{topic}"
    Topics(bootstrap).create(out, 2, kept.ExactlyOnce("tests"))
    orders = [
        Order(bootstrap, topic, name, dsn, chunk=200),
        Order(bootstrap, topic, name, out_topic=out, chunk=200),
    ]
    found = [World(means, order, random.Random(0), tmp_path / order.kind, COUNT) for order in orders]
    for world in found:
        world.folder.mkdir()
    return found


def refuse_harm(world: World) -> None:
    assert world.stopped == []
    assert world.order.out.held() == each_once(COUNT)
    assert sum(world.order.out.recorded(world.order.topic).values()) == COUNT


def test_a_worker_killed_in_the_midst_of_a_batch_leaves_every_row_once(worlds: list[World]) -> None:
    """Into Postgres it dies after a commit that Spark never hears of, into Kafka in an open transaction."""
    for world in worlds:
        at = "after" if world.order.dsn else world.order.out.between["exactly-once"]
        assert worker_killed(world, at)
        refuse_harm(world)


def test_a_task_that_runs_twice_at_once_leaves_every_row_once(worlds: list[World]) -> None:
    """Spark starts a copy of a task that takes long; the first has begun its transaction, and goes on beside it."""
    for world in worlds:
        assert speculation(world, world.order.out.between["exactly-once"]), "the copy has run beside the first"
        refuse_harm(world)
