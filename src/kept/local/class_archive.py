"""An archive of Kafka's loaded classes (class data sharing): with it brokers start in about half the time.

It is made once a machine, by running one small server for a moment. Nothing depends on it: where it cannot be
made, brokers start more slowly.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from kept.local.archives import Archive, make_once
from kept.local.cluster import Cluster
from kept.local.kafka import KafkaServer, Runtime
from kept.local.layout import Layout, new_cluster_id
from kept.local.ports import ANY_FREE
from kept.local.processes import State
from kept.local.runtime import broker_archive
from kept.local.tether import tethered

TRAINING_SECONDS = 60.0


def make_archive(runtime: Runtime, say: Callable[[str], None]) -> None:
    """Make the archive unless it is there."""
    archive = Archive("the class archive", "brokers", broker_archive(runtime.java), made_within=120.0)
    make_once(archive, partial(_make, runtime), say)


def _make(runtime: Runtime, path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kept-classes-", dir=path.parent) as scratch:
        made = Path(scratch, "kafka.jsa")
        learning = replace(runtime, archive=None, options=(f"-XX:ArchiveClassesAtExit={made}",))
        with tethered(Cluster(Path(scratch, "cluster"))) as cluster:
            _run_once(_Both(cluster.directory, replace(runtime, archive=None), learning))
        made.replace(path)


class _Both(KafkaServer):
    """A server that is broker and controller at once: it loads the classes of both."""

    stops_within = TRAINING_SECONDS

    def __init__(self, directory: Path, plain: Runtime, learning: Runtime) -> None:
        self.runtime = plain
        self._learning = learning
        super().__init__(directory, "broker-1", Layout(new_cluster_id(), ANY_FREE.preferred()), lambda: self.runtime)

    def configure(self) -> None:
        super().configure()
        layout = self._layout
        with (self.folder / "server.properties").open("a") as file:
            file.write(
                "process.roles=broker,controller\n"
                f"controller.quorum.voters=1@{layout.listens('controller')}\n"
                f"listeners=CONTROLLER://{layout.listens('controller')},"
                f"INTERNAL://{layout.listens('broker-1-internal')},CLIENT://{layout.listens('broker-1')}\n"
            )

    def launch(self) -> None:
        self.runtime = self._learning
        super().launch()


def _run_once(server: _Both) -> None:
    """Start it, wait until it has loaded what a broker loads, and stop it: the JVM writes the archive at its end."""
    server.configure()
    server.make_data()
    server.launch()
    deadline = time.monotonic() + TRAINING_SECONDS
    while "Kafka Server started" not in "\n".join(server.log_tail(50)):
        if server.state() is State.STOPPED or time.monotonic() > deadline:
            return
        time.sleep(0.2)
    server.end()
