"""`kept demo`, the main job of README: each guarantee does what it says, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import psycopg
import pytest

from kept.admin.groups import Groups
from kept.admin.topics import Topics
from kept.local import Cluster
from tests.conftest import KEPT, Eventually, Kept

WORD = "at-least-once"


def left(cluster: Cluster) -> list[str]:
    """What there is of demos on the servers."""
    with psycopg.connect(cluster.dsn) as connection:
        schemas = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'kept_demo%'").fetchall()
    topics = [topic.name for topic in Topics(cluster.bootstrap).list() if "kept-demo" in topic.name]
    groups = [group.name for group in Groups(cluster.bootstrap).list() if "kept-demo" in group.name]
    return [name for (name,) in schemas] + topics + groups


@pytest.mark.timeout(400)  # Spark starts six times
def test_rows_are_repeated_at_least_once_and_balance_exactly_once(kept: Kept, cluster: Cluster, tmp_path: Path) -> None:
    servers = ("--bootstrap", cluster.bootstrap, "--dsn", "env:SHOP_DSN")
    words = ("--guarantee", WORD, "--guarantee", "exactly-once")
    result = kept("demo", "--records", "3000", "--seed", "5", *words, *servers, "--json", SHOP_DSN=cluster.dsn)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    repeated, exact = told["guarantees"]
    assert (repeated["guarantee"], repeated["sent"], repeated["lost"]) == (WORD, 3000, 0)
    assert 0 < repeated["duplicated"] == repeated["stored"] - 3000 <= 250, "at most the batch in hand"
    assert repeated["cents_off"] > 0
    assert (exact["sent"], exact["stored"], exact["lost"], exact["duplicated"], exact["cents_off"]) == (
        3000,
        3000,
        0,
        0,
        0,
    )
    for each in (repeated, exact):
        titles = [crash["title"] for crash in each["crashes"]]
        assert titles == ["between progress and rows", "between rows and progress"]
    assert told["as_promised"]
    assert "Only exactly-once balances" in (tmp_path / "kept-demo.html").read_text()
    assert left(cluster) == []


def test_one_server_alone_is_refused(kept: Kept) -> None:
    result = kept("demo", "--dsn", "postgresql://localhost/shop")
    assert result.returncode == 2
    assert "--bootstrap and --dsn" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dsn", "no dsn", "--bootstrap", "localhost:1"), "the DSN cannot be read"),
        (("--report", "nowhere/report.html"), "nowhere/report.html cannot be written"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_started(
    kept: Kept, arguments: tuple[str, ...], words: str
) -> None:
    result = kept("demo", *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert words in result.stderr
    assert "way out" in result.stderr


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_demo_leaves_nothing_running(
    ending: signal.Signals, cluster: Cluster, tmp_path: Path, eventually: Eventually
) -> None:
    servers = ["--bootstrap", cluster.bootstrap, "--dsn", cluster.dsn]
    demo = subprocess.Popen(
        [KEPT, "demo", "--records", "1000", *servers],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    family: list[psutil.Process] = []

    def has_java() -> bool:
        family[:] = psutil.Process(demo.pid).children(recursive=True)
        return any("java" in process.name() for process in family)

    try:
        eventually(has_java, "the pipeline has its JVM", within=90)
        demo.send_signal(ending)
        said = demo.communicate(timeout=60)[1]
    finally:
        demo.kill()
        demo.communicate()
    assert demo.returncode == (130 if ending == signal.SIGINT else -ending), said
    eventually(lambda: not any(_lives(process) for process in family), "everything it started has ended")
    if ending == signal.SIGINT:
        assert left(cluster) == []
        assert list(tmp_path.iterdir()) == []


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
