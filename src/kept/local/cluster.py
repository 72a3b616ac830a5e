"""The local cluster: one controller, three brokers and a Postgres in one directory, brought up and down as one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
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

        `advertised` is what a broker tells its clients instead of where it listens, for a proxy in between.
        """
        runtime = prepared(say)
        with self._alone("starting or stopping"):
            if fresh:
                self._wipe(say)
            layout = self._arranged(ports, advertised or {}, say)
            servers = self._servers(layout, lambda: runtime)
            with self._undone_on_failure(servers):
                self._make_ready(servers, say)
                self._start(servers, layout, say)

    def down(self, say: Say = lambda _text: None) -> None:
        """Leave nothing running, whatever state it is in; the data stays."""
        if not self.directory.exists():
            self._stop_all(say)
            return
        with self._alone("starting or stopping"):
            self._stop_all(say)

    def _kafka(self, name: str) -> KafkaServer:
        return KafkaServer(self.directory, name, self.layout, prepared)

    def _servers(self, layout: Layout, runtime: Callable[[], Runtime] = prepared) -> list[Server]:
        names = ["controller", *(f"broker-{number}" for number in BROKERS)]
        kafka = [KafkaServer(self.directory, name, layout, runtime) for name in names]
        return [*kafka, PostgresServer(self.directory, layout)]

    def _alone(self, doing: str) -> AbstractContextManager[None]:
        return only_one(self.directory / "lock", f"{doing} the cluster in {self.directory}")

    def _arranged(self, ports: Ports, advertised: Mapping[int, str], say: Say) -> Layout:
        """The cluster's layout for this run: found or made, on ports that are free or already its own."""
        found = layouts.load(self.directory)
        if found is None:
            self._stop_all(say)  # of a cluster whose directory was removed under it
        layout = found or Layout(layouts.new_cluster_id(), ports.preferred())
        running = {server.name for server in self._servers(layout) if server.state() is not State.STOPPED}
        chosen = ports.arrange(layout.ports, running, say)
        told = {f"broker-{number}": address for number, address in advertised.items()}
        layout = replace(layout, ports=chosen, advertised={**layout.advertised, **told})
        with write_errors_told(self.directory):
            layouts.save(self.directory, layout)
        return layout

    def _make_ready(self, servers: list[Server], say: Say) -> None:
        """Write configurations, and make the data directories that are missing, side by side."""
        steps: list[Callable[[], None]] = []
        with write_errors_told(self.directory):
            for server in servers:
                if isinstance(server, PostgresServer):
                    steps.append(server.initialise)
                elif isinstance(server, KafkaServer):
                    server.configure()
                    steps += [] if server.formatted else [server.format]
        if len(steps) > 1:
            say("making the data directories")
        with ThreadPoolExecutor(len(steps)) as pool:
            for done in [pool.submit(step) for step in steps]:
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
        with ThreadPoolExecutor(1) as pool:
            database = pool.submit(postgres.stop)
            processes.stop(leaving, brokers[0].stop_signal, within=patience)
            controller.stop()
            database.result()

    def _wipe(self, say: Say) -> None:
        self._stop_all(say)
        for entry in self.directory.iterdir():
            if entry.name != "lock":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _wait_for_internal_topics(layout: Layout, deadline: float) -> None:
    from kept.local.health import internal_topics_led  # noqa: PLC0415 - a Kafka client is slow to import

    while not internal_topics_led(layout.internal_bootstrap):
        if time.monotonic() > deadline:
            raise ServerNotStarted(
                f"the internal topics had no leaders within {READY_WITHIN:.0f} s",
                way_out="`kept logs` shows why; `kept up --fresh` starts over without the data",
            )
        time.sleep(0.1)
