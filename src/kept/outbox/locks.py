"""Who uses a journal: a lock beside it that every process shares, and that one holds alone to check or mend the file.

The lock's file also keeps the journal's identity, as a second copy in case the first is damaged. A lock ends with its
process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from kept.errors import Busy, FixMachine

LOCKED_WITHIN = 60.0


def beside(path: Path, word: str) -> Path:
    """A file that belongs to a journal: its name is the journal's, and a word."""
    return path.with_name(f"{path.name}-{word}")


class Lock:
    """A file that is locked for as long as it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failure:
            raise FixMachine(
                f"{path} cannot be opened: {failure.strerror}", way_out="see that the folder is there and writable"
            ) from failure

    def alone(self) -> bool:
        """Take it alone; False when anybody else has it."""
        return self._take(fcntl.LOCK_EX)

    def shared(self) -> None:
        """Take it together with others; whoever has it alone is waited for."""
        deadline = time.monotonic() + LOCKED_WITHIN
        while not self._take(fcntl.LOCK_SH):
            if time.monotonic() > deadline:
                raise Busy(
                    f"another process has been checking the journal of {self.path} for {LOCKED_WITHIN:.0f} s",
                    way_out="wait until it is done; a large journal takes a while",
                )
            time.sleep(0.02)

    def _take(self, how: int) -> bool:
        try:
            fcntl.flock(self._file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def read(self) -> str:
        return os.pread(self._file, 200, 0).decode(errors="replace").strip()

    def write(self, text: str) -> None:
        """Durably, in one piece: it is short."""
        os.pwrite(self._file, text.encode() + b"\n", 0)
        os.ftruncate(self._file, len(text) + 1)
        os.fsync(self._file)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def synced(path: Path) -> None:
    """What was written to a file, or done in a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
