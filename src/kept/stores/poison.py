"""Applying records to Postgres and finding the ones that can never be applied, by proof (rule 14).

Inside a chunk, after its lock: all records under one savepoint; if Postgres refuses their content, halves under
savepoints of their own, until the one that is refused alone is found. Works for any `apply(connection, records)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import psycopg
from psycopg.rows import TupleRow

from kept.errors import Refused
from kept.progress import Fate, isolate
from kept.stores.sql_errors import fate_of, reason

Record = TypeVar("Record")
Apply = Callable[[psycopg.Connection[TupleRow], Sequence[Record]], object]

# A deferred constraint would fail at COMMIT, for ever, and name nobody: it is checked under the savepoint. Then it is
# deferred again, or else a parent that follows its child inside the next records would come too late.
CHECK_CONSTRAINTS = """
    DO $$
    DECLARE deferred text;
    BEGIN
        SET CONSTRAINTS ALL IMMEDIATE;
        SELECT string_agg(name, ', ') INTO deferred FROM (
            SELECT format('%I.%I', n.nspname, c.conname) AS name
            FROM pg_constraint c JOIN pg_namespace n ON n.oid = c.connamespace
            GROUP BY 1 HAVING bool_or(c.condeferred) AND bool_and(c.condeferrable)) AS names;
        IF deferred IS NOT NULL THEN
            EXECUTE 'SET CONSTRAINTS ' || deferred || ' DEFERRED';
        END IF;
    END $$
"""


@dataclass(frozen=True, slots=True)
class Poison(Generic[Record]):
    """A record that Postgres refused when it was applied alone, after all the good ones before it; and why."""

    record: Record
    reason: str


def isolated(
    connection: psycopg.Connection[TupleRow], records: Sequence[Record], apply: Apply[Record]
) -> list[Poison[Record]]:
    """Apply all records but the poison, in their order, and return the poison.

    Refused means SQLSTATE 22 or 23, or that `apply` raised kept.Refused. Anything else ends the chunk: a lost
    connection, a deadlock or a missing table says nothing about a record. Records that satisfy a deferred
    constraint only together are tried together, and apart when another one among them is poison.
    """
    reasons: list[str] = []
    search = isolate(records)
    try:
        some = next(search)
        while True:
            refused = _refused(connection, some, apply)
            if refused is not None and len(some) == 1:
                reasons.append(refused)
            some = search.send(Fate.WRITTEN if refused is None else Fate.REFUSED)
    except StopIteration as done:
        return [Poison(record, why) for record, why in zip(done.value, reasons, strict=True)]


def _refused(connection: psycopg.Connection[TupleRow], records: Sequence[Record], apply: Apply[Record]) -> str | None:
    """Apply under a savepoint; why it was refused, or None."""
    try:
        with connection.transaction():
            apply(connection, records)
            connection.execute(CHECK_CONSTRAINTS)
    except Refused as error:
        return error.what
    except psycopg.Error as error:
        if connection.closed or fate_of(error) is not Fate.REFUSED:
            raise
        return reason(error)
    return None
