"""The outbox in the user's own Postgres: a record is enqueued in the transaction whose news it is.

with psycopg.connect(dsn) as connection, connection.transaction():
    connection.execute("UPDATE accounts SET balance = balance - 100 WHERE owner = 'alice'")
    outbox.enqueue(connection, "payments", "-100 EUR", key="alice")

Both are committed or neither is; a relay (`kept outbox relay DSN`) carries what was committed into Kafka.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable
from typing import Any, TypeAlias, overload

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from kept.errors import FixConfiguration
from kept.outbox.contents import Content, Sending, checked
from kept.producer.stamping import Headers, Text, chosen

AnyConnection: TypeAlias = "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"
ENQUEUE = """
    INSERT INTO kept_outbox (topic, key, value, header_names, header_values, partition, timestamp_ms)
    VALUES (%s, %s, %s, %s, %s, %s, %s)
"""


class PostgresOutbox:
    """Enqueues records on connections of the caller's; it has none of its own, and one object serves them all.

    `stamp` chooses idempotency keys as the producer's does: None, "uuid", "content" or a function.
    """

    def __init__(self, *, stamp: object = None) -> None:
        self._stamp = chosen(stamp)

    @overload
    def enqueue(
        self,
        connection: psycopg.Connection[Any],
        topic: str,
        value: Text,
        key: Text = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        idempotency_key: uuid.UUID | str | None = None,
    ) -> None: ...

    @overload
    def enqueue(
        self,
        connection: psycopg.AsyncConnection[Any],
        topic: str,
        value: Text,
        key: Text = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        idempotency_key: uuid.UUID | str | None = None,
    ) -> Awaitable[None]: ...

    def enqueue(
        self,
        connection: AnyConnection,
        topic: str,
        value: Text,
        key: Text = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        idempotency_key: uuid.UUID | str | None = None,
    ) -> Awaitable[None] | None:
        """Put a record into the transaction that is open on this connection; on an async one, await it.

        Records of one transaction keep their order. Of two transactions that changed the same row, or that followed
        each other, the one that committed first is relayed first, wherever in them this was called. Errors of
        Postgres come as they are: it is your transaction. `timestamp` is in milliseconds since 1970.
        """
        refuse_alone(connection)
        sending = Sending(topic, value, key, headers, partition, timestamp, idempotency_key)
        row = _row(checked(sending, self._stamp))
        if isinstance(connection, psycopg.AsyncConnection):
            return _insert_later(connection, row)
        try:
            connection.execute(ENQUEUE, row)
        except pg.UndefinedTable as error:
            raise no_outbox() from error
        return None


async def _insert_later(connection: psycopg.AsyncConnection[Any], row: tuple[object, ...]) -> None:
    try:
        await connection.execute(ENQUEUE, row)
    except pg.UndefinedTable as error:
        raise no_outbox() from error


def refuse_alone(connection: AnyConnection) -> None:
    """In autocommit mode, outside a transaction, the record would be committed without what it tells of."""
    if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        raise FixConfiguration(
            "no transaction is open on this connection: the record would be committed alone",
            way_out="change your data and enqueue inside one `with connection.transaction():`",
        )


def no_outbox() -> FixConfiguration:
    return FixConfiguration(
        "this database has no outbox, or not in the schema that this connection looks into",
        way_out="`kept outbox init DSN` makes it, with the same search_path",
    )


def _row(content: Content) -> tuple[object, ...]:
    names = [name for name, _ in content.headers]
    if any("\0" in name for name in names):
        raise FixConfiguration(
            f"Postgres cannot keep one of the header names {names}", way_out="leave the NUL character out"
        )
    values = [text.encode() if isinstance(text, str) else text for _, text in content.headers]
    return content.topic, content.key, content.value, names, values, content.partition, content.timestamp
