"""One server of the local cluster: what can be done to any of them, whatever it serves."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path

import psutil

from kept.errors import DiskFull, PortTaken, ServerNotStarted
from kept.local import processes
from kept.local.processes import Mark, State

READY_WITHIN = 60.0
LOG_LINES_SHOWN = 12


class Server(ABC):
    """A server process with a name, a mark, a log and a folder of its own."""

    stop_signal = signal.SIGTERM
    stops_within = 20.0

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.folder = directory / name
        self.logs = (directory / "logs" / f"{name}.log", directory / "logs" / f"{name}.out")

    @property
    @abstractmethod
    def mark(self) -> Mark:
        """What tells this server's process from any other."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it listens."""

    @abstractmethod
    def launch(self) -> None:
        """Start the process; do not wait."""

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

    def start(self) -> None:
        """Start it unless it runs, and wait until it answers."""
        if self.state() is State.STOPPED:
            self.launch()
        self.wait_ready()

    def stop(self) -> None:
        """Stop it in good order; what does not stop in time is killed."""
        processes.stop(self.processes(), self.stop_signal, within=self.stops_within)

    def kill(self) -> None:
        """SIGKILL: no good-byes, as a crash would be."""
        processes.kill(self.processes())

    def pause(self) -> None:
        """SIGSTOP: alive but deaf, as a long pause of the machine would be."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: the pause is over; a zombie wakes up."""
        self._send(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def wait_ready(self, within: float = READY_WITHIN) -> None:
        """Wait until it answers; a server that died meanwhile is told with the end of its log."""
        deadline = time.monotonic() + within
        while not self.answers():
            if self.state() is State.STOPPED:
                raise self._not_started("died while starting")
            if time.monotonic() > deadline:
                raise self._not_started(f"did not answer on {self.address} within {within:.0f} s")
            time.sleep(0.1)

    def log_tail(self, lines: int) -> list[str]:
        """The last lines of its log, then of what it printed."""
        tail: list[str] = []
        for path in self.logs:
            if path.exists():
                tail += path.read_text(errors="replace").splitlines()[-lines:]
        return tail[-lines:]

    def _send(self, number: signal.Signals) -> None:
        for process in self.processes():
            process.send_signal(number)

    def _not_started(self, what: str) -> ServerNotStarted | PortTaken | DiskFull:
        tail = self.log_tail(200)
        text = "\n".join(tail)
        if "Address already in use" in text:
            return PortTaken(
                f"{self.name} {what}: {self.address} is taken",
                way_out="run `kept up` again: it chooses another",
            )
        if "No space left on device" in text:
            return DiskFull(
                f"{self.name} {what}: the disk under {self.folder} is full",
                way_out="free some space, then `kept up`",
            )
        last = "\n    ".join(line for line in tail[-LOG_LINES_SHOWN:])
        return ServerNotStarted(
            f"{self.name} {what}; its log ends with\n    {last}",
            way_out=f"`kept logs {self.name}` shows more; `kept up --fresh` starts over without the data",
        )
