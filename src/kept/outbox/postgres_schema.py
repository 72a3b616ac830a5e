"""The tables of the Postgres outbox: made once, recognised later, refused when they are not what they must be."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

from kept.errors import FixConfiguration
from kept.outbox.postgres import no_outbox
from kept.stores.sessions import Session, transaction
from kept.stores.sql_errors import told_as
from kept.stores.tables import MAKING_TABLES

VERSION = 1
OLDEST_POSTGRES = 140000
_RECORD = {
    "topic": "text",
    "key": "bytea",
    "value": "bytea",
    "header_names": "text[]",
    "header_values": "bytea[]",
    "partition": "integer",
    "timestamp_ms": "bigint",
    "tag": "bigint",
    "written_at": "timestamp with time zone",
}
_TIME = "timestamp with time zone"
COLUMNS = {
    "kept_outbox": {"id": "bigint", **_RECORD},
    "kept_outbox_order": {"position": "bigint", "id": "bigint"},
    "kept_outbox_refused": {"position": "bigint", **_RECORD, "reason": "text", "refused_at": _TIME},
    "kept_outbox_standing": {
        "single": "boolean",
        "generation": "bigint",
        "owner": "text",
        "confirmed": "bigint",
        "confirmed_tag": "bigint",
        "attempted": "bigint",
        "relay_error": "text",
        "updated_at": _TIME,
    },
    "kept_outbox_identity": {
        "single": "boolean",
        "identity": "uuid",
        "version": "integer",
        "epoch": "bigint",
        "made_at": _TIME,
    },
}
FIND_COLUMNS = """
    SELECT name, attname, format_type(atttypid, atttypmod)
    FROM unnest(%s::text[]) AS name JOIN pg_attribute ON attrelid = to_regclass(name)
    WHERE attnum > 0 AND NOT attisdropped
"""
# Without the trigger, or with it switched off, records get no position; with a cache, positions in the wrong order.
FIND_ORDER = """
    SELECT (SELECT tgenabled IN ('O', 'A') AND tginitdeferred FROM pg_trigger
            WHERE tgrelid = to_regclass('kept_outbox') AND tgname = 'kept_outbox_order'),
           (SELECT seqcache = 1 AND seqincrement = 1 AND NOT seqcycle FROM pg_sequence
            WHERE seqrelid = to_regclass('kept_outbox_positions')),
           to_regprocedure('kept_outbox_epoch()') IS NOT NULL AND to_regprocedure('kept_outbox_lock()') IS NOT NULL
"""
FIND_IDENTITY = "SELECT identity::text, version FROM kept_outbox_identity"


class Made(NamedTuple):
    """An outbox that is there: which one, and whether it was made just now."""

    identity: str
    schema: str
    new: bool


def make_outbox(session: Session) -> Made:
    """Make the outbox where there is none. One that fits is left as it is; one that does not is refused, untouched."""
    with transaction(session, "making the outbox"):
        session.execute("SELECT pg_advisory_xact_lock(%s)", (MAKING_TABLES,))
        schema = _schema(session)
        new = not _columns(session)
        if new:
            # The trigger finds our tables whatever the search_path of the one who enqueues.
            session.execute("SELECT set_config('search_path', quote_ident(%s) || ', pg_temp', true)", (schema,))
            session.execute(resources.files("kept.outbox").joinpath("postgres.sql").read_bytes())
        identity = _fitting(session)
    return Made(identity, schema, new)


def find_outbox(session: Session) -> str:
    """The identity of the outbox that is there."""
    with told_as("looking for the outbox"):
        if not _columns(session):
            raise no_outbox()
        return _fitting(session)


def _schema(session: Session) -> str:
    (schema,) = session.execute("SELECT current_schema()").fetchall()[0]
    if session.info.server_version < OLDEST_POSTGRES:
        raise FixConfiguration(
            f"this is Postgres {session.info.server_version // 10000}", way_out="the outbox needs Postgres 14 or later"
        )
    if schema is None:
        raise FixConfiguration(
            "no schema of the search_path is there", way_out="create one, or set another search_path in the DSN"
        )
    return str(schema)


def _columns(session: Session) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for table, column, kind in session.execute(FIND_COLUMNS, (list(COLUMNS),)).fetchall():
        found.setdefault(table, {})[column] = kind
    return found


def _fitting(session: Session) -> str:
    """The identity, once everything that the promise rests on is as it was made."""
    wrong = _differences(_columns(session))
    trigger, sequence, functions = session.execute(FIND_ORDER).fetchall()[0]
    wrong += [] if trigger else ["the trigger kept_outbox_order is missing or switched off"]
    wrong += [] if sequence else ["the sequence kept_outbox_positions is missing, or has a cache"]
    wrong += [] if functions else ["the functions kept_outbox_epoch and kept_outbox_lock are missing"]
    rows = [] if wrong else session.execute(FIND_IDENTITY).fetchall()
    if not wrong and (len(rows) != 1 or rows[0][1] != VERSION):
        wrong = [f"kept_outbox_identity holds {rows}, and not one row of version {VERSION}"]
    if wrong:
        raise FixConfiguration(
            f"the outbox in this database does not fit this version of kept: {'; '.join(wrong)}",
            way_out="if it is another program's, use another schema (search_path in the DSN); if it is ours, restore "
            "what is missing from kept/outbox/postgres.sql",
        )
    return str(rows[0][0])


def _differences(found: dict[str, dict[str, str]]) -> list[str]:
    wrong = []
    for table, columns in COLUMNS.items():
        if table not in found:
            wrong.append(f"the table {table} is missing")
        else:
            wrong += [
                f"{table}.{name} should be {kind}, not {found[table].get(name, 'missing')}"
                for name, kind in columns.items()
                if found[table].get(name) != kind
            ]
    return wrong
