"""The process of a thing under test, seen from outside: how far it is, its death, its sleep, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kept.errors import TryAgain
from kept.local.processes import kill_session
from kept.verify.trials.telling import DONE_SO_FAR
from kept.verify.trials.things import Task

LOOKS_AGAIN = 0.02
WITHIN = 120.0
STARTS_WITHIN = 300.0
"""A driver of Spark's, beside another one and their brokers on two cores: that it is slow shows nothing."""
BEGINS_WITHIN = 120.0


def standing() -> int:
    """How far somebody is of whom nothing can be asked: always as far as before."""
    return 0


class Life:
    """A process that plays a role, from its start to its end; it is killed when it is let go."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.history = Path(task.history)
        self.log = self.history.with_suffix(".log")
        self._read = 0
        self._begun = 0
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kept.verify.trials.worker", task.text()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for whoever watches; this one is ended by them
            )

    @property
    def begun(self) -> int:
        """How many records it has begun to send, by its own history."""
        if self.history.exists():
            with self.history.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read += len(whole)
            self._begun += whole.count(b'{"is":"begun"')
        return self._begun

    def wait_begun(self, records: int) -> None:
        """Until it has begun so many, and lives: a fault that strikes who has ended has shown nothing."""
        self.wait(lambda: self.begun >= records, f"{records} records begun", BEGINS_WITHIN, lambda: self.begun)
        self.refuse_ended(f"the fault that was to come after {records} records")

    def wait(
        self,
        condition: Callable[[], bool],
        awaited: str,
        within: float = WITHIN,
        how_far: Callable[[], int] = standing,
    ) -> None:
        """Until it is so, and it lives. `how_far`: then it is given the time again for as long as it gets further, for
        how long all of it takes is the machine's; it is asked at the end of each time only, as asking may cost.
        """
        far, deadline = how_far(), time.monotonic() + within
        while not condition():
            if self._process.poll() is not None and not condition():
                self.refuse_ended(awaited)
            if time.monotonic() > deadline:
                if (now := how_far()) == far:
                    raise TryAgain(f"not within {within:.0f} s: {awaited}", way_out="run it again on a quieter machine")
                far, deadline = now, time.monotonic() + within
            time.sleep(LOOKS_AGAIN)

    def refuse_ended(self, awaited: str) -> None:
        """It is an error for it to be over before this."""
        if self._process.poll() is not None:
            ended = f"the thing under test ended with code {self._process.returncode}"
            raise TryAgain(f"{ended} before: {awaited}; {self.last_words}", way_out="its log is beside its history")

    def end(self, within: float, how_far: Callable[[], int] = standing) -> int | None:
        """Wait until it ends by itself; its exit code, or None when it did not end in time, as for `wait`."""
        far = how_far()
        while True:
            try:
                return self._process.wait(within)
            except subprocess.TimeoutExpired:
                if (now := how_far()) == far:
                    return None
                far = now

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: alive and deaf."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, for it and for what it has started: no handler runs, nothing is flushed, nobody is told."""
        kill_session(self._process.pid)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    @property
    def done(self) -> int:
        """How many records it says to have done; -1 while it has not begun to work. A driver of Spark says first what
        it does, beginning with its name; a processor says only that it has its first record.
        """
        lines = self.said.splitlines()
        done = [int(line.removeprefix(DONE_SO_FAR)) for line in lines if line.startswith(DONE_SO_FAR)]
        at_work = any(line.startswith(f"{self.task.name}:") for line in lines)
        return done[-1] if done else 0 if at_work else -1

    def wait_done(self, records: int) -> None:
        """Until it has done so many; 0: until it is at work."""
        self.wait(lambda: self.done >= records, f"{records} records done", STARTS_WITHIN, lambda: self.done)

    @property
    def said(self) -> str:
        """All that it has written to its log."""
        return self.log.read_text(errors="replace")

    @property
    def last_words(self) -> str:
        words = self.said.strip().splitlines()[-3:]
        return " / ".join(words) or "it said nothing"

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, number)
