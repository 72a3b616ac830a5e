"""Run the tests. When a signal ends them, what is needed to find out why comes last.

    python scripts/run_tests.py [ARGUMENTS OF PYTEST]

Without arguments all of them, in two processes: what needs few servers or none is run beside the rest, and is shown
when it has ended.

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
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

FATAL, THREAD = "Fatal Python error", "Current thread"
RUNNING = "KEPT_RUNNING_TEST"
"""tests/conftest.py writes the name of each test into the file that this names."""
IN_ORDER = (0, 1)
"""pytest's exit codes when every test was run."""
LIGHT = ("tests/pure", "tests/contract")
REST = ("tests", *(f"--ignore={each}" for each in LIGHT))


def gist(errors: Iterable[str]) -> list[str]:
    """What was written before a crash, and where the thread that crashed was; or just the end of it."""
    lines = list(errors)
    fatal = next((at for at, line in enumerate(lines) if line.startswith(FATAL)), len(lines))
    thread = next((at for at, line in enumerate(lines) if line.startswith(THREAD)), len(lines))
    return [*lines[max(0, fatal - 20) : fatal + 1], *lines[thread : thread + 10]]


class Lane:
    """One process of pytest; `quiet`: what it prints is kept until it has ended."""

    def __init__(self, arguments: Sequence[str], folder: Path, *, quiet: bool = False) -> None:
        self._running, self._said = folder / "running", folder / "said"
        self._errors: deque[str] = deque(maxlen=10_000)
        command = [sys.executable, "-m", "pytest", "--capture=sys", *arguments]
        with self._said.open("w") as said:
            self._tests = subprocess.Popen(
                command,
                stdout=said if quiet else None,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, RUNNING: str(self._running)},
            )
        errors = self._tests.stderr or ()
        self._reader = threading.Thread(target=lambda: self._errors.extend(errors), daemon=True)
        self._reader.start()

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


def main() -> int:
    """The exit code of the first process that did not end well."""
    given = sys.argv[1:]
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as another:
        lanes = [Lane(given or REST, Path(place))]
        if not given:
            lanes.insert(0, Lane([*LIGHT, "-q", "-p", "no:cacheprovider"], Path(another), quiet=True))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # pytest hears it too, and ends in order
        return next((code for code in [lane.end() for lane in lanes] if code), 0)


if __name__ == "__main__":
    sys.exit(main())
