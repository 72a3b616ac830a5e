"""The local cluster: one controller, three brokers and a Postgres in one directory, brought up and down as one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kept.errors import FixConfiguration, ServerNotStarted
from kept.local import layout as layouts
from kept.local import processes
from kept.local.kafka import KafkaServer, Runtime
from kept.local.layout import Layout
from kept.local.places import cluster_directory, only_one, write_errors_told
from kept.local.ports import BROKERS, USUAL, USUAL_PORTS, Ports
from kept.local.postgres import PostgresServer
from kept.local.processes import State
from kept.local.runtime import prepared
from kept.local.server import READY_WITHIN, Server

Say = Callable[[str], None]
SERVERS = ("controller", *(f"broker-{number}" for number in BROKERS), "postgres")
OURS = ("cluster.json", "cluster.json.part", *SERVERS, "logs", ".gitignore", "lock")


@dataclass(frozen=True)
class ServerStatus:
    """One server as seen now."""

    name: str
    state: State
    pid: int | None
    address: str


class Cluster:
    """A Kafka of three brokers and a Postgres in one directory of this machine."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = cluster_directory(directory)
        if "," in str(self.directory):
            raise FixConfiguration(
                f"Kafka cannot keep its data in {self.directory}: it takes a comma for the end of a path",
                way_out="choose another directory with --dir",
            )

    @property
    def layout(self) -> Layout:
        found = layouts.load(self.directory)
        if found is None:
            raise FixConfiguration(f"there is no cluster in {self.directory}", way_out="`kept up` makes one")
        return found

    @property
    def bootstrap(self) -> str:
        """Where Kafka's clients begin."""
        return self.layout.bootstrap

    @property
    def dsn(self) -> str:
        """Where Postgres' clients connect."""
        return self.layout.dsn

    def broker(self, number: int) -> KafkaServer:
        if number not in BROKERS:
            raise FixConfiguration(f"there is no broker {number}", way_out=f"the brokers are {BROKERS}")
        return self._kafka(f"broker-{number}")

    @property
    def controller(self) -> KafkaServer:
        return self._kafka("controller")

    @property
    def postgres(self) -> PostgresServer:
        return PostgresServer(self.directory, self.layout)

    def server(self, name: str) -> Server:
        """One server by its name, as `status` shows it."""
        known = {server.name: server for server in self._servers(self.layout)}
        if name not in known:
            raise FixConfiguration(f"there is no server {name!r}", way_out=f"the servers are {', '.join(known)}")
        return known[name]

    def status(self) -> list[ServerStatus]:
        servers = self._servers(self.layout)
        return [ServerStatus(each.name, each.state(), each.pid(), each.address) for each in servers]

    def up(
        self,
        *,
        fresh: bool = False,
        ports: Ports = USUAL,
        advertised: Mapping[int, str] | None = None,
        say: Say = lambda _text: None,
    ) -> None:
        """Have everything running and ready; what runs already is left alone.

        `advertised` is what brokers tell their clients instead of where they listen, for a proxy in between;
        it stays until another mapping is given.
        """
        runtime = prepared(say)
        self._refuse_what_is_not_ours()
        with self._alone():
            if fresh:
                self._wipe(say)
            layout = self._arranged(ports, advertised, say)
            servers = self._servers(layout, lambda: runtime)
            with self._undone_on_failure(servers):
                self._make_ready(servers, say)
                self._start(servers, layout, say)

    def down(self, say: Say = lambda _text: None) -> None:
        """Leave nothing running, whatever state it is in; the data stays."""
        if (self.directory / "lock").exists():
            with self._alone():
                self._stop_all(say)
        else:
            self._stop_all(say)

    def _kafka(self, name: str) -> KafkaServer:
        return KafkaServer(self.directory, name, self.layout, prepared)

    def _servers(self, layout: Layout, runtime: Callable[[], Runtime] = prepared) -> list[Server]:
        *kafka, _ = SERVERS
        brokers = [KafkaServer(self.directory, name, layout, runtime) for name in kafka]
        return [*brokers, PostgresServer(self.directory, layout)]

    def _alone(self) -> AbstractContextManager[None]:
        return only_one(self.directory / "lock", f"starting or stopping the cluster in {self.directory}")

    def _refuse_what_is_not_ours(self) -> None:
        """`--dir .` must not turn somebody's project into a cluster, nor `--fresh` wipe it."""
        if not self.directory.exists() or (self.directory / "cluster.json").exists():
            return
        with write_errors_told(self.directory):
            foreign = sorted(entry.name for entry in self.directory.iterdir() if entry.name not in OURS)
        if foreign:
            raise FixConfiguration(
                f"{self.directory} holds no cluster, and is not empty ({', '.join(foreign[:3])})",
                way_out="choose a new or empty directory, such as --dir .kept",
            )

    def _arranged(self, ports: Ports, advertised: Mapping[int, str] | None, say: Say) -> Layout:
        """The cluster's layout for this run: found or made, on ports that are free or already its own."""
        found = layouts.load(self.directory)
        if found is None:
            self._wipe(say)  # what is left of a cluster that was removed, or wiped halfway
        layout = found or Layout(layouts.new_cluster_id(), ports.preferred())
        running = {server.name for server in self._servers(layout) if server.state() is not State.STOPPED}
        told = layout.advertised if advertised is None else {f"broker-{n}": at for n, at in advertised.items()}
        self._refuse_to_move(running, told != layout.advertised or ports.first is not None)
        layout = replace(layout, ports=ports.arrange(layout.ports, running, say), advertised=dict(told))
        with write_errors_told(self.directory):
            layouts.save(self.directory, layout)
        return layout

    def _refuse_to_move(self, running: Collection[str], other_addresses: bool) -> None:
        brokers = sorted(name for name in running if name.startswith("broker-"))
        if other_addresses and brokers:
            raise FixConfiguration(
                f"{', '.join(brokers)} cannot change their addresses while they run",
                way_out="`kept down` first",
            )

    def _make_ready(self, servers: list[Server], say: Say) -> None:
        """Write configurations, and make the data directories that are missing, side by side."""
        with write_errors_told(self.directory):
            for server in servers:
                server.configure()
        missing = [server for server in servers if not server.has_data]
        if not missing:
            return
        say("making the data directories")
        for server in missing:
            processes.kill(server.tools())  # of a command that was killed while it did the same
        with ThreadPoolExecutor(len(missing)) as pool:
            for done in [pool.submit(server.make_data) for server in missing]:
                done.result()

    def _start(self, servers: list[Server], layout: Layout, say: Say) -> None:
        for server in servers:
            state = server.state()
            if state is State.PAUSED:
                say(f"{server.name} was paused: resuming it")
                server.resume()
            elif state is State.STOPPED:
                say(f"starting {server.name} on {server.address}")
                server.launch()
        deadline = time.monotonic() + READY_WITHIN
        for server in servers:
            server.wait_ready(deadline - time.monotonic())
        _wait_for_internal_topics(layout, deadline)

    @contextmanager
    def _undone_on_failure(self, servers: list[Server]) -> Iterator[None]:
        """When starting fails or is interrupted, stop what this call started."""
        before = {server.name for server in servers if server.state() is not State.STOPPED}
        try:
            yield
        except BaseException:
            for server in servers:
                if server.name not in before:
                    server.kill()
            raise

    def _stop_all(self, say: Say) -> None:
        """Brokers first: without a controller a broker waits minutes for leave to stop."""
        nowhere = Layout("", dict(USUAL_PORTS))  # marks need no ports, and cluster.json may be damaged
        controller, *brokers, postgres = self._servers(nowhere)
        running = [server for server in (controller, *brokers, postgres) if server.processes()]
        if running:
            say(f"stopping {', '.join(server.name for server in running)}")
        patience = brokers[0].stops_within if controller.state() is State.RUNNING else 1.0
        leaving = [process for broker in brokers for process in broker.processes()]
        processes.kill(tool for server in (controller, *brokers, postgres) for tool in server.tools())
        with ThreadPoolExecutor(1) as pool:
            database = pool.submit(postgres.end)
            processes.stop(leaving, brokers[0].stop_signal, within=patience)
            controller.end()
            database.result()

    def _wipe(self, say: Say) -> None:
        """Remove what kept made here, and nothing else; cluster.json first, so that a half-wiped one is none."""
        self._stop_all(say)
        for name in OURS:
            entry = self.directory / name
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif name != "lock":
                entry.unlink(missing_ok=True)


def _wait_for_internal_topics(layout: Layout, deadline: float) -> None:
    from kept.local.health import internal_topics_led  # noqa: PLC0415 - a Kafka client is slow to import

    while not internal_topics_led(layout.internal_bootstrap):
        if time.monotonic() > deadline:
            raise ServerNotStarted(
                f"the internal topics had no leaders within {READY_WITHIN:.0f} s",
                way_out="`kept logs` shows why; `kept up --fresh` starts over without the data",
            )
        time.sleep(0.1)
