"""Signals that reach more than the driver's Python: all of its processes, or its JVM alone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from kept.guarantees import Guarantee
from kept.local import Cluster
from tests.conftest import KEPT, Eventually
from tests.spark.drivers import Fate, Order, under_spark_submit
from tests.spark.things import OutPostgres, each_once, fill, pipeline

FILE = """
name = "to-TOPIC"
guarantee = "exactly-once"
[source]
bootstrap = "env:KEPT_BOOTSTRAP"
topics = "TOPIC"
[transform]
function = "slow:slowly"
[sink]
postgres = "env:SHOP_DSN"
table = "out"
[spark.conf]
"spark.ui.enabled" = false
"""
SLOW = """
import pathlib
import time

from pyspark.sql import functions as f

@f.udf("string")
def slow(value):
    if value == b"v0":
        pathlib.Path("AT_WORK").touch()
        time.sleep(4)  # Spark, if it heard the signal, would have ended long before
    return value.decode()

def slowly(frame):
    return frame.select(slow("value").alias("v"), "_kept_topic", "_kept_partition", "_kept_offset")
"""


class Running:
    """`kept run` with a batch at work, and every process that it consists of."""

    def __init__(self, process: subprocess.Popen[bytes], errors: Path) -> None:
        self.process = process
        self.all = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        self._errors = errors

    def jvm(self) -> psutil.Process:
        (found,) = (each for each in self.all if each.name() == "java")
        return found

    def ended(self) -> tuple[int, str]:
        """Its exit code and what it said, once none of its processes is left."""
        code = self.process.wait(60)
        _, left = psutil.wait_procs(self.all, timeout=30)
        assert left == [], "nothing is left running"
        return code, self._errors.read_text()


@pytest.fixture
def running(
    cluster: Cluster, topic: str, dsn: str, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Running]:
    monkeypatch.setenv("KEPT_BOOTSTRAP", cluster.bootstrap)
    monkeypatch.setenv("SHOP_DSN", dsn)
    fill(cluster, topic, 30)
    at_work, errors = tmp_path / "at-work", tmp_path / "errors"
    (tmp_path / "slow.py").write_text(SLOW.replace("AT_WORK", str(at_work)))
    (tmp_path / "pay.toml").write_text(FILE.replace("TOPIC", topic))
    command = [str(KEPT), "run", str(tmp_path / "pay.toml")]
    with group_of_its_own(command, errors) as process:
        eventually(at_work.exists, "a batch is at work", within=180)
        yield Running(process, errors)


@contextmanager
def group_of_its_own(
    command: list[str], errors: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with errors.open("wb") as said:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=said, env=environment, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def to_its_group(there: Running) -> None:
    os.killpg(there.process.pid, signal.SIGTERM)


def to_each_process(there: Running) -> None:
    """As systemd does: Python's workers get it, too, and Spark begins their tasks again."""
    for each in there.all:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("send", [to_its_group, to_each_process])
def test_sigterm_for_all_of_its_processes_finishes_the_batch_in_hand(
    running: Running, topic: str, dsn: str, send: Callable[[Running], None]
) -> None:
    send(running)
    code, said = running.ended()
    assert code == 0, said
    assert OutPostgres(dsn).held() == each_once(30)
    assert sum(OutPostgres(dsn).recorded(topic).values()) == 30


def test_a_driver_whose_jvm_is_killed_says_so_and_is_succeeded(
    running: Running, cluster: Cluster, topic: str, dsn: str, exactly: Guarantee, spark: SparkSession
) -> None:
    out = OutPostgres(dsn)
    running.jvm().kill()
    code, said = running.ended()
    assert code == 1
    assert "error: Spark was ended under the pipeline" in said, said
    assert not out.held()
    assert pipeline(cluster, topic, out.sink, exactly, spark).run().rows == 30
    assert out.held() == each_once(30)


def test_sigterm_under_spark_submit_is_a_crash_that_the_next_start_makes_good(
    cluster: Cluster, topic: str, dsn: str, exactly: Guarantee, spark: SparkSession, tmp_path: Path,
    eventually: Eventually,
) -> None:  # fmt: skip
    """It reaches the JVM, the parent of Python there: the batch in hand is cut off, and no process is left over."""
    fill(cluster, topic, 30)
    errors, fate = tmp_path / "errors", Fate("waits to be killed", "before", str(tmp_path / "task"))
    command, environment = under_spark_submit(Order(cluster.bootstrap, topic, f"to-{topic}", dsn, fate=fate))
    with group_of_its_own(command, errors, environment) as process:
        eventually(lambda: list(tmp_path.glob("task.*.here")), "a batch is at work", within=180)
        there = Running(process, errors)
        there.jvm().terminate()
        code, _ = there.ended()
    assert code != 0
    out = OutPostgres(dsn)
    assert not out.held()
    assert pipeline(cluster, topic, out.sink, exactly, spark).run().rows == 30
    assert out.held() == each_once(30)
