"""Where the scenes' consumers leave their effects: a table in a database of the show's own."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg.sql import SQL, Identifier

from kept.stores.sql_errors import told_as

DOING = "the scenes' database cannot be used"


@dataclass(frozen=True)
class Ledger:
    """A table of effects: a row each time that a record was processed."""

    dsn: str
    table: str

    def create(self) -> None:
        columns = SQL("(id int GENERATED ALWAYS AS IDENTITY, message text)")
        with told_as(DOING), psycopg.connect(self.dsn) as connection:
            connection.execute(SQL("CREATE TABLE {} {}").format(Identifier(self.table), columns))

    def processed(self) -> list[str]:
        """The records in the order they were processed, as often as they were."""
        with told_as(DOING), psycopg.connect(self.dsn) as connection:
            rows = connection.execute(SQL("SELECT message FROM {} ORDER BY id").format(Identifier(self.table)))
            return [str(message) for (message,) in rows.fetchall()]


def create_database(server: str, name: str) -> str:
    """A new database on the server of this DSN; its own DSN."""
    with told_as(DOING), psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    return f"{server.rpartition('/')[0]}/{name}"


def drop_database(server: str, name: str) -> None:
    """Whoever still uses it is thrown out."""
    with told_as(DOING), psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name)))
