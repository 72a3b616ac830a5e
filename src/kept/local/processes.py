"""Server processes: started apart from us, recognised by what they are, stopped for certain.

There are no pid files. A process is ours when it runs our program with our directory among its
arguments, as the kernel tells it: a number left over from a crash can never point at a stranger.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import psutil

from kept.errors import FixMachine
from kept.local.places import write_errors_told


class State(Enum):
    """What a server process is doing."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Mark:
    """What tells our process from a stranger's: its program, and one argument that nobody else has."""

    program: str
    argument: str

    def fits(self, command: Sequence[str]) -> bool:
        return bool(command) and Path(command[0]).name == self.program and self.argument in command[1:]


def find(mark: Mark) -> list[psutil.Process]:
    """The living processes with this mark."""
    processes = psutil.process_iter(["cmdline"])
    return [process for process in processes if mark.fits(process.info["cmdline"] or ())]


def state(mark: Mark) -> State:
    """Running, paused by SIGSTOP, or not there."""
    for process in find(mark):
        with contextlib.suppress(psutil.NoSuchProcess):
            status = process.status()
            if status != psutil.STATUS_ZOMBIE:
                return State.PAUSED if status == psutil.STATUS_STOPPED else State.RUNNING
    return State.STOPPED


def lives(pid: int | None) -> bool:
    """Whether a process that we have started has not ended, whatever it is called by now.

    What starts as one program and becomes another has its mark only then; on a busy machine that takes a while.
    """
    try:
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those that are still there."""
    for process in processes:
        _signal(process, number)


def start(command: list[str], output: Path, environment: Mapping[str, str]) -> int:
    """Start a server in a session of its own: it outlives us, and Ctrl-C here does not reach it."""
    with write_errors_told(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.posix_spawn(
            command[0],
            command,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(output), append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE),
        )


def kill(processes: Iterable[psutil.Process], *, within: float = 10.0) -> None:
    """SIGKILL, and wait until they are gone."""
    targets = list(processes)
    send(targets, signal.SIGKILL)
    _gone(targets, within)


def stop(processes: Iterable[psutil.Process], number: signal.Signals, *, within: float) -> None:
    """Ask to stop, wake what is paused so that it can hear it, wait; then SIGKILL what is left."""
    targets = list(processes)
    for process in targets:
        _signal(process, number)
        _signal(process, signal.SIGCONT)
    kill(_gone(targets, within))


def kill_session(session: int) -> None:
    """SIGKILL for every process of a session, and none is left: a driver, its JVM, and workers in groups of their own.

    As when a machine dies: no handler runs, nothing is flushed, nobody is told.
    """
    while living := [pid for pid in psutil.pids() if _lives_in(pid, session)]:
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _lives_in(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, PermissionError, psutil.Error):
        return False


def _signal(process: psutil.Process, number: signal.Signals) -> bool:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied as error:
        raise FixMachine(
            f"process {process.pid} ({process.name()}) belongs to {process.username()}",
            way_out="run this command as that user",
        ) from error
    return True


def _gone(processes: list[psutil.Process], within: float) -> list[psutil.Process]:
    """Wait for the end of these; what is still there afterwards.

    The wait is in short steps: psutil alone would wait in vain for a zombie that its parent never asks
    after (a container's first process seldom does), or for a stranger who has the number by now.
    """
    deadline = time.monotonic() + within
    alive = processes
    while alive := [process for process in alive if _lives(process)]:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        _, alive = psutil.wait_procs(alive, timeout=min(left, 0.1))
    psutil.wait_procs([process for process in processes if process.is_running()], timeout=0)  # reap our children
    return alive


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
