"""The steps between a source and a sink that a pipeline file can ask for: JSON values, SQL, rows as records."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from kept.errors import FixConfiguration
from kept.pipelines.files import KafkaTopic
from kept.spark import json_values, plans
from kept.spark.position import MISFIT, OFFSET, OURS, PARTITION, POSITION, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Transform: TypeAlias = "Callable[[DataFrame], DataFrame]"
Wrong: TypeAlias = Callable[[str], FixConfiguration]
"""Makes the error that names the line of the file."""
WrongSink: TypeAlias = Callable[[str, str], FixConfiguration]
"""The same, with the way out."""
_SAID = " does not fit the schema: it is not one JSON object, or a field cannot hold exactly what it is given"
NOT_FITTING = re.compile(rf"kept: (the record \S+{re.escape(_SAID)})")
"""What a task of Spark says about such a record, in the midst of other text."""
TABLE = "source"


@dataclass(frozen=True)
class ReadFirst:
    """A transform that reads values first: in batch mode dead letters need the one without the other."""

    read: Transform
    then: Transform

    def __call__(self, frame: DataFrame) -> DataFrame:
        return self.then(self.read(frame))


def in_order(steps: Sequence[Transform]) -> Transform:
    """One after the other."""

    def all_steps(frame: DataFrame) -> DataFrame:
        for step in steps:
            frame = step(frame)
        return frame

    return all_steps


def with_values(schema: str, wrong: Wrong, *, buries: bool = False) -> Transform:
    """`value` is JSON: a struct of the schema's columns. A record that does not fit stops the pipeline, by its place.

    Spark would put NULL where it cannot read a field, and alter others (`json_values`), unnoticed. With dead letters
    (`buries`) it goes on without a value, as a tombstone would, and carries the reason for its letter.
    """

    def step(frame: DataFrame) -> DataFrame:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - heavy, and only needed when a pipeline runs
        from pyspark.sql import functions as f  # noqa: PLC0415
        from pyspark.sql.types import StructType  # noqa: PLC0415

        text = f.col("value").cast("string")
        try:  # the schema is looked at here, as Spark reads it
            plain = frame.select(f.from_json(text, f"{schema}, {json_values.DAMAGED} STRING").alias("value"))
        except PySparkException as error:
            raise wrong(f"Spark cannot read these columns: {_first_line(error)}") from error
        columns = StructType(cast("StructType", plain.schema["value"].dataType).fields[:-1])
        too_wide = json_values.too_wide(columns)
        if too_wide is not None:
            raise wrong(too_wide)
        read = json_values.read(text, columns)
        if buries:
            fitting = f.when(~read.damaged, read.value)
            return frame.withColumns({"value": fitting, MISFIT: f.when(read.damaged, f.lit(f"the value{_SAID}"))})
        place = f.concat(f.col(TOPIC), f.lit("["), f.col(PARTITION), f.lit("]@"), f.col(OFFSET))
        refused = f.raise_error(f.concat(f.lit("kept: the record "), place, f.lit(_SAID)))
        return frame.withColumn("value", f.when(read.damaged, refused).otherwise(read.value))

    return step


def from_sql(statement: str, wrong: Wrong) -> Transform:
    """A SELECT over the table `source`; the columns of a row's place are added to a plain one by themselves."""

    def step(frame: DataFrame) -> DataFrame:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - heavy, and only needed when a pipeline runs

        frame.createOrReplaceTempView(TABLE)
        try:
            made = frame.sparkSession.sql(statement)
            if not set(POSITION) & set(made.columns):
                with suppress(PySparkException):  # an inner SELECT has left them behind: whoever needs them says so
                    made = plans.with_columns(made, statement, POSITION) or made
        except PySparkException as error:
            raise wrong(f"Spark does not take this statement: {_first_line(error)}") from error
        finally:
            frame.sparkSession.catalog.dropTempView(TABLE)
        return made

    return step


def as_records(sink: KafkaTopic, wrong: WrongSink) -> Transform:
    """The columns that Kafka takes, from those that the file names; without a value all columns as JSON."""

    def step(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f  # noqa: PLC0415 - heavy, and only needed when a pipeline runs

        columns = [name for name in frame.columns if name not in OURS]
        types = {each.name: each.dataType.simpleString() for each in frame.schema}
        named = [each for each in (sink.value, sink.key, *sink.headers.values()) if each is not None]
        missing = [name for name in named if name not in types]
        if missing:
            what = f"the rows have no column {', '.join(missing)}; they have {', '.join(columns)}"
            raise wrong(what, "name columns that the transform makes")

        def bytes_of(name: str) -> Column:
            return f.col(_quoted(name)) if types[name] == "binary" else f.col(_quoted(name)).cast("string")

        made: dict[str, Any] = {}
        if sink.value is not None or types.get("value") in ("string", "binary"):
            if sink.value is None:
                _refuse_lost(frame, columns, sink, wrong)
            made["value"] = bytes_of(sink.value or "value")
        else:
            made["value"] = f.to_json(f.struct(*(_quoted(name) for name in columns)), {"ignoreNullFields": "false"})
        if sink.key is not None or "key" in types:
            made["key"] = bytes_of(sink.key or "key")
        if sink.headers:
            pairs = [
                f.struct(f.lit(header).alias("key"), bytes_of(column).cast("binary").alias("value"))
                for header, column in sink.headers.items()
            ]
            made["headers"] = f.array(*pairs)
        elif "headers" in types:
            made["headers"] = f.col("headers")
        if sink.topic is None and "topic" in types:
            made["topic"] = f.col("topic")
        return frame.select(
            *(column.alias(name) for name, column in made.items()), *(name for name in OURS if name in types)
        )

    return step


def _refuse_lost(frame: DataFrame, columns: Sequence[str], sink: KafkaTopic, wrong: WrongSink) -> None:
    """A field that happens to be named value would be sent, and the others not.

    Columns of Kafka's own come with every row, and nobody misses them.
    """
    sent = {"value", sink.key or "key", *(sink.headers.values() or ["headers"])}
    if sink.topic is None:
        sent.add("topic")
    others = [name for name in columns if name not in sent]
    as_read = plans.as_read(frame) if others else set()
    lost = [name for name in others if name not in as_read]
    if lost:
        raise wrong(
            f"the column value would become the record's value, and {', '.join(lost)} be lost",
            'if that is meant, say sink.value = "value"; to send them all, make '
            "to_json(struct(...)) AS value in the transform",
        )


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
