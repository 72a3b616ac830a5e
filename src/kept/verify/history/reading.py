"""Reads the files of a history back; a torn last line is kept out and told, any other damage is an error."""

from __future__ import annotations

from pathlib import Path

from kept.errors import FixConfiguration
from kept.verify.history.events import Event, from_line
from kept.verify.history.view import History


def read_history(folder: Path) -> History:
    """The history in a folder: every `*.jsonl` in it, together."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise FixConfiguration(f"there is no history in {folder}", way_out="name a directory that `kept verify` made")
    events: list[Event] = []
    torn: list[str] = []
    for file in files:
        events += _events(file, torn)
    return History(events, torn)


def _events(file: Path, torn: list[str]) -> list[Event]:
    try:
        *lines, rest = file.read_bytes().split(b"\n")
    except OSError as error:
        raise FixConfiguration(f"{file} cannot be read: {error.strerror}", way_out="look at its rights") from error
    if rest:  # no newline: whoever wrote it was killed in the middle
        torn.append(f"{file.name}, line {len(lines) + 1}: {rest[:80].decode(errors='backslashreplace')}")
    events: list[Event] = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(from_line(line.decode()))
        except ValueError as error:
            raise FixConfiguration(
                f"{file}, line {number}, is damaged: {error}",
                way_out="a history is never changed after it was written; run the scenario again",
            ) from error
    return events
