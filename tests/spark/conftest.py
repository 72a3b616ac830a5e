"""One Spark session for all tests, and a database for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

import kept.spark
from kept.admin.topics import Topics
from kept.guarantees import Guarantee
from kept.local import Cluster
from tests.brokers.store_things import a_database
from tests.spark.things import OutKafka

ROOT = Path(__file__).resolve().parents[2]
QUIET = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    # Tests are over before the best code would be compiled, and to compile it takes the cores that they run on.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def reachable_by_workers() -> None:
    """Workers must be able to import the tests, for the faults that they bring with them."""
    paths = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    reachable_by_workers()
    session = kept.spark.session("kept-tests", **QUIET)
    yield session
    session.stop()


@pytest.fixture
def dsn(cluster: Cluster) -> Iterator[str]:
    """A database of the test's own."""
    address = a_database(cluster.dsn)
    yield address
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {address.rpartition('/')[2]} WITH (FORCE)".encode())


@pytest.fixture
def exactly(topic: str) -> Guarantee:
    return kept.ExactlyOnce(f"to-{topic}")


@pytest.fixture
def into_kafka(cluster: Cluster, topic: str) -> OutKafka:
    name = f"out-of-{topic}"
    Topics(cluster.bootstrap).create(name, 2, kept.ExactlyOnce("tests"))
    return OutKafka(cluster.bootstrap, name, f"to-{topic}")


@pytest.fixture
def said(cluster: Cluster, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT_BOOTSTRAP", cluster.bootstrap)
    monkeypatch.setenv("SHOP_DSN", dsn)
