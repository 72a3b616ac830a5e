"""A cluster's whole life in a directory of its own: born, killed, moved, wiped, and never in anybody's way."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.errors import DiskFull, FixConfiguration, PortTaken
from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.local import Cluster
from kept.local.ports import ANY_FREE, HOST, Ports
from kept.local.processes import State
from kept.local.tether import tethered
from kept.producer import Producer
from tests.conftest import KEPT, Eventually, Kept


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that these tests start, kill and wipe as they like, in a directory with a difficult name."""
    with tethered(Cluster(tmp_path_factory.mktemp("own") / "jürgen's data \\ = # ☂")) as cluster:
        yield cluster


def remember(cluster: Cluster, text: str) -> None:
    """Put a record into Kafka and a row into Postgres."""
    Topics(cluster.bootstrap).create("memory", 1, ExactlyOnce("tests"))
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        producer.send("memory", text).result(30)
    with psycopg.connect(cluster.dsn) as connection:
        connection.execute("CREATE TABLE memory (text text)")
        connection.execute("INSERT INTO memory VALUES (%s)", (text,))


def recall(cluster: Cluster) -> tuple[list[bytes | None], list[tuple[str]]]:
    """What Kafka and Postgres remember."""
    with Reader(cluster.bootstrap, "memory", start=Start.BEGINNING) as reader:
        records = [record.value for record in reader.to_end()]
    with psycopg.connect(cluster.dsn) as connection:
        return records, connection.execute("SELECT text FROM memory").fetchall()


def everything_of(cluster: Cluster) -> list[psutil.Process]:
    """Every process that has to do with this directory, by a way of looking that the product does not use."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.cwd()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        ours = process.pid != os.getpid() and "kept.local.tether" not in words
        if ours and any(str(cluster.directory) in word for word in words):
            found.append(process)
    return found


def test_data_survives_kill_of_everything_and_down_until_fresh(own: Cluster, cluster: Cluster) -> None:
    own.up(ports=ANY_FREE)
    assert set(own.layout.ports.values()).isdisjoint(cluster.layout.ports.values()), "two clusters side by side"
    remember(own, "kept")

    for process in everything_of(own):
        with contextlib.suppress(psutil.NoSuchProcess):  # the children of a killed Postgres end by themselves
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(everything_of(own), timeout=10)
    own.up()
    assert recall(own) == ([b"kept"], [("kept",)]), "after kill -9 of every process"

    own.broker(1).pause()
    own.postgres.pause()
    own.down()
    assert everything_of(own) == [], "down ends paused servers too"
    own.up()
    assert recall(own) == ([b"kept"], [("kept",)]), "after down"

    identity = own.layout.cluster_id
    own.up(fresh=True, ports=ANY_FREE)
    assert own.layout.cluster_id != identity
    assert Topics(own.bootstrap).list() == []
    assert [server.state for server in cluster.status()] == [State.RUNNING] * 5, "the neighbour was left alone"


@pytest.mark.slow
def test_clients_are_told_the_address_in_front_of_a_broker(own: Cluster) -> None:
    own.down()
    own.up(advertised={1: "127.0.0.1:29099"})
    listening = ",".join(own.layout.listens(f"broker-{number}") for number in (1, 2, 3))
    brokers = AdminClient({"bootstrap.servers": listening, "log_level": 0}).list_topics(timeout=10).brokers
    assert f"{brokers[1].host}:{brokers[1].port}" == "127.0.0.1:29099"
    assert brokers[2].port == own.layout.ports["broker-2"]
    assert "127.0.0.1:29099" in own.bootstrap
    with pytest.raises(FixConfiguration, match="cannot change their addresses while they run"):
        own.up(advertised={1: "127.0.0.1:29098"})
    own.down()
    own.up(advertised={})
    assert own.bootstrap == listening


def test_a_dead_server_is_started_again_beside_the_living(own: Cluster) -> None:
    own.up(ports=ANY_FREE)
    before = {server.name: server.pid for server in own.status()}
    own.broker(2).kill()
    own.controller.kill()
    own.up()
    after = {server.name: server.pid for server in own.status()}
    assert {name for name in before if before[name] != after[name]} == {"broker-2", "controller"}


@pytest.mark.slow
def test_a_port_taken_meanwhile_is_left_to_its_new_owner(own: Cluster) -> None:
    own.up(ports=ANY_FREE)
    own.down()
    port = own.layout.ports["broker-1"]
    told: list[str] = []
    with socket.create_server((HOST, port)):
        own.up(say=told.append)
    assert own.layout.ports["broker-1"] != port
    assert [text for text in told if f"port {port} is taken: broker-1 gets" in text]
    own.down()


def test_a_port_asked_for_and_taken_is_an_error_and_starts_nothing(own: Cluster) -> None:
    own.down()
    with socket.create_server((HOST, 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} is taken"):
            own.up(ports=Ports(first=port))
    assert everything_of(own) == []


def test_a_stale_lock_of_postgres_that_names_a_stranger_does_not_stop_it(own: Cluster) -> None:
    own.up(ports=ANY_FREE)
    own.postgres.kill()
    stranger = subprocess.Popen(["sleep", "300"], user="nobody" if os.geteuid() == 0 else None)
    try:
        lock = own.directory / "postgres" / "data" / "postmaster.pid"
        lines = lock.read_text().splitlines()
        lock.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        own.postgres.start()
        assert stranger.poll() is None, "the stranger lives"
    finally:
        stranger.kill()
        stranger.wait()


def test_down_finds_the_servers_of_a_directory_that_was_removed(own: Cluster) -> None:
    own.up(ports=ANY_FREE)
    assert len(everything_of(own)) >= 5
    shutil.rmtree(own.directory)
    own.down()
    assert everything_of(own) == []


@pytest.mark.slow
def test_up_begins_anew_where_it_was_interrupted(own: Cluster, eventually: Eventually) -> None:
    """SIGINT and SIGKILL in the middle of a first start: nothing half-made is used afterwards."""
    for number, leaves_nothing in ((signal.SIGINT, True), (signal.SIGKILL, False)):
        shutil.rmtree(own.directory, ignore_errors=True)
        started = subprocess.Popen(
            [KEPT, "up", "--free-ports", "--dir", str(own.directory)], stderr=subprocess.PIPE, text=True
        )
        assert started.stderr is not None
        for line in started.stderr:
            if "starting broker-2" in line:
                break
        started.send_signal(number)
        started.communicate()
        assert started.returncode == (130 if leaves_nothing else -signal.SIGKILL)
        if leaves_nothing:
            assert everything_of(own) == []
    own.up(ports=ANY_FREE)
    assert [server.state for server in own.status()] == [State.RUNNING] * 5
    own.down()


@pytest.mark.slow
def test_a_kill_while_data_directories_are_made_leaves_nothing_half_made(own: Cluster) -> None:
    """initdb and the formatter go on for a moment after their parent was killed: they are ended, their work redone."""
    shutil.rmtree(own.directory, ignore_errors=True)
    command = [str(KEPT), "up", "--free-ports", "--dir", str(own.directory)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        assert "making the data directories" in started.stderr.readline()
        started.kill()
    own.up(ports=ANY_FREE)
    assert [server.state for server in own.status()] == [State.RUNNING] * 5
    remember(own, "whole")
    assert recall(own) == ([b"whole"], [("whole",)])
    own.down()
    assert everything_of(own) == []


def test_a_directory_that_is_not_ours_is_left_alone(tmp_path: Path, kept: Kept) -> None:
    theirs = tmp_path / "project"
    (theirs / "logs").mkdir(parents=True)
    (theirs / "work.txt").write_text("precious")
    for options in ([], ["--fresh"]):
        refused = kept("up", "--dir", str(theirs), *options)
        assert refused.returncode == 1
        assert "holds no cluster, and is not empty (work.txt)" in refused.stderr
    assert kept("down", "--dir", str(theirs)).returncode == 0
    assert sorted(entry.name for entry in theirs.iterdir()) == ["logs", "work.txt"]


def test_a_paused_server_is_resumed_by_start_and_by_up(own: Cluster) -> None:
    own.up(ports=ANY_FREE)
    pid = own.broker(1).pid()
    own.broker(1).pause()
    own.broker(1).start()
    own.postgres.pause()
    own.up()
    assert [server.state for server in own.status()] == [State.RUNNING] * 5
    assert own.broker(1).pid() == pid


def test_a_cluster_goes_down_with_the_process_it_is_tethered_to(own: Cluster, eventually: Eventually) -> None:
    program = (
        "import sys, pathlib, time\n"
        "from kept.local import Cluster\n"
        "from kept.local.ports import ANY_FREE\n"
        "from kept.local.tether import tethered\n"
        "with tethered(Cluster(pathlib.Path(sys.argv[1]))) as cluster:\n"
        "    cluster.up(ports=ANY_FREE)\n"
        "    print('up', flush=True)\n"
        "    time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program, str(own.directory)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    assert everything_of(own)
    owner.kill()
    owner.communicate()
    eventually(lambda: everything_of(own) == [], "the cluster of a killed owner is down")


def test_a_full_disk_is_told_and_leaves_nothing_running(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a small disk of its own takes root (mount -t tmpfs)")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", small], check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine does not let root mount a small disk")
    cluster = Cluster(small / "cluster")
    try:
        with pytest.raises(DiskFull, match="full"):
            cluster.up(ports=ANY_FREE)
        assert everything_of(cluster) == []
    finally:
        cluster.down()
        subprocess.run(["umount", small], check=True)


def test_no_java_is_told_with_the_line_to_type(kept: Kept, tmp_path: Path) -> None:
    result = kept("up", PATH=str(tmp_path), JAVA_HOME="", KEPT_CACHE=str(tmp_path / "cache"))
    assert result.returncode == 1
    assert "no Java 17 or later was found" in result.stderr
    assert "kept prepare" in result.stderr
    assert not (tmp_path / ".kept").exists(), "nothing half-made"


@pytest.mark.slow
def test_a_damaged_cluster_file_is_told_and_fresh_is_the_way_out(own: Cluster) -> None:
    own.up(ports=ANY_FREE)
    (own.directory / "cluster.json").write_text("{ not json")
    with pytest.raises(FixConfiguration, match="kept up --fresh"):
        own.up()
    own.up(fresh=True, ports=ANY_FREE)
    assert json.loads((own.directory / "cluster.json").read_text())["cluster_id"]
    own.down()
    assert everything_of(own) == []
