"""One server of the local cluster: what can be done to any of them, whatever it serves."""

from __future__ import annotations

import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from kept.errors import DiskFull, FixMachine, PortTaken, ServerNotStarted
from kept.local import processes
from kept.local.places import only_one
from kept.local.processes import Mark, State

READY_WITHIN = 120.0
SIGNAL_WITHIN = 5.0
TOOL_WITHIN = 120.0
LOG_LINES_SHOWN = 12


class Server(ABC):
    """A server process with a name, a mark, a log and a folder of its own."""

    stop_signal = signal.SIGTERM
    stops_within = 20.0

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.folder = directory / name
        self._lock = directory / "lock"
        self._log_starts: dict[Path, int] = {}
        self._launched: int | None = None
        self.logs: tuple[Path, ...] = (directory / "logs" / f"{name}.log", directory / "logs" / f"{name}.out")

    @property
    @abstractmethod
    def mark(self) -> Mark:
        """What tells this server's process from any other."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it listens."""

    @property
    @abstractmethod
    def has_data(self) -> bool:
        """Is its data directory made, and of this cluster?"""

    @abstractmethod
    def make_data(self) -> None:
        """Make the data directory, whole or not at all; an attempt that was killed midway is thrown away."""

    @abstractmethod
    def tools(self) -> list[psutil.Process]:
        """What still works on the data directory for a command that was killed meanwhile."""

    @abstractmethod
    def command(self) -> tuple[list[str], dict[str, str]]:
        """The command line that starts it, and its environment."""

    @abstractmethod
    def configure(self) -> None:
        """Write what it reads at its start."""

    @abstractmethod
    def answers(self) -> bool:
        """Is it ready to serve, asked over the network?"""

    def processes(self) -> list[psutil.Process]:
        """Every living process of this server."""
        return processes.find(self.mark)

    def state(self) -> State:
        return processes.state(self.mark)

    def pid(self) -> int | None:
        return next((process.pid for process in processes.find(self.mark)), None)

    def launch(self) -> None:
        """Start the process; do not wait."""
        self._log_starts = {path: path.stat().st_size for path in self.logs if path.exists()}
        command, environment = self.command()
        self._launched = processes.start(command, self.logs[-1], environment)

    def start(self) -> None:
        """Start or resume it unless it runs, and wait until it answers."""
        with self._alone():
            self._up()

    def stop(self) -> None:
        """Stop it in good order; what does not stop in time is killed."""
        with self._alone():
            self.end()

    def restart(self) -> None:
        with self._alone():
            self.end()
            self._up()

    def end(self) -> None:
        """Stop it, for those who hold the cluster's lock already."""
        processes.stop(self.processes(), self.stop_signal, within=self.stops_within)

    def _up(self) -> None:
        self.resume()
        if self.state() is State.STOPPED:
            self.launch()
        self.wait_ready()

    def _alone(self) -> AbstractContextManager[None]:
        return only_one(self._lock, f"starting or stopping the servers beside {self.folder}")

    def kill(self) -> None:
        """SIGKILL: no good-byes, as a crash would be."""
        processes.kill(self.processes())

    def pause(self) -> None:
        """SIGSTOP: alive but deaf, as a long pause of the machine would be."""
        processes.send(self.processes(), signal.SIGSTOP)
        self._wait_until_not(State.RUNNING)

    def resume(self) -> None:
        """SIGCONT: the pause is over; a zombie wakes up."""
        processes.send(self.processes(), signal.SIGCONT)
        self._wait_until_not(State.PAUSED)

    def wait_ready(self, within: float = READY_WITHIN) -> None:
        """Wait until it answers; a server that died meanwhile is told with the end of its log."""
        deadline = time.monotonic() + within
        while not self.answers():
            if self.state() is State.STOPPED and not processes.lives(self._launched):
                raise self._not_started("died while starting")
            if time.monotonic() > deadline:
                raise self._not_started(f"did not answer on {self.address} within {within:.0f} s")
            time.sleep(0.1)

    def _wait_until_not(self, state: State) -> None:
        """A signal takes effect when every thread has heard it, not when it is sent."""
        deadline = time.monotonic() + SIGNAL_WITHIN
        while self.state() is state and time.monotonic() < deadline:
            time.sleep(0.01)

    def log_tail(self, lines: int) -> list[str]:
        """The last lines of its log, then of what it printed."""
        return self._tail(lines, {})

    def run_tool(self, command: list[str], environment: dict[str, str], doing: str) -> None:
        """Run a program that works on the data directory; its failure is told."""
        try:
            result = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=TOOL_WITHIN,
            )
        except subprocess.TimeoutExpired as error:
            raise self.explained(f"did not end {doing} within {TOOL_WITHIN:.0f} s", "") from error
        if result.returncode != 0:
            output = f"{result.stderr}{result.stdout}".strip()
            raise self.explained(f"failed at {doing}: {output}", output)

    def _tail(self, lines: int, starts: Mapping[Path, int]) -> list[str]:
        tail: list[str] = []
        for path in self.logs:
            if path.exists():
                data = path.read_bytes()
                start = starts.get(path, 0)
                fresh = data[start:] if start <= len(data) else data  # it was rolled over meanwhile
                tail += fresh.decode(errors="replace").splitlines()[-lines:]
        return tail[-lines:]

    def _not_started(self, what: str) -> FixMachine:
        """Only what was written since this start counts: an older line would blame an older trouble."""
        last = "\n    ".join(self._tail(LOG_LINES_SHOWN, self._log_starts))
        return self.explained(f"{what}; its log ends with\n    {last}", "\n".join(self._tail(200, self._log_starts)))

    def explained(self, what: str, output: str) -> FixMachine:
        """The error for a server that failed so, by what it or its tool wrote."""
        if "Address already in use" in output:
            return PortTaken(
                f"{self.name} found {self.address} taken", way_out="run `kept up` again: it chooses another"
            )
        if "No space left on device" in output:
            return DiskFull(
                f"the disk under {self.folder} is full: {self.name} cannot start", way_out="free some space"
            )
        return ServerNotStarted(
            f"{self.name} {what}",
            way_out=f"`kept logs {self.name}` shows more; `kept up --fresh` starts over without the data",
        )
