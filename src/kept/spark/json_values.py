"""JSON values read by Spark, and what Spark would alter without a word found out.

Spark reads the first value of a text and never looks at what follows; rounds a decimal to its column's scale; takes a
comma in a decimal out ("1,50" is 150); and puts U+FFFD for bytes that are no UTF-8. All of it is seen here by Spark's
own expressions, in the one pass that reads the text.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, DecimalType, StructType

DAMAGED = "_kept_damaged"
MOST_DIGITS = 38
"""What Spark's decimals hold."""
SEEN_BEYOND = 10
"""So many digits behind its scale are read at least, to see that a number has none there."""
# For numbers in quotes: with Spark's own, en-US, a comma is taken out unseen. Here it is no part of a number.
LOCALE = "de-CH"


@dataclass(frozen=True)
class Read:
    """A text as it was read: the struct of its columns, and whether it is anything else than the text said."""

    value: Column
    damaged: Column


def read(text: Column, schema: StructType) -> Read:
    """One JSON object, all of the text, in columns that hold it exactly; floating-point ones hold what is nearest."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - heavy, and only needed when a pipeline runs
    from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType  # noqa: PLC0415

    # The text is read as the first of two elements, and what follows it must be the second, to the end. The name is
    # made up anew each time: no text can hold it, and so none can close these brackets and open others.
    name = f"_kept_{uuid.uuid4().hex}"
    end = StructField(name, BooleanType())
    plain, wide = _rebuilt(schema, lambda each: each), _rebuilt(schema, _widened)
    pair = ArrayType(StructType([*wide.fields, end]))
    whole = f.concat(f.lit(f'{{"{name}":['), text, f.lit(f',{{"{name}":true}}]}}'))
    options = {"columnNameOfCorruptRecord": DAMAGED, "locale": LOCALE}
    found = f.from_json(whole, StructType([StructField(name, pair), StructField(DAMAGED, StringType())]), options)
    two = found.getField(name)
    first = two.getItem(0)
    sound = found.getField(DAMAGED).isNull() & (f.size(two) == 2) & two.getItem(1).getField(name) & first.isNotNull()
    for exact in _exact(first, schema):
        sound = sound & exact
    sound = sound & f.is_valid_utf8(text)
    value = first.dropFields(name)
    damaged = text.isNotNull() & ~f.coalesce(sound, f.lit(False))
    return Read(value if wide == plain else value.try_cast(plain), damaged)


def too_wide(schema: StructType) -> str | None:
    """What is wrong with a decimal that fills Spark's own: nobody could see that a number was rounded to fit."""
    from pyspark.sql.types import DecimalType  # noqa: PLC0415 - heavy, and only needed when a pipeline runs

    most = MOST_DIGITS - SEEN_BEYOND
    for each in _within(schema):
        if isinstance(each, DecimalType) and each.precision > most:
            return (
                f"{each.simpleString()} is too wide: Spark rounds a number that does not fit, and in more than {most} "
                "digits that could not be seen"
            )
    return None


def _within(kind: DataType) -> Iterator[DataType]:
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - heavy

    yield kind
    if isinstance(kind, StructType):
        for each in kind:
            yield from _within(each.dataType)
    elif isinstance(kind, ArrayType):
        yield from _within(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _within(kind.valueType)


def _widened(kind: DecimalType) -> DecimalType:
    """As many digits before the point, and all that are left behind it."""
    from pyspark.sql.types import DecimalType  # noqa: PLC0415 - heavy, and only needed when a pipeline runs

    return DecimalType(MOST_DIGITS, MOST_DIGITS - (kind.precision - kind.scale))


def _rebuilt(schema: StructType, decimal: Callable[[DecimalType], DecimalType]) -> StructType:
    """The same columns with other decimals; each may be NULL, as Spark has it of whatever comes from JSON."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructField, StructType  # noqa: PLC0415 - heavy

    def again(kind: DataType) -> DataType:
        if isinstance(kind, DecimalType):
            return decimal(kind)
        if isinstance(kind, StructType):
            return _rebuilt(kind, decimal)
        if isinstance(kind, ArrayType):
            return ArrayType(again(kind.elementType))
        return MapType(kind.keyType, again(kind.valueType)) if isinstance(kind, MapType) else kind

    return StructType([StructField(each.name, again(each.dataType)) for each in schema])


def _exact(column: Column, kind: DataType) -> Iterator[Column]:
    """Conditions, one for each decimal that a column of this type holds: rounded to its scale it is still the same."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - heavy, and only needed when a pipeline runs
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType  # noqa: PLC0415

    if isinstance(kind, DecimalType):
        yield column.eqNullSafe(column.try_cast(kind))
    elif isinstance(kind, StructType):
        for each in kind:
            yield from _exact(column.getField(each.name), each.dataType)
    elif isinstance(kind, (ArrayType, MapType)):
        inner = kind.elementType if isinstance(kind, ArrayType) else kind.valueType
        if any(isinstance(each, DecimalType) for each in _within(inner)):
            elements = column if isinstance(kind, ArrayType) else f.map_values(column)
            yield column.isNull() | f.forall(elements, lambda element: _all(_exact(element, inner)))


def _all(conditions: Iterator[Column]) -> Column:
    first, *others = conditions
    for each in others:
        first = first & each
    return first
