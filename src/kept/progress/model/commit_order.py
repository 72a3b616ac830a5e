"""Rule 15: the ids of an outbox table are taken in one order and become visible in another."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar

from kept.progress.model.world import Chooser, Outcome, Worker, World, compare

KEYS = {"writer 1": "key a", "writer 2": "key a", "writer 3": "key b"}


@dataclass(frozen=True)
class Row:
    """One row of the outbox: its number, its key, and who wrote it."""

    id: int
    key: str
    writer: str


class CommitOrder(World):
    """Writers insert into an outbox table in transactions of their own; a relay publishes by rising id."""

    RULE: ClassVar[int] = 15
    SWITCHES: ClassVar[dict[str, tuple[str, ...]]] = {
        "read when no insert is open": ("lost",),
        "take the id after the row lock": ("reordered",),
        "a sequence without cache": ("lost",),
    }
    WORKERS: ClassVar[tuple[str, ...]] = (*KEYS, "the relay")

    def __init__(self, luck: Chooser, without: str = "") -> None:
        super().__init__(luck, without)
        self.sequence = 0
        self.locks: dict[str, str] = {}
        self.open: set[str] = set()
        self.committed: list[Row] = []
        self.published: list[Row] = []
        self.watermark = 0

    def worker(self, name: str) -> Worker:
        return self.relay() if name == "the relay" else self.writer(name)

    def writer(self, name: str) -> Worker:
        """Lock the key's row, take an id, insert, commit; a crash rolls back."""
        if any(row.writer == name for row in self.committed):
            return
        key = KEYS[name]
        early = self.without == "take the id after the row lock"
        try:
            row = Row((yield from self.take_id(name)) if early else 0, key, name)
            while self.locks.get(key, name) != name:
                yield f"waits for the row of {key}"
            self.locks[key] = name
            if not early:
                yield f"holds the row of {key} and inserts"
                row = replace(row, id=(yield from self.take_id(name)))
            yield f"commits its outbox row {row.id}"
            self.committed.append(row)
        finally:
            self.open.discard(name)
            if self.locks.get(key) == name:
                del self.locks[key]

    def take_id(self, name: str) -> Generator[str, None, int]:
        yield "takes the next id of the sequence"
        self.open.add(name)
        self.sequence += 1
        if self.without == "a sequence without cache":
            # Each session holds ten ids of its own: a later insert may get a smaller one.
            return 10 * (len(KEYS) - list(KEYS).index(name)) + self.sequence
        return self.sequence

    def relay(self) -> Worker:
        while len(self.published) < len(KEYS):
            yield "looks into the outbox"
            if self.open and self.without != "read when no insert is open":
                self.note("the lock timed out: inserts are open")
                continue
            everyone = len(self.committed) == len(KEYS)
            new = sorted((row for row in self.committed if row.id > self.watermark), key=lambda row: row.id)
            if new:
                self.watermark = new[-1].id
                self.published += new
            if everyone:
                return

    def judge(self) -> Outcome:
        outcome = compare(self.committed, self.published, self.stopped)
        swapped = tuple(key for key in sorted(set(KEYS.values())) if not self.in_order(key))
        return replace(outcome, reordered=swapped)

    def in_order(self, key: str) -> bool:
        """Whether what was published of a key came in the order of its commits."""
        published = [row for row in self.published if row.key == key]
        return published == [row for row in self.committed if row in published]
