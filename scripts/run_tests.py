"""Run the tests. When a signal ends them, what is needed to find out why comes last.

    python scripts/run_tests.py [--all | ARGUMENTS OF PYTEST]

Without arguments those that are not marked slow, with --all every one, in three processes beside each other: each has
servers of its own, and waits for them most of the time. What one prints is shown when it has ended.

A library in C that gives up writes a line, aborts, and every thread's stack is printed after it: more than is kept in
some places. pytest itself would take that line along: it captures what libraries write, unless told not to. So what is
written to standard error is kept here; of tests that end in order, nobody needs it.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

FATAL, THREAD = "Fatal Python error", "Current thread"
RUNNING = "KEPT_RUNNING_TEST"
"""tests/conftest.py writes the name of each test into the file that this names."""
IN_ORDER = (0, 1)
"""pytest's exit codes when every test was run."""
APART = {"without servers": ("tests/pure", "tests/contract"), "Spark": ("tests/spark",)}
LANES = {**APART, "brokers": ("tests", *(f"--ignore={each}" for lane in APART.values() for each in lane))}


def gist(errors: Iterable[str]) -> list[str]:
    """What was written before a crash, and where the thread that crashed was; or just the end of it."""
    lines = list(errors)
    fatal = next((at for at, line in enumerate(lines) if line.startswith(FATAL)), len(lines))
    thread = next((at for at, line in enumerate(lines) if line.startswith(THREAD)), len(lines))
    return [*lines[max(0, fatal - 20) : fatal + 1], *lines[thread : thread + 10]]


class Lane:
    """One process of pytest; what one of several prints is kept until it has ended."""

    def __init__(self, arguments: Sequence[str], folder: Path, name: str = "") -> None:
        self.name = name
        self._running, self._said = folder / "running", folder / "said"
        folder.mkdir()
        self._errors: deque[str] = deque(maxlen=10_000)
        command = [sys.executable, "-m", "pytest", "--capture=sys", *arguments]
        with self._said.open("w") as said:
            self._tests = subprocess.Popen(
                command,
                stdout=said if name else None,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, RUNNING: str(self._running)},
            )
        errors = self._tests.stderr or ()
        self._reader = threading.Thread(target=lambda: self._errors.extend(errors), daemon=True)
        self._reader.start()

    def where(self) -> str:
        """For whoever waits: the test that it is at."""
        return self._running.read_text().rpartition("/")[2] if self._running.exists() else f"{self.name} begins"

    def has_ended(self) -> bool:
        return self._tests.poll() is not None

    def end(self) -> int:
        """Wait for it, and tell what it said: its exit code, or 128 and the signal."""
        code = self._tests.wait()
        self._reader.join(5)  # what a test left running may hold the pipe open
        print(self._said.read_text(), end="", flush=True)
        if code < 0:
            name = self._running.read_text() if self._running.exists() else "no test"
            print(f"\nThe tests were ended by {signal.Signals(-code).name} in {name}.", file=sys.stderr)
        if code not in IN_ORDER:
            print(*gist(self._errors), sep="", file=sys.stderr)
        return code if code >= 0 else 128 - code


def leave_interrupts_to_pytest() -> None:
    """It hears them too, and ends in order. Not before it was started: it would inherit this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def all_lanes(which: Sequence[str]) -> int:
    """The exit code of the first one that did not end well."""
    with tempfile.TemporaryDirectory() as place:
        options = [*which, "-p", "no:cacheprovider", "--durations=15"]
        lanes = [Lane([*paths, *options], Path(place) / name, name) for name, paths in LANES.items()]
        leave_interrupts_to_pytest()
        begun, shown, codes = time.monotonic(), 0, []
        while lanes:
            time.sleep(1)
            minutes = int(time.monotonic() - begun) // 60
            for lane in [each for each in lanes if each.has_ended()]:
                print(f"\n== {lane.name}, ended after {minutes} minutes", flush=True)
                codes.append(lane.end())
                lanes.remove(lane)
            if lanes and minutes > shown:
                shown = minutes
                print(f"[{minutes} min] {'; '.join(each.where() for each in lanes)}", flush=True)
        return next((code for code in codes if code), 0)


def main() -> int:
    given = sys.argv[1:]
    if not given or given == ["--all"]:
        return all_lanes([] if given else ["-m", "not slow"])
    with tempfile.TemporaryDirectory() as place:
        lane = Lane(given, Path(place) / "only")
        leave_interrupts_to_pytest()
        return lane.end()


if __name__ == "__main__":
    sys.exit(main())
