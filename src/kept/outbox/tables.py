"""The tables of a journal, and the connections that make what is written to them durable."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kept.errors import DiskFull, FixMachine, KeptError, OutcomeUnknown, PersonMustLook, TryAgain
from kept.outbox.pages import PAGE
from kept.outbox.rows import State

APPLICATION = 0x6B657074
"""Stands in the header of every journal: "kept"."""
VERSION = 2
LOCKED_WITHIN = 30.0
_RECORD = "position INTEGER PRIMARY KEY, body BLOB NOT NULL, checksum INTEGER NOT NULL"
STATE_COLUMNS = ", ".join(State._fields)
# The state is the first table, and its only row never grows out of one page: page 2.
STATE_PAGE = 2
_TABLES = (
    f"CREATE TABLE state ({STATE_COLUMNS}, checksum)",
    f"CREATE TABLE records ({_RECORD})",
    f"CREATE TABLE refused ({_RECORD}, reason TEXT NOT NULL, refused INTEGER NOT NULL)",
    "CREATE TABLE damages (at INTEGER NOT NULL, moved_to TEXT NOT NULL, kept INTEGER NOT NULL, lost TEXT NOT NULL)",
)
_SELECT_STATE = f"SELECT {STATE_COLUMNS}, checksum FROM state"  # noqa: S608 - names of our own
_UPDATE_STATE = f"UPDATE state SET {', '.join(f'{name} = ?' for name in State._fields)}, checksum = ?"  # noqa: S608
INSERT_RECORD = "INSERT INTO records VALUES (?, ?, ?)"
INSERT_REFUSED = "INSERT OR IGNORE INTO refused VALUES (?, ?, ?, ?, ?)"


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection whose commits are on the disk when they return; used by one thread at a time."""
    mode = "ro" if read_only else "rw"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=LOCKED_WITHIN,
        check_same_thread=False,
    )
    if not read_only:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # where fsync alone leaves it in the disk's own memory (macOS)
        connection.execute("PRAGMA checkpoint_fullfsync = ON")
    return connection


def create(path: Path, state: State) -> sqlite3.Connection:
    """A journal without records, in a file that is not there yet."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA page_size = {PAGE}")
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        connection.close()
        raise FixMachine(
            f"{path} is on a file system that has no shared memory", way_out="put the journal on a local disk"
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    for table in _TABLES:
        connection.execute(table)
    connection.execute(f"INSERT INTO state VALUES ({', '.join('?' * (len(state) + 1))})", (*state, state.checksum()))  # noqa: S608
    connection.execute("COMMIT")
    return connection


def read_state(connection: sqlite3.Connection, path: Path) -> State:
    """Who the journal is, how much it holds, how far its relays came."""
    found = connection.execute(_SELECT_STATE).fetchall()
    state = State(*found[0][:-1]) if len(found) == 1 else None
    if state is None or state.checksum() != found[0][-1]:
        raise damaged(path, "its state")
    return state


def write_state(connection: sqlite3.Connection, state: State) -> None:
    connection.execute(_UPDATE_STATE, (*state, state.checksum()))


@contextmanager
def changing(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """One transaction, alone in the file: durable when the block is left, undone when it raises."""
    done = False
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        done = True
        connection.execute("COMMIT")
    except BaseException as failure:
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        if isinstance(failure, sqlite3.Error):
            raise (_in_doubt(failure, path) if done else None) or told(failure, path) from failure
        raise


def damaged(path: Path, what: str) -> PersonMustLook:
    return PersonMustLook(
        f"the journal {path} is damaged: {what} is not as it was written",
        way_out="end every process that has it open and open it again: what is intact is then moved to a new file",
    )


def _in_doubt(failure: sqlite3.Error, path: Path) -> OutcomeUnknown | None:
    """A disk that failed while it was told to keep the last bytes: they may be there after the next start."""
    if "I/O" not in str(failure):
        return None
    return OutcomeUnknown(
        f"whether {path} has the record is not known: {failure}",
        way_out="see to the disk, open the journal again, and look with `kept outbox inspect` before you send it again",
    )


def told(failure: sqlite3.Error, path: Path) -> KeptError:
    """The error of our tree for one of SQLite's, where nothing was written."""
    code = getattr(failure, "sqlite_errorname", "") or _name_of(failure)
    if code.startswith("SQLITE_FULL"):
        return DiskFull(f"no room to write to {path}", way_out="free some space; what is in the journal is intact")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return TryAgain(
            f"{path} stayed locked for {LOCKED_WITHIN:.0f} s", way_out="see who writes to it, and try again"
        )
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return damaged(path, str(failure))
    return FixMachine(f"{path} cannot be used: {failure}", way_out="see that its disk is there, whole, and writable")


def _name_of(failure: sqlite3.Error) -> str:
    """Python 3.10 has only the text."""
    texts = {
        "locked": "SQLITE_BUSY",
        "full": "SQLITE_FULL",
        "malformed": "SQLITE_CORRUPT",
        "not a database": "SQLITE_NOTADB",
    }
    return next((name for text, name in texts.items() if text in str(failure)), "")
