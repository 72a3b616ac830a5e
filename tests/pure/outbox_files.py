"""What tests of the journal's file share: journals to harm, and copies as a dead process leaves them."""

from __future__ import annotations

import shutil
from pathlib import Path

from kept.outbox import Outbox, Sending
from kept.outbox.backlog import Entry
from kept.outbox.journal import Journal
from kept.outbox.locks import beside

SMALL, LARGE = 200, 3
"""Records of a few bytes, and records that fill several pages each."""


def fill(outbox: Outbox, count: int = SMALL) -> None:
    for number in range(count):
        outbox.send("numbers", str(number), key=str(number % 7), headers={"n": str(number)})
    for number in range(LARGE):
        outbox.send("large", bytes([65 + number]) * 20_000, partition=1, timestamp=1_700_000_000_000 + number)


def entries(path: Path) -> list[Entry]:
    """Everything that waits, as a relay would read it."""
    journal = Journal(path, create_missing=False)
    try:
        found: list[Entry] = []
        while some := journal.read(found[-1].position if found else 0, 50):
            found += some
        return found
    finally:
        journal.close()


def as_left_by_a_dead_process(path: Path, folder: Path) -> Path:
    """The files at this moment, without what only a living process has."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / path.name
    for word in ("wal", "identity"):
        if beside(path, word).exists():
            shutil.copy(beside(path, word), beside(copy, word))
    shutil.copy(path, copy)
    return copy


def two_generations(folder: Path) -> tuple[Path, list[Entry]]:
    """A journal of which half is in the file and half in its log, as a dead process left it."""
    path = folder / "made" / "outbox.db"
    path.parent.mkdir(parents=True)
    with Outbox(path) as outbox:
        fill(outbox)
    with Outbox(path) as outbox:
        fill(outbox, 60)
        outbox.send_all([Sending("numbers", str(number)) for number in range(40)])
        copy = as_left_by_a_dead_process(path, folder / "dead")
    return copy, entries(path)
