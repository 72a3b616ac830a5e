"""`kept outbox` on a Postgres, as a person uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from kept.admin.topics import Topics
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.outbox.postgres_backlog import PostgresBacklog
from kept.outbox.postgres_looking import InspectedBacklog, Turn
from tests.brokers.pipes import new_topic, read
from tests.brokers.postgres_outbox_proof import relay_process
from tests.brokers.test_postgres_outbox_relay import enqueue
from tests.conftest import KEPT, Eventually, Kept


def status(run: Kept, dsn: str) -> dict[str, object]:
    shown = run("outbox", "status", dsn, "--json")
    assert shown.returncode == 0, shown.stderr
    return dict(json.loads(shown.stdout))


def test_made_looked_at_and_relayed(on_cluster: Kept, cluster: Cluster, dsn: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{dsn}\n")
    made = on_cluster("outbox", "init", f"file:{secret}")
    assert (made.returncode, made.stdout.startswith("made the outbox ")) == (0, True), made.stderr
    assert "nothing was changed" in on_cluster("outbox", "init", "env:SHOP", SHOP=dsn).stdout
    assert status(on_cluster, dsn)["records"] == 0

    topic = new_topic(cluster.bootstrap, max_message_bytes=20_000)
    enqueue(dsn, topic, "1", "x" * 100_000, "2", key="k")
    before = status(on_cluster, dsn)
    assert (before["records"], before["bytes"], before["refused"]) == (3, 100_005, 0)
    assert before["relay_at_work"] is False
    waiting = json.loads(on_cluster("outbox", "inspect", dsn, "--max", "1", "--json").stdout)
    assert [(each["value"], each["key"]) for each in waiting] == [("1", "k")]

    relayed = on_cluster("outbox", "relay", f"file:{secret}", "--until-empty")
    assert (relayed.returncode, relayed.stdout) == (0, "relayed 2, refused 1, 0 wait\n"), relayed.stderr
    assert "postgres@" not in relayed.stderr
    assert [record.value for record in read(cluster.bootstrap, topic)] == [b"1", b"2"]
    after = status(on_cluster, dsn)
    assert (after["records"], after["refused"], after["relayed_up_to"]) == (0, 1, after["end"])
    (refused,) = json.loads(on_cluster("outbox", "inspect", dsn, "--refused", "--json").stdout)
    assert (refused["bytes"], "too large" in refused["refused"].lower()) == (100_001, True), refused["refused"]
    assert "refused" in on_cluster("outbox", "status", dsn).stdout


def test_purging_leaves_the_unsent_unless_told(on_cluster: Kept, cluster: Cluster, dsn: str) -> None:
    on_cluster("outbox", "init", dsn)
    topic = new_topic(cluster.bootstrap)
    enqueue(dsn, topic, "sent")
    assert "relayed 1" in on_cluster("outbox", "relay", dsn, "--until-empty").stdout
    enqueue(dsn, topic, "never sent", "never sent either")
    assert on_cluster("outbox", "purge", dsn, stdin="n\n").returncode == 130
    assert on_cluster("outbox", "purge", dsn, "--yes").stdout == "removed 0 refused records\n"
    assert status(on_cluster, dsn)["records"] == 2
    purged = on_cluster("outbox", "purge", dsn, "--unsent", "--yes")
    assert purged.stdout == "removed 0 refused records and 2 that were never sent\n", purged.stderr
    enqueue(dsn, topic, "after")
    again = on_cluster("outbox", "relay", dsn, "--until-empty")
    assert again.stdout == "relayed 1, refused 0, 0 wait\n", again.stderr
    assert sorted(record.value or b"" for record in read(cluster.bootstrap, topic)) == [b"after", b"sent"]


def test_refused_records_are_redriven_once_and_in_their_order(on_cluster: Kept, cluster: Cluster, dsn: str) -> None:
    on_cluster("outbox", "init", dsn)
    late = f"{new_topic(cluster.bootstrap)}-late"
    enqueue(dsn, late, *"12345", key="k", headers=[("h", b"v")], partition=0, timestamp=1_700_000_000_000)
    relay = ("outbox", "relay", dsn, "--until-empty", "--patience", "0.1")
    assert on_cluster(*relay).stdout == "relayed 0, refused 5, 0 wait\n"
    assert on_cluster("outbox", "redrive", dsn).stdout == f"would put back 5 for {late}\n"
    assert status(on_cluster, dsn)["refused"] == 5
    Topics(cluster.bootstrap).create(late, 1, ExactlyOnce("tests"))
    backlogs = [InspectedBacklog(dsn) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:  # at once: each record is put back by one of them
        assert sum(pool.map(InspectedBacklog.redrive, backlogs)) == 5
    for backlog in backlogs:
        backlog.close()
    assert "nothing was refused" in on_cluster("outbox", "redrive", dsn, "--yes").stderr
    patient = on_cluster("outbox", "relay", dsn, "--until-empty")  # not every broker knows a new topic at once
    assert patient.stdout == "relayed 5, refused 0, 0 wait\n", patient.stderr
    found = read(cluster.bootstrap, late)
    assert [record.value for record in found] == [b"1", b"2", b"3", b"4", b"5"]
    assert {(record.key, tuple(record.headers), record.timestamp) for record in found} == {
        (b"k", (("h", b"v"),), 1_700_000_000_000)
    }


def test_a_second_relay_stands_by(
    on_cluster: Kept, cluster: Cluster, dsn: str, tmp_path: Path, eventually: Eventually
) -> None:
    on_cluster("outbox", "init", dsn)
    topic = new_topic(cluster.bootstrap)
    command = [str(KEPT), "outbox", "relay", dsn, "--bootstrap", cluster.bootstrap]
    said = tmp_path / "said"
    with said.open("w") as stderr:
        first = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        eventually(lambda: status(on_cluster, dsn)["relay_at_work"], "the first relay is at work")
        second = subprocess.Popen(command, stderr=stderr, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: "standing by" in said.read_text(), "the second one stands by")
        busy = on_cluster("outbox", "purge", dsn, "--unsent", "--yes")
        assert (busy.returncode, "stop it first" in busy.stderr) == (1, True), busy.stderr
        os.kill(first.pid, signal.SIGKILL)
        enqueue(dsn, topic, "1")
        eventually(lambda: len(read(cluster.bootstrap, topic)) == 1, "the second one takes over")
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0
    finally:
        for process in (first, second):
            process.kill()
            process.wait()


def test_status_tells_what_held_the_last_relay_up_until_one_is_well(on_cluster: Kept, dsn: str) -> None:
    on_cluster("outbox", "init", dsn)
    backlog = PostgresBacklog(dsn)
    backlog.leave_word("no broker answers")
    backlog.close()
    assert status(on_cluster, dsn)["relay_error"] == "no broker answers"
    assert "no broker answers" in on_cluster("outbox", "status", dsn).stdout
    assert on_cluster("outbox", "relay", dsn, "--until-empty").returncode == 0
    assert status(on_cluster, dsn)["relay_error"] is None


def test_status_shows_what_is_in_the_way(on_cluster: Kept, dsn: str) -> None:
    on_cluster("outbox", "init", dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("INSERT INTO kept_outbox (topic) VALUES ('t')")
    with psycopg.connect(dsn) as holding:
        pid = str(holding.info.backend_pid)
        holding.execute("SELECT kept_enqueue('t', 'x')")
        holding.execute("SET CONSTRAINTS ALL IMMEDIATE")
        holding.execute("SELECT pg_sleep(1.1)")
        found = status(on_cluster, dsn)
        assert found["held_up_by"] == [pid]
        assert found["without_a_position"] == 1
        told = on_cluster("outbox", "status", dsn).stdout
    assert "triggers were off" in told
    assert f"held up by {pid}" in told


@pytest.mark.parametrize("command", ["status", "relay", "inspect", "redrive", "purge"])
def test_a_database_without_an_outbox_is_told_so(on_cluster: Kept, dsn: str, command: str) -> None:
    result = on_cluster("outbox", command, dsn)
    assert (result.returncode, "kept outbox init" in result.stderr) == (1, True), result.stderr


def test_a_relay_by_hand_and_one_by_command_fence_each_other(
    on_cluster: Kept, cluster: Cluster, dsn: str, eventually: Eventually
) -> None:
    on_cluster("outbox", "init", dsn)
    topic = new_topic(cluster.bootstrap)
    enqueue(dsn, topic, "1")
    running = relay_process(dsn, cluster.bootstrap)
    try:
        eventually(lambda: len(read(cluster.bootstrap, topic)) == 1, "it relays")
        assert "relayed 0" in on_cluster("outbox", "relay", dsn, "--until-empty", "--take-over").stdout
        enqueue(dsn, topic, "2")
        assert running.wait(60) == 1
        assert running.communicate()[0].startswith("Fenced")
    finally:
        running.kill()
        running.wait()


def test_who_stands_by_outlives_a_lost_connection(on_cluster: Kept, dsn: str, eventually: Eventually) -> None:
    assert on_cluster("outbox", "init", dsn).returncode == 0
    at_work, standing_by = Turn(dsn), Turn(dsn)
    assert at_work.alone()
    assert not standing_by.alone()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'kept:outbox:turn' AND datname = current_database()"
        )
    eventually(standing_by.alone, "the turn is its own, over a new connection")
    at_work.close()
    standing_by.close()
