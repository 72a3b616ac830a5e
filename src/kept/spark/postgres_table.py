"""The table that a pipeline writes: made when it is missing, compared with the frame before anything starts.

Binary COPY trusts that every column has exactly the type it is told, so each pair of a Spark type and a Postgres type
that kept knows has a cast, in Spark, to the bytes that Postgres expects. A pair that is not here is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from kept.errors import FixConfiguration, WeakensGuarantee
from kept.guarantees import AtMostOnce, Guarantee
from kept.stores import Session
from kept.stores.sql_errors import told_as
from kept.stores.tables import make_missing

AS_IT_IS = "{}"
_SMALL, _INT, _LONG, _NUMERIC = (
    "cast({} as smallint)",
    "cast({} as int)",
    "cast({} as bigint)",
    "cast({} as decimal(20,0))",
)
# A text that is no uuid becomes more bytes than a uuid has, which Postgres refuses; as NULL it would go unnoticed, and
# fewer bytes look like a fault of the connection.
_UUID = (
    "case when {0} is null then null when length(unhex(replace({0}, '-', ''))) = 16 then unhex(replace({0}, '-', '')) "
    "else cast('this is not a uuid' as binary) end"
)
_JSONB = "concat(unhex('01'), cast({} as binary))"
# Spark's type (without its parameters), then Postgres' type: the cast that makes its bytes. The first is what a new
# table gets.
CASTS: Mapping[str, Mapping[str, str]] = {
    "string": {
        "text": AS_IT_IS,
        "character varying": AS_IT_IS,
        "character": AS_IT_IS,
        "json": AS_IT_IS,
        "jsonb": _JSONB,
        "uuid": _UUID,
    },
    "binary": {"bytea": AS_IT_IS},
    "boolean": {"boolean": AS_IT_IS},
    "tinyint": {"smallint": _SMALL, "integer": _INT, "bigint": _LONG, "numeric": _NUMERIC},
    "smallint": {"smallint": AS_IT_IS, "integer": _INT, "bigint": _LONG, "numeric": _NUMERIC},
    "int": {"integer": AS_IT_IS, "bigint": _LONG, "numeric": _NUMERIC},
    "bigint": {"bigint": AS_IT_IS, "numeric": _NUMERIC},
    "float": {"real": AS_IT_IS, "double precision": "cast({} as double)"},
    "double": {"double precision": AS_IT_IS},
    "decimal": {"numeric": AS_IT_IS},
    "date": {"date": AS_IT_IS},
    "timestamp": {"timestamp with time zone": AS_IT_IS},
    "timestamp_ntz": {"timestamp without time zone": AS_IT_IS},
}
_PARAMETERS = re.compile(r"\((\d+)(?:,(-?\d+))?\)")

RELATION = "SELECT relkind::text, relpersistence::text FROM pg_class WHERE oid = %s::regclass"
COLUMNS = """
    SELECT attname, format_type(atttypid, NULL), format_type(atttypid, atttypmod), attnotnull,
           atthasdef OR attidentity <> '', attgenerated <> '' OR attidentity = 'a'
    FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
# The columns of each index that can tell at once, and for every row, that a key is there.
KEYS = """
    SELECT array_agg(a.attname::text ORDER BY a.attname), bool_and(a.attnotnull)
    FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place)
    LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
    WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
      AND k.place <= i.indnkeyatts
    GROUP BY i.indexrelid HAVING bool_and(k.number > 0)
"""


@dataclass(frozen=True)
class Field:
    """A column of the frame, with Spark's name of its type."""

    name: str
    type: str

    @property
    def kind(self) -> str:
        return self.type.partition("(")[0]


@dataclass(frozen=True)
class Column:
    """A column of the table, as Postgres' catalog has it."""

    name: str
    kind: str
    type: str
    not_null: bool
    has_default: bool
    generated: bool


@dataclass(frozen=True)
class Fit:
    """A frame that fits a table: for every column of it the expression that makes its bytes."""

    table: str
    fields: tuple[Field, ...]
    casts: Mapping[str, str]

    def refuse_altered(self, connection: psycopg.Connection[TupleRow]) -> None:
        """Whether it still does.

        Binary COPY takes the bytes of one type for those of another wherever they are as long; and of a table that
        takes none of them every row would look like poison.
        """
        name = identifier(self.table).as_string(connection)
        columns = _columns(connection, name)
        problems = list(_problems(self.fields, columns)) or [
            f"{field.name} is {columns[field.name].type} by now"
            for field in self.fields
            if self.casts[field.name] != _cast(field, columns)
        ]
        if problems:
            raise FixConfiguration(
                f"the table {name} was altered while it was written to: {'; '.join(problems)}",
                way_out="start the pipeline again: the frame is compared with the table as it is then",
            )


def fitted(session: Session, table: str, key: Sequence[str], fields: Sequence[Field], guarantee: Guarantee) -> Fit:
    """How the frame goes into the table, which is made if it is missing."""
    name = identifier(table).as_string(session)
    _refuse_unusable(fields, key)
    make_missing(session, {name: _created(table, key, fields).as_string(session)})
    with told_as(f"looking at {name}"):
        kind, persistence = session.execute(RELATION, (name,)).fetchall()[0]
        columns = _columns(session, name)
        keys = session.execute(KEYS, (name,)).fetchall()
    if kind not in ("r", "p"):
        raise _unfit(name, ["it is no table"])
    if persistence != "p" and not isinstance(guarantee, AtMostOnce):
        raise WeakensGuarantee(
            f"the table {name}",
            "UNLOGGED",
            guarantee.word,
            "it is empty after a crash of the server, while progress is not",
            way_out=f"ALTER TABLE {name} SET LOGGED",
        )
    problems = [*_problems(fields, columns), *_missing_key(key, keys)]
    if problems:
        raise _unfit(name, problems)
    return Fit(table, tuple(fields), {field.name: _cast(field, columns) for field in fields})


def _columns(connection: psycopg.Connection[TupleRow], name: str) -> dict[str, Column]:
    return {row[0]: Column(*row) for row in connection.execute(COLUMNS, (name,)).fetchall()}


def _cast(field: Field, columns: Mapping[str, Column]) -> str:
    return CASTS[field.kind][columns[field.name].kind].format(_quoted(field.name))


def identifier(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split("."))


def _refuse_unusable(fields: Sequence[Field], key: Sequence[str]) -> None:
    names = [field.name for field in fields]
    problems = [f"{name} is there more than once" for name in dict.fromkeys(names) if names.count(name) > 1]
    problems += [
        f"{field.name} is {field.type}: make it a text (to_json), or one column for each part"
        for field in fields
        if field.kind not in CASTS
    ]
    problems += [f"the key {name} is not among the columns" for name in key if name not in names]
    if not names:
        problems.append("it has no column beside its place in the source")
    if problems:
        raise FixConfiguration(
            f"the frame cannot be written to Postgres: {'; '.join(problems)}", way_out="change the transform"
        )


def _created(table: str, key: Sequence[str], fields: Sequence[Field]) -> sql.Composed:
    columns: list[sql.Composable] = [
        sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(_new_type(field))) for field in fields
    ]
    if key:
        columns.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, key))))
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(identifier(table), sql.SQL(", ").join(columns))


def _new_type(field: Field) -> str:
    kind = next(iter(CASTS[field.kind]))
    return kind + field.type.removeprefix("decimal") if kind == "numeric" else kind


def _problems(fields: Sequence[Field], columns: Mapping[str, Column]) -> Iterable[str]:
    for field in fields:
        column = columns.get(field.name)
        if column is None:
            yield f"it has no column {field.name}"
        elif column.generated:
            yield f"{column.name} is generated by Postgres"
        elif column.kind not in CASTS[field.kind]:
            takes = ", ".join(CASTS[field.kind])
            yield f"{field.name} is {field.type} in the frame and {column.type} in the table (it may be {takes})"
        elif not _has_room(field, column):
            yield f"{field.name} is {field.type} in the frame: {column.type} would round it"
    names = {field.name for field in fields}
    for column in columns.values():
        if column.not_null and not column.has_default and column.name not in names:
            yield f"its column {column.name} may not be NULL, and the frame does not have it"


def _has_room(field: Field, column: Column) -> bool:
    """Postgres rounds a number to the column's scale without a word."""
    limits, wanted = _PARAMETERS.search(column.type), _PARAMETERS.search(field.type)
    if column.kind != "numeric" or limits is None:
        return True
    scale = int(wanted[2] or 0) if wanted else 0
    return int(limits[2] or 0) >= scale


def _missing_key(key: Sequence[str], keys: Sequence[Sequence[object]]) -> Iterable[str]:
    if key and (sorted(key), True) not in [(names, not_null) for names, not_null in keys]:
        yield f"it has no unique index on ({', '.join(key)}), of columns that may not be NULL"


def _unfit(name: str, problems: Iterable[str]) -> FixConfiguration:
    return FixConfiguration(
        f"the table {name} does not fit the frame: {'; '.join(problems)}",
        way_out="change the transform or the table, or name another table: one that is missing is made",
    )


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))
