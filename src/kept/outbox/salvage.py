"""A damaged journal: every record that is intact moves to a new file, and what is missing is told.

The new file keeps the identity, the positions and the tags, because Kafka's position belongs to them: what was relayed
before is not sent again, and what was not is sent. New records are numbered from far above every position that may have
been lost, so that none of them is taken for one that Kafka has already. The damaged file is kept, under another name.

1. The new file is written under a name of its own. The damaged one gets its second name.
2. The new file is renamed to `-salvaged`: from here on it is the journal, whatever happens.
3. The damaged file's log goes, so that it is never applied to the new file; the new file takes the place.
A process that dies in between: whoever opens the journal next does the third step, or begins anew.
"""

from __future__ import annotations

import mmap
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from kept.errors import PersonMustLook
from kept.outbox.locks import beside, synced
from kept.outbox.pages import PAGE, Log, cells, read_log
from kept.outbox.rows import (
    HEAD,
    OVERHEAD,
    RECORD,
    REFUSED,
    RecordRow,
    State,
    contents_of,
    head_of,
    is_whole,
    is_whole_refused,
    record_rows,
    seed,
)
from kept.outbox.tables import INSERT_RECORD, INSERT_REFUSED, create, write_state

JUMP = 1 << 32
"""More records than a file can have lost."""


class Damage(NamedTuple):
    """What became of a damaged journal."""

    at: int
    """Milliseconds since 1970."""
    moved_to: str
    kept: int
    """Records that were intact, waiting and refused ones."""
    lost: str
    """What is missing, in words; empty when nothing is."""


class Ruins:
    """The bytes of a damaged journal, and whatever in them is whole."""

    def __init__(self, path: Path, identity: str) -> None:
        self._identity = identity
        self._main = _bytes_of(path)
        self._log_bytes = _bytes_of(beside(path, "wal"))
        self._log: Log = read_log(self._log_bytes)

    def rows(self) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
        """Every row that is whole, and its kind; those that SQLite would still see come first."""
        as_seen, with_beyond = self._log.seen, {**self._log.seen, **self._log.beyond}
        for number in range(2, max([len(self._main) // PAGE, *as_seen]) + 1):
            yield from self._of_page(number, as_seen)
        for number in self._log.beyond:
            yield from self._of_page(number, with_beyond)

    def lost_by_sqlite(self, end: int) -> bool:
        """Whether commits stand behind a bad frame of the log, with records that SQLite would leave out."""
        everything = {**self._log.seen, **self._log.beyond}
        found = (row for number in self._log.beyond for row in self._of_page(number, everything))
        return any(kind == RECORD and row[0] > end for kind, row in found)

    def state(self, page: int) -> State | None:
        """The state as SQLite would see it; None when it is not whole."""
        for kind, row in self._of_page(page, self._log.seen):
            if kind not in (RECORD, REFUSED):
                return State(*row)
        return None

    def pages(self, number: int) -> list[bytes]:
        """A page in the file by itself, and as SQLite would see it."""
        return [self._page(number, {}), self._page(number, self._log.seen)]

    def _page(self, number: int, places: dict[int, int]) -> bytes:
        at = places.get(number)
        if at is not None:
            return self._log_bytes[at : at + PAGE]
        return self._main[(number - 1) * PAGE : number * PAGE] if number > 0 else b""

    def _of_page(self, number: int, places: dict[int, int]) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
        for position, columns in cells(self._page(number, places), lambda other: self._page(other, places)):
            found = _whole(position, columns, self._identity)
            if found is not None:
                yield found


def whose(page: bytes) -> str:
    """The identity of the journal whose state stands in this page, whole; else empty."""
    for _, columns in cells(page, lambda _: b""):
        if len(columns) == len(State._fields) + 1 and _is_state(columns):
            return str(columns[0])
    return ""


def uuids_in(page: bytes) -> list[str]:
    """What may be an identity in a page that is not whole; the first is the likeliest."""
    found = []
    for at in range(len(page) - 36):
        text = page[at : at + 36]
        if text[8:9] == text[13:14] == text[18:19] == b"-" and _is_uuid(text):
            found.append(text.decode())
    return found


def _is_state(columns: list[Any]) -> bool:
    with suppress(TypeError, AttributeError):
        return bool(State(*columns[:-1]).checksum() == columns[-1])
    return False


def _is_uuid(text: bytes) -> bool:
    try:
        return str(uuid.UUID(text.decode())) == text.decode()
    except ValueError:
        return False


def _whole(position: int, columns: list[Any], identity: str) -> tuple[bytes, tuple[Any, ...]] | None:
    row = (position, *columns[1:])
    if len(columns) == 3 and is_whole(row, seed(identity, RECORD)):
        return RECORD, row
    if len(columns) == 5 and is_whole_refused(row, seed(identity, REFUSED)):
        return REFUSED, row
    if len(columns) == len(State._fields) + 1 and columns[0] == identity and _is_state(columns):
        return b"state", tuple(columns[:-1])
    return None


def _bytes_of(path: Path) -> bytes:
    """The content of a file, without reading it into memory; empty when there is none."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # type: ignore[return-value]
    except (FileNotFoundError, ValueError):
        return b""


def salvage(path: Path, identity: str) -> Damage:
    """Build the new file, and put it in the place of the damaged one. Nobody else has the journal open."""
    if not identity:
        raise PersonMustLook(
            f"the journal {path} is damaged, and so is its identity: whether a record was relayed cannot be known",
            way_out=f"restore {path} or {beside(path, 'identity')} from a copy; nothing was changed",
        )
    now = int(time.time() * 1000)
    ruins, new = Ruins(path, identity), beside(path, "new")
    aside = beside(path, f"damaged-{now}")
    forget(new)
    damage = _rebuilt(ruins, new, State(identity, now), aside)
    for word in ("", "-wal"):
        with suppress(FileNotFoundError):
            os.link(f"{path}{word}", f"{aside}{word}")
    new.rename(beside(path, "salvaged"))
    synced(path.parent)
    put_in_place(path)
    return damage


def put_in_place(path: Path) -> None:
    """The last step; also for whoever finds a salvage that was cut short after its second step."""
    ready = beside(path, "salvaged")
    if ready.exists():
        for word in ("wal", "shm"):
            beside(path, word).unlink(missing_ok=True)
        ready.rename(path)
        synced(path.parent)


def forget(path: Path) -> None:
    """Remove a file of SQLite's with what belongs to it."""
    for each in (path, beside(path, "wal"), beside(path, "shm"), beside(path, "journal")):
        each.unlink(missing_ok=True)


def _rebuilt(ruins: Ruins, new: Path, born: State, aside: Path) -> Damage:
    known = _latest(row for kind, row in ruins.rows() if kind not in (RECORD, REFUSED))
    state = born if known is None else known
    connection = create(new, state)
    connection.execute("BEGIN IMMEDIATE")
    refused = connection.executemany(INSERT_REFUSED, (row for kind, row in ruins.rows() if kind == REFUSED)).rowcount
    waiting = INSERT_RECORD.replace("INSERT", "INSERT OR IGNORE", 1)
    rows = (row for kind, row in ruins.rows() if kind == RECORD)
    connection.executemany(waiting, _one_by_one(rows, state.confirmed, seed(state.identity, RECORD)))
    connection.execute("DELETE FROM records WHERE position IN (SELECT position FROM refused)")
    kept, size, last = connection.execute(
        f"SELECT count(*), total(length(body) - {HEAD} + {OVERHEAD}), coalesce(max(position), 0) FROM records"  # noqa: S608
    ).fetchone()
    lost = _told_lost(known, kept, last)
    end = max(state.end, state.attempted, last) + JUMP
    write_state(
        connection,
        state._replace(
            end=end,
            records=kept,
            bytes=int(size),
            salvaged=end,
            # Without a state nobody knows what was given to brokers: only Kafka's own position can tell.
            attempted=state.attempted if known else last,
        ),
    )
    damage = Damage(born.born, str(aside), kept + max(refused, 0), lost)
    connection.execute("INSERT INTO damages VALUES (?, ?, ?, ?)", damage)
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    synced(new)
    return damage


def _one_by_one(rows: Iterable[tuple[Any, ...]], above: int, start: int) -> Iterator[RecordRow]:
    """Each record in a row of its own: ruins may also have a row as it was before one of its records was refused."""
    for last, body, _ in rows:
        for position, content in contents_of(last, body).items():
            if position > above:
                yield from record_rows(start, head_of(body), position, [content])


def _latest(states: Iterable[tuple[Any, ...]]) -> State | None:
    return max((State(*each) for each in states), key=lambda state: (state.end, state.confirmed), default=None)


def _told_lost(state: State | None, kept: int, last: int) -> str:
    if state is None:
        return "how many records are missing is not known: the journal's state was damaged too"
    missing = max(0, state.records - kept)
    if last > state.end:
        missing = 0  # it was written after the state that was found
    if not missing:
        return ""
    return f"{missing} of {state.records} records that waited, with positions from {state.confirmed + 1} to {state.end}"
