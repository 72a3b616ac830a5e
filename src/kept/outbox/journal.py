"""The journal as its relay sees it: the file's side of `Backlog`, and what people ask of it besides."""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kept.errors import Fenced, FixMachine
from kept.outbox.backlog import WITHOUT_A_MARK, Entry, Lag, Standing
from kept.outbox.locks import beside
from kept.outbox.opening import Held, open_journal
from kept.outbox.rows import (
    HEAD,
    OVERHEAD,
    RECORD,
    REFUSED,
    State,
    contents_of,
    count_of,
    entries_of,
    head_of,
    is_whole,
    is_whole_refused,
    pack,
    record_rows,
    refused_row,
    seed,
    tag_of,
    written_of,
)
from kept.outbox.salvage import Damage
from kept.outbox.tables import INSERT_RECORD, INSERT_REFUSED, changing, connect, damaged, read_state, told, write_state

MOST_BYTES_AT_ONCE = 16 << 20
TRIMMED_AT_ONCE = 500
"""Rows that one transaction deletes: whoever sends meanwhile waits for it."""
_HEADS = f"SELECT position, substr(body, 1, {HEAD}), length(body) FROM records WHERE position >= ? ORDER BY position"  # noqa: S608


class RefusedRecord(NamedTuple):
    """A record that was set aside."""

    entry: Entry
    reason: str
    refused: int


class Journal:
    """One connection to a journal's file; any thread may use it."""

    def __init__(self, path: Path, *, create_missing: bool = True) -> None:
        self.path = path
        self._held: Held = open_journal(path, create_missing=create_missing)
        self._lock = threading.Lock()
        self._owner = str(uuid.uuid4())
        self._generation = 0
        try:
            self._connection = connect(path)
            self._identity = read_state(self._connection, path).identity
        except BaseException as failure:
            self._held.close()
            if isinstance(failure, sqlite3.Error):
                raise told(failure, path) from failure
            raise
        self._seed = seed(self._identity, RECORD)

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def damage(self) -> Damage | None:
        """What was found and mended when this process opened it."""
        return self._held.damage

    # What the relay asks.

    def standing(self) -> Standing:
        state = self.state()
        return Standing(state.generation, state.confirmed, state.attempted)

    def own(self, generation: int) -> None:
        with self._writing() as state:
            taken = state.generation == generation and state.owner not in ("", self._owner)
            if state.generation > generation or taken:
                raise _succeeded(self.path, state.generation, generation)
            write_state(self._connection, state._replace(generation=generation, owner=self._owner))
        self._generation = generation

    def own_without_a_mark(self) -> None:
        """Take over for somebody who leaves no mark in Kafka: at least once, or a person."""
        self.own(self.standing().generation + WITHOUT_A_MARK)

    def knows(self, position: int, tag: int) -> bool:
        with self._reading() as state:
            if position == 0 or (position, tag) == (state.confirmed, state.confirmed_tag):
                return True
            found = self._tag_at(position)
            return position <= state.salvaged if found is None else found == tag

    def end(self) -> int:
        return self.state().end

    def read(self, after: int, most: int) -> list[Entry]:
        entries: list[Entry] = []
        size = 0
        with self._reading() as state:
            after = max(after, state.confirmed)  # a row that goes on above that is still there as a whole
            asked = "SELECT * FROM records WHERE position > ? ORDER BY position"
            for row in self._connection.execute(asked, (after,)):
                last, body, _ = row
                if not is_whole(row, self._seed):
                    raise damaged(self.path, f"the row up to position {last}")
                size += len(body)
                if entries and size > MOST_BYTES_AT_ONCE:
                    break
                some = entries_of(last, body)
                entries += some if some[0].position > after else [each for each in some if each.position > after]
                if len(entries) >= most:
                    break
        return entries[:most]

    def attempt(self, up_to: int) -> None:
        with self._owning() as state:
            write_state(self._connection, state._replace(attempted=max(up_to, state.confirmed)))

    def trim(self, up_to: int) -> None:
        while not self._trimmed(up_to):
            pass

    def _trimmed(self, up_to: int) -> bool:
        """Some of it, from the oldest on; whether that was all. Of a row that goes on above it, nothing is deleted."""
        with self._owning() as state:
            if up_to <= state.confirmed:
                return True
            rows = self._connection.execute(f"{_HEADS} LIMIT ?", (0, TRIMMED_AT_ONCE)).fetchall()
            done = len(rows) < TRIMMED_AT_ONCE or rows[-1][0] >= up_to
            last = up_to if done else rows[-1][0]
            records = size = 0
            for position, head, length in rows:
                count = count_of(head)
                if state.confirmed <= position - count and position <= last:
                    records, size = records + count, size + length - HEAD
                elif position - count < last:
                    some = self._contents_at(position, state.confirmed, last)
                    records, size = records + len(some), size + sum(map(len, some))
            tag = self._tag_at(last)
            self._connection.execute("DELETE FROM records WHERE position <= ?", (last,))
            write_state(
                self._connection,
                state._replace(
                    records=state.records - records,
                    bytes=state.bytes - size - records * OVERHEAD,
                    confirmed=last,
                    confirmed_tag=state.confirmed_tag if tag is None else tag,
                    attempted=max(last, state.attempted),
                ),
            )
            return done

    def _contents_at(self, row: int, above: int, up_to: int) -> list[bytes]:
        contents = contents_of(row, self._body_at(row))
        return [content for position, content in contents.items() if above < position <= up_to]

    def _body_at(self, row: int) -> bytes:
        (body,) = self._connection.execute("SELECT body FROM records WHERE position = ?", (row,)).fetchone()
        return bytes(body)

    def _row_of(self, position: int) -> int | None:
        """The row that holds the record at this position; None when it does not wait."""
        found = self._connection.execute(f"{_HEADS} LIMIT 1", (position,)).fetchone()
        return found[0] if found is not None and found[0] - count_of(found[1]) < position else None

    def _tag_at(self, position: int) -> int | None:
        row = self._row_of(position)
        table, at = ("refused", position) if row is None else ("records", row)
        found = self._connection.execute(f"SELECT body FROM {table} WHERE position = ?", (at,)).fetchone()  # noqa: S608
        return None if found is None else tag_of(found[0])

    def refuse(self, entry: Entry, reason: str) -> None:
        with self._owning() as state:
            row = self._row_of(entry.position)
            if row is None or entry.position <= state.confirmed:
                return
            body = self._body_at(row)
            contents, head, now = contents_of(row, body), head_of(body), int(time.time() * 1000)
            alone = pack(*head, [contents[entry.position]])
            refused = refused_row(entry.position, alone, reason, now, seed(self._identity, REFUSED))
            self._connection.execute(INSERT_REFUSED, refused)
            self._connection.execute("DELETE FROM records WHERE position = ?", (row,))
            for positions in (range(min(contents), entry.position), range(entry.position + 1, row + 1)):
                left = [contents[position] for position in positions]
                self._connection.executemany(INSERT_RECORD, record_rows(self._seed, head, positions.start, left))
            size = len(contents[entry.position]) + OVERHEAD
            write_state(self._connection, state._replace(records=state.records - 1, bytes=state.bytes - size))

    def lag(self) -> Lag:
        with self._reading() as state:
            oldest = self._connection.execute("SELECT body FROM records ORDER BY position LIMIT 1").fetchone()
        age = 0.0 if oldest is None else max(0.0, time.time() - written_of(oldest[0]) / 1000)
        return Lag(state.records, state.bytes, age)

    def leave_word(self, error: str | None) -> None:
        """In the file of the relay's lock, of which only whose it is matters."""
        try:
            beside(self.path, "relay").write_text(f"{error}\n" if error else "")
        except OSError as failure:
            raise FixMachine(f"{self.path}-relay cannot be written", way_out="see to its folder") from failure

    # What people ask.

    def word(self) -> str | None:
        """What holds the relay up, or ended the last one, as far as it said."""
        try:
            return beside(self.path, "relay").read_text(errors="replace").strip() or None
        except OSError:
            return None

    def state(self) -> State:
        with self._reading() as state:
            return state

    def refused(self, most: int = 1 << 60) -> list[RefusedRecord]:
        """Records that were set aside, in their order."""
        with self._reading():
            asked = "SELECT * FROM refused ORDER BY position LIMIT ?"
            rows = self._connection.execute(asked, (most,)).fetchall()
        return [RefusedRecord(entries_of(row[0], row[1])[0], row[3], row[4]) for row in rows]

    def refused_count(self) -> int:
        with self._reading():
            return int(self._connection.execute("SELECT count(*) FROM refused").fetchone()[0])

    def damages(self) -> list[Damage]:
        """Every time that this journal was found damaged, and mended."""
        with self._reading():
            return [Damage(*row) for row in self._connection.execute("SELECT * FROM damages ORDER BY at")]

    def refused_for(self) -> Counter[str]:
        """How many records of which topic were set aside."""
        return Counter(each.entry.topic for each in self.refused())

    def redrive(self) -> int:
        """Put the refused records behind all that waits, in their order; how many. All or none, and each once.

        They get positions and a tag of their own, as any new record. Where they stood, their bytes are overwritten: a
        salvage would set them aside a second time."""
        with self._lock:
            self._connection.execute("PRAGMA secure_delete = ON")
        start, same = seed(self._identity, REFUSED), (secrets.randbits(63), int(time.time() * 1000))
        with self._writing() as before:
            state = before
            for row in self._connection.execute("SELECT * FROM refused ORDER BY position"):
                if not is_whole_refused(row, start):
                    raise damaged(self.path, f"the refused record at position {row[0]}")
                content = contents_of(row[0], row[1])[row[0]]
                state = state._replace(
                    end=state.end + 1, records=state.records + 1, bytes=state.bytes + len(content) + OVERHEAD
                )
                self._connection.executemany(INSERT_RECORD, record_rows(self._seed, same, state.end, [content]))
            redriven = int(self._connection.execute("DELETE FROM refused").rowcount)
            write_state(self._connection, state)
        return redriven

    def purge_refused(self) -> int:
        with self._writing():
            return int(self._connection.execute("DELETE FROM refused").rowcount)

    def purge_unsent(self) -> int:
        """Remove what waits, for good: its bytes are overwritten too, so that no salvage brings them back."""
        self.own_without_a_mark()
        waiting = self.state().records
        self._connection.execute("PRAGMA secure_delete = ON")
        end = self.end()
        self.attempt(end)
        self.trim(end)
        self.compact()
        return waiting

    def compact(self) -> None:
        """Give the space of what was removed back to the disk."""
        with self._lock:
            try:
                self._connection.execute("VACUUM")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as failure:
                raise told(failure, self.path) from failure

    def close(self) -> None:
        if self._held.is_forked():
            return  # the connection is the parent's
        with self._lock:
            self._connection.close()
            self._held.close()

    # How it is done.

    @contextmanager
    def _reading(self) -> Iterator[State]:
        """One look: everything that is read in the block is of the same moment."""
        self._held.refuse_if_changed()
        with self._lock:
            try:
                self._connection.execute("BEGIN")
                try:
                    yield read_state(self._connection, self.path)
                finally:
                    self._connection.execute("ROLLBACK")
            except sqlite3.Error as failure:
                raise told(failure, self.path) from failure

    @contextmanager
    def _writing(self) -> Iterator[State]:
        self._held.refuse_if_changed()
        with self._lock, changing(self._connection, self.path):
            yield read_state(self._connection, self.path)

    @contextmanager
    def _owning(self) -> Iterator[State]:
        """A change that only its owner may make."""
        with self._writing() as state:
            if (state.generation, state.owner) != (self._generation, self._owner):
                raise _succeeded(self.path, state.generation, self._generation)
            yield state


def _succeeded(path: Path, found: int, mine: int) -> Fenced:
    return Fenced(
        f"another relay has taken over the journal {path}: it is generation {found}, this is {mine}",
        way_out="stop this one; only one relay at a time may work on a journal",
    )
