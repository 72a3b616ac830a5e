"""What an error of Postgres leaves the caller to do, as an error of our tree; decided by SQLSTATE, not by its words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg

from kept.errors import FixConfiguration, KeptError, PersonMustLook, Refused, TryAgain
from kept.progress import Fate, fate_of_sqlstate

_STOPS: dict[str, tuple[type[KeptError], str]] = {
    "25P02": (
        FixConfiguration,
        "an error inside a transaction ends it; to go on after one, use connection.transaction()",
    ),
    "25P03": (
        TryAgain,
        "nothing was written: make chunks smaller, or allow the handler longer pauses with idle_within",
    ),
    "25006": (
        FixConfiguration,
        "this server only reads: add target_session_attrs=read-write and every host to the DSN",
    ),
    "28": (FixConfiguration, "check the user and the password of the DSN"),
    "3D": (FixConfiguration, "create the database, or correct its name in the DSN"),
    "42501": (FixConfiguration, "grant the role of the DSN the right that it lacks"),
    "42": (FixConfiguration, "correct the statement, or make the table or column that it names"),
}
_LOCK_TIMED_OUT = "55P03"
_CANNOT_CONNECT_EVER = ("authentication failed", "does not exist", "pg_hba.conf", "no password supplied")


def fate_of(error: psycopg.Error) -> Fate:
    """Rule 14. Without a SQLSTATE the server said nothing: data that cannot be sent, or a connection that is gone."""
    if error.sqlstate == _LOCK_TIMED_OUT:
        return Fate.RETRY
    if error.sqlstate is not None:
        return fate_of_sqlstate(error.sqlstate)
    if isinstance(error, pg.DataError):
        return Fate.REFUSED
    return Fate.RETRY if isinstance(error, pg.OperationalError) else Fate.STOP


def told(error: psycopg.Error, doing: str) -> KeptError:
    """The error of our tree for an error that ended a transaction before its COMMIT: nothing was written."""
    fate, state = fate_of(error), error.sqlstate
    what = f"{doing}: {reason(error)}"
    if fate is Fate.REFUSED:
        return Refused(
            what,
            way_out="set the record aside (a pipeline with dead_letters does, kept.stores.isolated finds it), "
            "or change the table",
        )
    if fate is Fate.RETRY:
        return TryAgain(what, way_out="nothing was written: try again, from the progress that is recorded")
    for known, (kind, way_out) in _STOPS.items():
        if state is not None and state.startswith(known):
            return kind(what, way_out=way_out)
    return PersonMustLook(what, way_out="nothing was written; look at the statement and at the server's log")


@contextmanager
def told_as(doing: str) -> Iterator[None]:
    """Errors of psycopg in this block, as errors of our tree."""
    try:
        yield
    except psycopg.Error as error:
        raise told(error, doing) from error


def told_connecting(error: psycopg.Error) -> KeptError:
    """The error of our tree for a connection that did not come about; libpq gives no SQLSTATE here, only words."""
    what = f"Postgres cannot be reached: {reason(error)}"
    if not isinstance(error, pg.OperationalError) or any(words in what for words in _CANNOT_CONNECT_EVER):
        return FixConfiguration(what, way_out="check the host, the user and the database of the DSN")
    return TryAgain(what, way_out="try again when the server is up")


def reason(error: psycopg.Error) -> str:
    """What the server said, in one line."""
    words = " ".join(str(error).split()) or type(error).__name__
    return f"{words} (SQLSTATE {error.sqlstate})" if error.sqlstate else words
