"""A pipeline's driver as a user starts it, `kept run FILE.toml`, in a session of its own that can die as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from kept.local.processes import kill_session

WORDS_TOLD = 6
DONE = b"done"


class Driver:
    """Runs until the end of what is there, or until it is killed; `with` leaves nothing of it."""

    def __init__(self, file: Path, environment: Mapping[str, str]) -> None:
        self._log = file.with_suffix(".log")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kept", "run", str(file), "--available-now"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=file.parent,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._lifeline = subprocess.Popen(
            [sys.executable, "-m", "kept.demo.lifeline", str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def ended(self) -> bool:
        """It is not collected yet, so that nobody else can have its number."""
        look = os.WEXITED | os.WNOWAIT | os.WNOHANG
        return self._process.returncode is not None or os.waitid(os.P_PID, self._process.pid, look) is not None

    def kill(self) -> int:
        """Everything of it at once; its exit code, if it had ended before."""
        if self._process.returncode is None:
            kill_session(self._process.pid)
            self._process.wait()
            self._lifeline.communicate(DONE)
        return self._process.returncode

    def last_words(self) -> str:
        words = self._log.read_text(errors="replace").splitlines()
        return "\n    ".join(words[-WORDS_TOLD:]) or "nothing"

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
