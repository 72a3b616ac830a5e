"""`kept receive --group`: the effect is a line, a command or an exactly-once sink; progress as the guarantee says."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import psycopg
import pytest

from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.local import Cluster
from kept.producer import Producer
from tests.conftest import KEPT, Eventually, Kept


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def numbered(cluster: Cluster, topic: str) -> str:
    """The topic, with the numbers 1 to 9 in one partition."""
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        for number in range(1, 10):
            producer.send(topic, str(number), key="one")
    return topic


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])
def test_the_group_goes_on_where_it_was(on_cluster: Kept, numbered: str, group: str, guarantee: str) -> None:
    ask = ("receive", numbered, "--group", group, "--guarantee", guarantee, "--from-beginning")
    assert on_cluster(*ask, "--max", "4").stdout.split() == ["1", "2", "3", "4"]
    assert on_cluster(*ask, "--idle", "3").stdout.split() == ["5", "6", "7", "8", "9"]
    assert on_cluster(*ask, "--idle", "2").stdout == ""


def test_a_command_gets_the_record_and_a_failing_one_ends_before_it(
    on_cluster: Kept, numbered: str, group: str
) -> None:
    command = 'read x; echo "$KEPT_TOPIC $KEPT_OFFSET $KEPT_KEY $x"; [ $x != 3 ]'
    failed = on_cluster("receive", numbered, "--group", group, "--from-beginning", "--exec", command)
    assert failed.returncode == 1, failed.stderr
    lines = failed.stdout.splitlines()
    assert lines[:2] == [f"{numbered} 0 one 1", f"{numbered} 1 one 2"]
    assert set(lines[2:]) == {f"{numbered} 2 one 3"}, "tried again, and nothing after it"
    assert "it goes on with that record" in failed.stderr
    again = on_cluster("receive", numbered, "--group", group, "--exec", "cat; echo", "--idle", "3")
    assert again.stdout.split() == ["3", "4", "5", "6", "7", "8", "9"]
    assert "7 done" in again.stderr


def test_a_record_that_keeps_failing_is_buried_whole(
    on_cluster: Kept, cluster: Cluster, numbered: str, group: str
) -> None:
    dead = f"{numbered}-dead"
    Topics(cluster.bootstrap).create(dead, 1, AtLeastOnce())
    done = on_cluster(
        "receive", numbered, "--group", group, "--from-beginning", "--exec", "read x; [ $x != 3 ]",
        "--dead-letters", dead, "--idle", "4",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "8 done" in done.stderr
    with Reader(cluster.bootstrap, dead, start=Start.BEGINNING) as reader:
        (letter,) = reader.to_end()
    about = dict(letter.headers)
    assert (letter.key, letter.value) == (b"one", b"3")
    assert about["kept.dead.topic"] == numbered.encode()
    assert about["kept.dead.offset"] == b"2"
    assert b"status 1" in (about["kept.dead.reason"] or b"")


def test_into_postgres_is_idle_only_while_nothing_comes(
    cluster: Cluster, topic: str, group: str, tmp_path: Path, dsn: str
) -> None:
    """Records come for longer than it may be idle, never so long apart."""
    with (
        Producer(cluster.bootstrap, AtLeastOnce()) as producer,
        subprocess.Popen(
            [KEPT, "receive", topic, "--group", group, "--guarantee", "exactly-once", "--from-beginning",
             "--into-postgres", dsn, "--bootstrap", cluster.bootstrap, "--idle", "5"],
            stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=os.environ,
        ) as process,
    ):  # fmt: skip
        began, sent = time.monotonic(), 0
        while time.monotonic() < began + 7:
            producer.send(topic, str(sent)).result(30)
            sent += 1
            time.sleep(0.2)
        assert process.wait(60) == 0, process.stderr.read() if process.stderr else ""
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (sent,)


def test_exactly_once_into_a_topic_and_into_postgres(
    on_cluster: Kept, cluster: Cluster, numbered: str, group: str, tmp_path: Path, eventually: Eventually
) -> None:
    copy = f"{numbered}-copy"
    Topics(cluster.bootstrap).create(copy, 3, ExactlyOnce("tests"))
    for _ in range(2):
        copied = on_cluster(
            "receive", numbered, "--group", group, "--guarantee", "exactly-once", "--from-beginning", "--into", copy,
            "--idle", "4",
        )  # fmt: skip
        assert copied.returncode == 0, copied.stderr
    with Reader(cluster.bootstrap, copy, start=Start.BEGINNING) as reader:
        assert [record.value for record in reader.to_end()] == [str(number).encode() for number in range(1, 10)]
    dsn = cluster.dsn
    with subprocess.Popen(
        [KEPT, "receive", numbered, "--group", f"{group}-pg", "--guarantee", "exactly-once", "--from-beginning",
         "--into-postgres", dsn, "--bootstrap", cluster.bootstrap],
        stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=os.environ,
    ) as process:  # fmt: skip
        with psycopg.connect(dsn, autocommit=True) as connection:
            progress = "SELECT sum(next_offset) FROM kept_progress WHERE pipeline = %s"

            def arrived() -> bool:
                try:
                    return connection.execute(progress, (f"kept.{group}-pg",)).fetchone() == (9,)
                except psycopg.errors.UndefinedTable:
                    return False

            eventually(arrived, "nine records are in Postgres", within=60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.stderr.read() if process.stderr else ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--exec", "true"], "--exec needs --group"),
        (["--guarantee", "at-most-once"], "--guarantee needs --group"),
        (["--group", "g", "--to-end"], "--to-end looks without a group"),
        (["--group", "g", "--guarantee", "exactly-once"], "shares a transaction"),
        (["--group", "g", "--into", "x"], "exactly-once"),
        (["--group", "g", "--into", "x", "--exec", "y"], "different effects"),
        (["--group", "g", "--dead-letters", "x"], "--dead-letters is for"),
        (["--group", "", "--exec", "true"], "none is named"),
    ],
)
def test_what_does_not_fit_together_is_told(on_cluster: Kept, topic: str, arguments: list[str], told: str) -> None:
    refused = on_cluster("receive", topic, *arguments)
    assert refused.returncode == 1
    assert told in refused.stderr
