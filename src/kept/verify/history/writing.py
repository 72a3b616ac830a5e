"""Appends events to a history, so that what was written outlives the process that wrote it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from kept.errors import DiskFull, FixConfiguration
from kept.verify.history.events import Event, as_line


class Recorder:
    """One process's file of a history. A line is with the kernel before `write` returns: kill -9 does not lose it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            raise FixConfiguration(
                f"{path} is somebody's history already", way_out="every process writes to a file of its own"
            ) from None

    @staticmethod
    def now() -> float:
        """Seconds since 1970, as brokers and Postgres on the same machine have them."""
        return time.time()

    def write(self, *events: Event) -> None:
        self.write_all(events)

    def write_all(self, events: Iterable[Event]) -> None:
        """Many at once cost little more than one."""
        data = "".join(map(as_line, events)).encode()
        while data:
            try:
                data = data[os.write(self._file, data) :]
            except OSError as error:
                raise DiskFull(
                    f"the history {self.path} cannot be written: {error.strerror}",
                    way_out="make room, and run it again",
                ) from error

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
