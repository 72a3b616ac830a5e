"""A real standby is promoted without the last commits of its primary: the outbox goes on, and skips nothing."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from kept.errors import FixConfiguration
from kept.local import Cluster
from kept.local.ports import HOST
from kept.local.postgres import _environment, _is_root, _nobody, _program
from kept.outbox.postgres_backlog import PostgresBacklog
from tests.brokers.pipes import new_topic, read
from tests.brokers.postgres_outbox_proof import an_outbox
from tests.brokers.test_postgres_outbox_relay import enqueue, relay_all
from tests.conftest import Eventually


class Server:
    """A Postgres of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.data = directory
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/postgres"

    def make(self, *command: str) -> None:
        program, *options = command
        subprocess.run(
            [*_program(program), "-D", str(self.data), *options],
            env=_environment(),
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def start(self, eventually: Eventually) -> None:
        settings = {"listen_addresses": HOST, "port": self.port, "unix_socket_directories": ""}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = (self.data.parent / f"{self.data.name}.log").open("ab")
        command = [*_program("postgres"), "-D", str(self.data), *options]
        self._process = subprocess.Popen(command, env=_environment(), stdout=log, stderr=log)
        log.close()
        eventually(self.answers, f"{self.data} answers")

    def answers(self) -> bool:
        try:
            with psycopg.connect(self.dsn, connect_timeout=2) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def end(self, how: signal.Signals = signal.SIGINT) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(30)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    place = tmp_path / "servers"
    place.mkdir()
    if _is_root():
        os.chown(place, *_nobody())
    pair = Server(place / "primary"), Server(place / "standby")
    yield pair
    for server in pair:
        server.end(signal.SIGQUIT)
    shutil.rmtree(place, ignore_errors=True)


def test_a_promoted_standby_that_lost_commits(
    cluster: Cluster, servers: tuple[Server, Server], eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    primary, standby = servers
    primary.make("initdb", "-U", "postgres", "--auth=trust", "--no-locale", "--encoding=UTF8")
    primary.start(eventually)
    dsn, topic = an_outbox(primary.dsn), new_topic(cluster.bootstrap)
    enqueue(dsn, topic, "1", "2", partition=0)
    relay_all(dsn, cluster.bootstrap)
    standby.make("pg_basebackup", "-h", HOST, "-p", str(primary.port), "-U", "postgres", "-R", "--checkpoint=fast")
    standby.start(eventually)
    copy = dsn.replace(str(primary.port), str(standby.port))
    with pytest.raises(FixConfiguration, match="is a standby"):
        PostgresBacklog(copy)

    standby.end()  # what comes now does not reach it
    enqueue(dsn, topic, "3", "4", "5", partition=0)
    relay_all(dsn, cluster.bootstrap)
    primary.end(signal.SIGKILL)
    standby.start(eventually)
    with psycopg.connect(copy, autocommit=True) as connection:
        connection.execute("SELECT pg_promote()")
    # The numbers of 3, 4 and 5 are handed out again, before any relay has looked.
    enqueue(copy, topic, "new 3", "new 4", "new 5", "new 6", partition=0)
    with caplog.at_level(logging.WARNING, "kept"):
        assert relay_all(copy, cluster.bootstrap).relayed == 4
    assert "this database has lost it" in caplog.text
    enqueue(copy, topic, "7", partition=0)
    assert relay_all(copy, cluster.bootstrap).relayed == 1
    values = [(record.value or b"").decode() for record in read(cluster.bootstrap, topic)]
    assert values == ["1", "2", "3", "4", "5", "new 3", "new 4", "new 5", "new 6", "7"]
