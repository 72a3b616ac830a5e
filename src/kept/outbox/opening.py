"""Opening a journal: made if missing, checked byte by byte by whoever is the first to open it, mended if damaged."""

from __future__ import annotations

import logging
import os
import sqlite3
import struct
import time
import uuid
from pathlib import Path

from kept.errors import FixConfiguration, KeptError, PersonMustLook, SourceChanged
from kept.outbox.locks import Lock, beside, synced
from kept.outbox.pages import MAGIC, PAGE
from kept.outbox.rows import RECORD, REFUSED, State, count_of, is_whole, is_whole_refused, seed
from kept.outbox.salvage import Damage, Ruins, forget, put_in_place, salvage, uuids_in, whose
from kept.outbox.tables import APPLICATION, STATE_PAGE, VERSION, connect, create, read_state, told

logger = logging.getLogger("kept")


class Held:
    """A journal's file, checked, and a share of its lock for as long as it is used."""

    def __init__(self, path: Path, lock: Lock, damage: Damage | None) -> None:
        self.path = path
        self.damage = damage
        self._lock = lock
        self._process = os.getpid()
        self._file = _number_of(path)

    def is_forked(self) -> bool:
        return os.getpid() != self._process

    def refuse_if_forked(self) -> None:
        """SQLite's connections, locks and threads do not survive a fork."""
        if self.is_forked():
            raise FixConfiguration(
                f"the journal {self.path} was opened by another process, before a fork",
                way_out="open it in each process, after the fork",
            )

    def refuse_if_changed(self) -> None:
        """Before every use: a file that was removed or replaced would take records and never be read again."""
        self.refuse_if_forked()
        if _number_of(self.path) != self._file:
            raise PersonMustLook(
                f"the journal {self.path} was removed or replaced while it was in use",
                way_out="put the file back, or open it anew; what was sent before is in the file that was there",
            )

    def close(self) -> None:
        self._lock.close()


def open_journal(path: Path, *, create_missing: bool = True) -> Held:
    """Make, check or mend the file, then share it."""
    if not path.parent.is_dir():
        raise FixConfiguration(f"there is no folder {path.parent}", way_out="make it, or choose another path")
    if not create_missing and not path.exists() and not beside(path, "identity").exists():
        raise FixConfiguration(f"there is no journal {path}", way_out="check the path; kept.Outbox(path) makes one")
    _refuse_strange(path)
    lock = Lock(beside(path, "identity"))
    try:
        damage = None
        if lock.alone():
            put_in_place(path)
            damage = _made_or_checked(path, lock)
        lock.shared()
        _refuse_replaced(path, lock.read())
        return Held(path, lock, damage)
    except BaseException:
        lock.close()
        raise


def _refuse_strange(path: Path) -> None:
    """A file that is no journal is left alone. One with an identity beside it is ours, however it looks."""
    if not path.exists() or beside(path, "identity").exists():
        return
    if not path.is_file() or not _is_ours(_header(path)):
        raise FixConfiguration(f"{path} is not a journal of kept", way_out="choose another path")


def _made_or_checked(path: Path, lock: Lock) -> Damage | None:
    """Alone with the file."""
    identity = lock.read()
    if not path.exists():
        if identity:
            raise PersonMustLook(
                f"the journal {path} is gone, and what waited in it; its identity is still in {lock.path}",
                way_out=f"put the file back with its -wal, or remove {lock.path} to begin a new journal",
            )
        _make(path, lock)
        return None
    wanted = identity or _identity_in(path)
    ruins = Ruins(path, wanted)
    if wanted:
        _refuse_another(path, wanted, ruins)
    what = _what_is_wrong(path, ruins)
    if what is None:
        if not identity:
            lock.write(_identity_of(path))
        return None
    damage = salvage(path, wanted)
    lock.write(wanted)
    logger.error(
        "the journal %s was damaged (%s): %d records are intact and kept; lost: %s; the damaged file is now %s",
        path, what, damage.kept, damage.lost or "none", damage.moved_to,
    )  # fmt: skip
    return damage


def _refuse_another(path: Path, identity: str, ruins: Ruins) -> None:
    """Rule 13: what is intact of another journal is not damage of this one, whether in the file or in its log."""
    for page in ruins.pages(STATE_PAGE):
        if whose(page) not in ("", identity):
            raise _another(path, identity, whose(page))
    if ruins.state(STATE_PAGE) is None:  # another's state may be damaged too, but not all of its rows
        for other in {each for page in ruins.pages(STATE_PAGE) for each in uuids_in(page)} - {identity}:
            if any(Ruins(path, other).rows()):
                raise _another(path, identity, other)


def _refuse_replaced(path: Path, identity: str) -> None:
    """Also where others have the journal open, who checked it before: by its name, SQLite would mix the new file with
    the log of the old one."""
    found = whose(_state_page(path)) if path.exists() else ""
    if found not in ("", identity):
        raise _another(path, identity, found)


def _another(path: Path, wanted: str, found: str) -> SourceChanged:
    beside_it = beside(path, "identity")
    return SourceChanged(
        f"the journal at {path} is {wanted} by {beside_it}, and what is there, with its -wal, is of {found}",
        way_out=f"end every process that has it open, and put the file of {wanted} back with its -wal; or, to use "
        f"{found} here on purpose, remove {beside_it}: its records are then sent, and those of {wanted} are not",
    )


def _make(path: Path, lock: Lock) -> None:
    """Under another name first: a journal that is there is whole. A crash leaves a name that the next one reuses."""
    new = beside(path, "new")
    forget(new)
    state = State(str(uuid.uuid4()), int(time.time() * 1000))
    try:
        create(new, state).close()
        synced(new)
        new.rename(path)
        synced(path.parent)
    except sqlite3.Error as failure:
        raise told(failure, path) from failure
    lock.write(state.identity)


def _what_is_wrong(path: Path, ruins: Ruins) -> str | None:
    """Everything that can be checked; the log first, since SQLite cuts it off at the first bad frame."""
    header = _header(path)
    if not _is_ours(header):
        return "its header is not a journal's"
    if (version := struct.unpack_from(">I", header, 60)[0]) > VERSION:
        raise FixConfiguration(
            f"the journal {path} was written by a newer kept (form {version}, this one knows {VERSION})",
            way_out="upgrade kept",
        )
    if version < VERSION:
        raise FixConfiguration(
            f"the journal {path} was written by an older kept (form {version}, this one writes {VERSION})",
            way_out="relay what is in it with that version, then begin a new one",
        )
    state = ruins.state(STATE_PAGE)
    if state is None:
        return "its state is not as it was written"
    if ruins.lost_by_sqlite(state.end):
        return "commits stand behind a bad place in its log"
    try:
        connection = connect(path, read_only=True)
        try:
            return _what_sqlite_finds(connection, path)
        finally:
            connection.close()
    except sqlite3.Error as failure:
        return str(failure)


def _what_sqlite_finds(connection: sqlite3.Connection, path: Path) -> str | None:
    found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        return str(found)
    try:
        state = read_state(connection, path)
    except KeptError as error:
        return error.what
    start, count = seed(state.identity, RECORD), 0
    for row in connection.execute("SELECT * FROM records"):
        if not is_whole(row, start):
            return f"the row up to position {row[0]} is not as it was written"
        count += max(0, min(count_of(row[1]), row[0] - state.confirmed))
    if count != state.records:
        return f"{count} records are there, and {state.records} should be"
    start = seed(state.identity, REFUSED)
    for row in connection.execute("SELECT * FROM refused"):
        if not is_whole_refused(row, start):
            return f"the refused record at position {row[0]} is not as it was written"
    return None


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(100)


def _is_ours(header: bytes) -> bool:
    return len(header) == 100 and header.startswith(MAGIC) and struct.unpack_from(">I", header, 68)[0] == APPLICATION


def _identity_of(path: Path) -> str:
    connection = connect(path)
    try:
        return read_state(connection, path).identity
    finally:
        connection.close()


def _identity_in(path: Path) -> str:
    """The identity by the file alone, by its bytes; empty when it cannot be read."""
    page = _state_page(path)
    return whose(page) or next(iter(uuids_in(page)), "")


def _state_page(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek((STATE_PAGE - 1) * PAGE)
        return file.read(PAGE)


def _number_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
