"""The Kafka servers: one controller of its own and three brokers, with replication that survives one of them."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import psutil

from kept.guarantees import ExactlyOnce, broker_settings
from kept.local import processes
from kept.local.java import Java
from kept.local.layout import Layout
from kept.local.places import write_errors_told
from kept.local.ports import HOST
from kept.local.processes import Mark
from kept.local.server import Server

CONTROLLER_ID = 100
HEAP = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC")
SHORT_LIVED = "-XX:TieredStopAtLevel=1"  # compile quickly rather than well

# Fail over within seconds instead of Kafka's default of about ten: a laptop has no network partitions to ride out.
QUICK_FAIL_OVER = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
SMALL = {
    "num.partitions": "3",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "share.coordinator.state.topic.num.partitions": "3",
    "log.retention.check.interval.ms": "5000",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
}


@dataclass(frozen=True)
class Runtime:
    """What it takes to run a Kafka class: Java, the jars, and an archive of loaded classes where there is one."""

    java: Java
    jars: Sequence[Path]
    archive: Path | None = None
    options: tuple[str, ...] = ()

    def command(self, *arguments: str) -> list[str]:
        shared = [f"-XX:SharedArchiveFile={self.archive}", "-Xlog:cds=off"] if self.archive else []
        path = os.pathsep.join(str(jar) for jar in self.jars)
        return [str(self.java.executable), *HEAP, *shared, *self.options, "-cp", path, *arguments]


def properties(layout: Layout, name: str, data: Path) -> dict[str, str]:
    """server.properties of one server."""
    common = {
        "controller.quorum.voters": f"{CONTROLLER_ID}@{layout.listens('controller')}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT,CLIENT:PLAINTEXT",
        "log.dirs": str(data),
        **broker_settings(ExactlyOnce("local")).values(),
        **QUICK_FAIL_OVER,
        **SMALL,
    }
    if name == "controller":
        return {
            **common,
            "process.roles": "controller",
            "node.id": str(CONTROLLER_ID),
            "listeners": f"CONTROLLER://{layout.listens(name)}",
        }
    internal = f"INTERNAL://{layout.listens(f'{name}-internal')}"
    return {
        **common,
        "process.roles": "broker",
        "node.id": name.removeprefix("broker-"),
        "listeners": f"{internal},CLIENT://{layout.listens(name)}",
        "advertised.listeners": f"{internal},CLIENT://{layout.tells_clients(name)}",
        "inter.broker.listener.name": "INTERNAL",
    }


class KafkaServer(Server):
    """A broker or the controller."""

    def __init__(self, directory: Path, name: str, layout: Layout, runtime: Callable[[], Runtime]) -> None:
        super().__init__(directory, name)
        self._layout = layout
        self._runtime = runtime

    @property
    def mark(self) -> Mark:
        return Mark("java", f"-Dkept.server={self.folder}")

    @property
    def address(self) -> str:
        return self._layout.listens(self.name)

    @property
    def id(self) -> int:
        return CONTROLLER_ID if self.name == "controller" else int(self.name.removeprefix("broker-"))

    @property
    def data(self) -> Path:
        """Where its logs are."""
        return self.folder / "data"

    @property
    def _configuration(self) -> Path:
        return self.folder / "server.properties"

    @property
    def has_data(self) -> bool:
        formatted = self.folder / "formatted"
        return formatted.exists() and formatted.read_text() == self._layout.cluster_id

    def configure(self) -> None:
        """Write server.properties anew; it holds nothing that is not derived."""
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = properties(self._layout, self.name, self.data)
        self._configuration.write_text("".join(f"{name}={_escaped(value)}\n" for name, value in rows.items()))

    def tools(self) -> list[psutil.Process]:
        return processes.find(Mark("java", f"-Dkept.tool={self.folder}"))

    def make_data(self) -> None:
        """Give an empty data directory its cluster's identity, by Kafka's own tool."""
        with write_errors_told(self.folder):
            if self.data.exists():
                shutil.rmtree(self.data)
        mark = (SHORT_LIVED, f"-Dkept.tool={self.folder}")
        format_it = ("kafka.tools.StorageTool", "format", "-t", self._layout.cluster_id, "-c", str(self._configuration))
        self.run_tool(self._java(*mark, *format_it), _environment(), "formatting its data directory")
        with write_errors_told(self.folder):
            (self.folder / "formatted").write_text(self._layout.cluster_id)

    def command(self) -> tuple[list[str], dict[str, str]]:
        quick = [SHORT_LIVED] if self.name == "controller" else []  # it carries no records
        server = ("kafka.Kafka", str(self._configuration))
        return self._java(*quick, f"-Dkept.server={self.folder}", *server), _environment()

    def answers(self) -> bool:
        """The controller: its port is open. A broker: it is registered and unfenced, so metadata lists it."""
        if self.name == "controller":
            with socket.socket() as probe:
                probe.settimeout(1)
                return probe.connect_ex((HOST, self._layout.ports["controller"])) == 0
        from kept.local.health import unfenced  # noqa: PLC0415 - a Kafka client is slow to import

        return self.id in unfenced(self._layout.internal_bootstrap)

    def _java(self, *arguments: str) -> list[str]:
        log4j = resources.files("kept.local").joinpath("log4j2.properties")
        return self._runtime().command(f"-Dlog4j2.configurationFile={log4j}", f"-Dkept.log={self.logs[0]}", *arguments)


def _escaped(value: str) -> str:
    """A value as Java reads it from a properties file: Latin-1, with backslashes of its own."""
    return "".join(
        "\\\\" if character == "\\" else character if " " <= character <= "~" else _unicode_escape(character)
        for character in value
    )


def _unicode_escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _environment() -> dict[str, str]:
    """Ours, in a locale in which Java can spell every path; KAFKA_ variables are meant for the user's own brokers."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
    return {**ours, "LC_ALL": "C.UTF-8"}
