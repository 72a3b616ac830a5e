"""How rows get into a table: by binary COPY, or from a table where they were put aside; repeated keys left out or
replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.rows import TupleRow

from kept.spark.postgres_table import Fit, identifier

if TYPE_CHECKING:
    import pyarrow as pa

ARRIVING = sql.Identifier("kept_arriving")
NUMBER = "kept_number"
"""The order of rows that are put aside, so that the last of equal keys is known."""
COPY = "COPY {table} ({columns}) FROM STDIN (FORMAT binary)"
STAGE = "CREATE TEMP TABLE {arriving} ON COMMIT DROP AS SELECT {columns} FROM {table} WITH NO DATA"
COUNT = "ALTER TABLE {arriving} ADD kept_number bigint GENERATED ALWAYS AS IDENTITY"
APPEND = "INSERT INTO {table} ({columns}) SELECT {columns} FROM {arriving} WHERE {which} ORDER BY kept_number"
MERGE = """
    INSERT INTO {table} ({columns})
    SELECT {columns}
    FROM (SELECT DISTINCT ON ({key}) * FROM {arriving} WHERE {which} ORDER BY {key}, kept_number {first}) AS arriving
    ON CONFLICT ({key}) DO {what}
"""


@dataclass(frozen=True)
class Target:
    """A table with the columns that are written. Repeated keys are rare, so they are paid for only when they come.

    `fit` is how the frame fitted the table at the start, of a table that anybody may alter.
    """

    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    upsert: bool = False
    fit: Fit | None = None

    @contextmanager
    def unaltered(self, connection: psycopg.Connection[TupleRow]) -> Iterator[None]:
        """What is written in this block goes into the table as it was at the start, or the transaction ends.

        It is looked at before, so that no row is tried in vain; and again when what was written locks it until the end
        of the transaction.
        """
        self._refuse_altered(connection)
        yield
        self._refuse_altered(connection)

    def write(self, connection: psycopg.Connection[TupleRow], rows: pa.Table) -> None:
        """COPY straight into the table; when a key is there already, by way of a temporary one."""
        if rows.num_rows == 0:
            return
        if not self.key:
            self._copy(connection, identifier(self.table), rows)
            return
        try:
            with connection.transaction():
                self._copy(connection, identifier(self.table), rows)
        except pg.UniqueViolation:
            parts = {"arriving": ARRIVING, "table": identifier(self.table), "columns": _names(self.columns)}
            connection.execute(sql.SQL(STAGE).format(**parts))
            connection.execute(sql.SQL(COUNT).format(**parts))
            self._copy(connection, ARRIVING, rows)
            self.take(connection, ARRIVING, sql.SQL("true"))
            connection.execute(sql.SQL("DROP TABLE {arriving}").format(**parts))  # more may follow in the transaction

    def take(self, connection: psycopg.Connection[TupleRow], arriving: sql.Identifier, which: sql.Composable) -> None:
        """The rows that were put aside in another table, those of which `which` is true."""
        statement = sql.SQL(MERGE if self.key else APPEND).format(
            arriving=arriving,
            table=identifier(self.table),
            columns=_names(self.columns),
            key=_names(self.key),
            which=which,
            first=sql.SQL("DESC" if self.upsert else "ASC"),
            what=self._what(),
        )
        connection.execute(statement)

    def _refuse_altered(self, connection: psycopg.Connection[TupleRow]) -> None:
        if self.fit is not None:
            self.fit.refuse_altered(connection)

    def _copy(self, connection: psycopg.Connection[TupleRow], into: sql.Identifier, rows: pa.Table) -> None:
        import pgpq  # noqa: PLC0415 - in a worker of Spark

        encoder = pgpq.ArrowToPostgresBinaryEncoder(rows.schema)
        statement = sql.SQL(COPY).format(table=into, columns=_names(self.columns))
        with connection.cursor().copy(statement) as copy:
            copy.write(encoder.write_header())
            for batch in rows.to_batches():
                copy.write(encoder.write_batch(batch))
            copy.write(encoder.finish())

    def _what(self) -> sql.Composable:
        others = [name for name in self.columns if name not in self.key]
        if not (self.upsert and others):
            return sql.SQL("NOTHING")
        moves = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others]
        return sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(moves))


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
