"""The shared cluster: what ready means, and what can be done to each of its servers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from kept.admin.topics import Topics
from kept.errors import FixConfiguration
from kept.local import Cluster
from kept.local.processes import State
from tests.conftest import Eventually, Kept


def brokers(admin: AdminClient) -> set[int]:
    """The brokers that the metadata names; none when the one that was asked, perhaps the paused one, is silent."""
    try:
        return set(admin.list_topics(timeout=3).brokers)
    except KafkaException:
        return set()


def test_ready_means_three_brokers_and_internal_topics_with_leaders(cluster: Cluster) -> None:
    topics = {topic.name: topic for topic in Topics(cluster.bootstrap).list(internal=True)}
    for name in ("__consumer_offsets", "__transaction_state"):
        assert all(part.leader > 0 and len(part.replicas) == 3 for part in topics[name].partitions)
    assert [server.state for server in cluster.status()] == [State.RUNNING] * 5


def test_brokers_keep_two_copies_in_sync_and_never_elect_a_laggard(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    config = admin.describe_configs([resource])[resource].result()
    wanted = {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "unclean.leader.election.enable": "false",
        "auto.create.topics.enable": "false",
    }
    assert {name: config[name].value for name in wanted} == wanted


def test_up_twice_is_harmless(cluster: Cluster) -> None:
    before = [server.pid for server in cluster.status()]
    told: list[str] = []
    cluster.up(say=told.append)
    assert [server.pid for server in cluster.status()] == before
    assert told == []


def test_a_killed_broker_leaves_the_metadata_and_comes_back(mended: Cluster, eventually: Eventually) -> None:
    admin = AdminClient({"bootstrap.servers": mended.bootstrap, "log_level": 0})
    broker = mended.broker(2)
    broker.kill()
    assert broker.state() is State.STOPPED
    eventually(lambda: brokers(admin) == {1, 3}, "broker 2 is gone from the metadata")
    broker.start()
    assert set(admin.list_topics(timeout=10).brokers) == {1, 2, 3}


def test_a_paused_broker_is_fenced_and_returns_when_resumed(mended: Cluster, eventually: Eventually) -> None:
    others = ",".join(mended.broker(number).address for number in (1, 2))  # one that sleeps would be asked for a minute
    admin = AdminClient({"bootstrap.servers": others, "log_level": 0})
    broker = mended.broker(3)
    pid = broker.pid()
    broker.pause()
    assert broker.state() is State.PAUSED
    eventually(lambda: brokers(admin) == {1, 2}, "broker 3 is fenced", within=60)
    broker.resume()
    eventually(lambda: brokers(admin) == {1, 2, 3}, "broker 3 is back", within=60)
    assert broker.pid() == pid


def test_a_restarted_broker_is_ready_when_restart_returns(mended: Cluster) -> None:
    before = mended.broker(1).pid()
    mended.broker(1).restart()
    assert mended.broker(1).pid() not in (None, before)
    admin = AdminClient({"bootstrap.servers": mended.bootstrap, "log_level": 0})
    assert 1 in admin.list_topics(timeout=10).brokers


def test_servers_are_harmed_and_mended_from_the_command_line(mended: Cluster, on_cluster: Kept) -> None:
    assert "broker-2 is stopped" in on_cluster("broker", "2", "kill").stderr
    status = on_cluster("status", "--json")
    assert status.returncode == 3
    states = {server["name"]: server["state"] for server in json.loads(status.stdout)["servers"]}
    assert states["broker-2"] == "stopped"
    assert "broker-2 is not running" in on_cluster("broker", "2", "pause").stderr
    assert "broker-2 is running" in on_cluster("broker", "2", "start").stderr
    assert "broker-3 is paused" in on_cluster("broker", "3", "pause").stderr
    assert "broker-3 is running" in on_cluster("broker", "3", "resume").stderr
    assert on_cluster("status").returncode == 0


def test_postgres_survives_a_kill(mended: Cluster, on_cluster: Kept) -> None:
    with psycopg.connect(mended.dsn) as connection:
        connection.execute("CREATE TABLE kept_survives (n int)")
        connection.execute("INSERT INTO kept_survives VALUES (7)")
    assert "postgres is stopped" in on_cluster("postgres", "kill").stderr
    assert mended.postgres.processes() == []
    assert "postgres is running" in on_cluster("postgres", "start").stderr
    with psycopg.connect(mended.dsn) as connection:
        assert connection.execute("SELECT n FROM kept_survives").fetchall() == [(7,)]
        connection.execute("DROP TABLE kept_survives")


@pytest.mark.skipif(os.geteuid() != 0, reason="only as root Postgres is started by another program")
def test_postgres_may_take_a_while_to_become_itself(
    mended: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the program that starts it is still another one when it is looked for."""
    slow = tmp_path / "setpriv"
    slow.write_text(f'#!/bin/sh\nsleep 1\nexec {shutil.which("setpriv")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    mended.postgres.restart()
    assert mended.postgres.answers()


def test_logs_show_what_a_server_wrote(on_cluster: Kept) -> None:
    assert "Kafka Server started" in on_cluster("logs", "broker-1", "-n", "5000").stdout
    assert "ready to accept connections" in on_cluster("logs", "postgres").stdout
    wrong = on_cluster("logs", "broker-9")
    assert wrong.returncode == 1
    assert "the servers are controller, broker-1" in wrong.stderr


def test_a_broker_that_does_not_exist_is_named(cluster: Cluster) -> None:
    with pytest.raises(FixConfiguration, match="there is no broker 4"):
        cluster.broker(4)
