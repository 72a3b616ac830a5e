"""Real services for every test that asks: one cluster a session, started once, down whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from kept.admin.topics import Topics
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.local.ports import ANY_FREE
from kept.local.tether import tethered

KEPT = Path(sys.executable).with_name("kept")


def pytest_configure() -> None:
    """A shell starts its background jobs deaf to Ctrl-C; the programs that these tests interrupt must hear it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_logstart(nodeid: str) -> None:
    """For scripts/run_tests.py, which tells where the tests were when a signal ended them."""
    if running := os.environ.get("KEPT_RUNNING_TEST"):
        Path(running).write_text(nodeid, encoding="utf-8")


def pytest_report_header() -> str:
    return f"kept cache: {os.environ.get('KEPT_CACHE', 'default')}"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster that tests share; a test that breaks a broker mends it."""
    with tethered(Cluster(tmp_path_factory.mktemp("shared") / "cluster")) as shared:
        shared.up(ports=ANY_FREE)
        yield shared


@pytest.fixture
def mended(cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster for a test that harms it: whole again afterwards."""
    yield cluster
    cluster.up()


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic of the test's own, with three partitions."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    Topics(cluster.bootstrap).create(name, 3, ExactlyOnce("tests"))
    return name


class Grow(Protocol):
    """Gives a topic more partitions."""

    def __call__(self, topic: str, partitions: int) -> None: ...


@pytest.fixture
def grow(cluster: Cluster, eventually: Eventually) -> Grow:
    """Partitions are added, and every broker has heard of them: a producer may ask any of them."""

    def add(topic: str, partitions: int) -> None:
        def knows(broker: str) -> bool:
            """A client's first question goes to the broker that it is told."""
            found = AdminClient({"bootstrap.servers": broker, "log_level": 0}).list_topics(topic, timeout=10)
            return len(found.topics[topic].partitions) == partitions

        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
        eventually(lambda: all(map(knows, cluster.bootstrap.split(","))), f"every broker knows {partitions} partitions")

    return add


class Kept(Protocol):
    """Runs the command line as a person would."""

    def __call__(self, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """The `kept` command in a process of its own, in an empty directory."""

    def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [KEPT, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
            cwd=tmp_path,
            env={**os.environ, **environment},
        )

    return run


@pytest.fixture
def on_cluster(kept: Kept, cluster: Cluster) -> Kept:
    """The `kept` command, with the shared cluster as its local one."""

    def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return kept(*arguments, stdin=stdin, KEPT_DIR=str(cluster.directory), **environment)

    return run


class Eventually(Protocol):
    """Waits for a condition."""

    def __call__(self, condition: Callable[[], object], awaited: str, within: float = 30.0) -> None: ...


@pytest.fixture
def eventually() -> Eventually:
    """Wait until a condition holds, or fail with what was awaited."""

    def wait(condition: Callable[[], object], awaited: str, within: float = 30.0) -> None:
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {within} s: {awaited}")
            time.sleep(0.05)

    return wait
