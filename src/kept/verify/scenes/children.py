"""A process that the scenes start and kill: what it says line by line, and its death without a word."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence

from kept.errors import TryAgain

SAID_WITHIN = 60.0
REMEMBERED = 5


class Child:
    """`python -m kept.verify.scenes.worker` with these arguments; it ends when its standard input does."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kept.verify.scenes.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is for whoever watches; this one is ended by them
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._last: deque[str] = deque(maxlen=REMEMBERED)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def hear(self, word: str, within: float = SAID_WITHIN) -> str:
        """Wait for a line that begins with this word; the rest of it."""
        deadline = time.monotonic() + within
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TryAgain(
                    f"the consumer did not say {word!r} within {within:.0f} s; last: {self._words()}",
                    way_out="play the scene again on a machine with less to do",
                ) from None
            if line is None:
                raise TryAgain(
                    f"the consumer ended before it said {word!r}; last: {self._words()}",
                    way_out="its last words say why; play the scene again",
                )
            self._last.append(line)
            if line.split(" ")[0] == word:
                return line[len(word) :].strip()

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed, nobody is told. One that ended by itself is only collected."""
        self._process.kill()
        self._process.wait()
        self._reading.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def end(self, within: float = SAID_WITHIN) -> None:
        """Wait until it has ended by itself, well."""
        try:
            code = self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise TryAgain(
                f"the consumer did not end within {within:.0f} s; last: {self._words()}",
                way_out="play the scene again on a machine with less to do",
            ) from None
        if code != 0:
            raise TryAgain(
                f"the consumer ended with code {code}; last: {self._words()}", way_out="its last words say why"
            )

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _words(self) -> str:
        while not self._lines.empty():
            self._last.append(self._lines.get_nowait() or "(ended)")
        return " / ".join(self._last) or "nothing"
