"""What a DataStreamWriter of Spark was told, and another one told the same.

Spark keeps it to itself, so it is read from the fields of its writer; `refuse_unknown` sees to it that they are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kept.errors import FixConfiguration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WRITER = "org.apache.spark.sql.classic.DataStreamWriter"
FORMAT, OPTIONS, MODE, TRIGGER = "source", "extraOptions", "outputMode", "trigger"
CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
LAID_OUT = ("partitioningColumns", "clusteringColumns")
BY_BATCHES = ("ProcessingTimeTrigger", "AvailableNowTrigger$", "OneTimeTrigger$")


@dataclass(frozen=True)
class Given:
    """What a writer was told. Options have names in lower case: Spark does not tell them apart."""

    frame: DataFrame
    format: str
    options: Mapping[str, str] = field(repr=False)
    laid_out: bool
    """Whether columns were named by which files would be laid out."""
    mode: Any
    trigger: Any

    @property
    def by_batches(self) -> bool:
        """Whether rows come in micro-batches."""
        return self.trigger.getClass().getSimpleName() in BY_BATCHES

    def handed_on(self, writer: DataStreamWriter, options: Mapping[str, str]) -> DataStreamWriter:
        """The same pace and output mode for another writer, and those of the options that are meant for it."""
        told: Any = writer._jwrite
        told.outputMode(self.mode)
        told.trigger(self.trigger)
        return writer.options(**options)

    def checkpoint(self) -> str | None:
        """Where Spark will keep its notes; None where it makes a place of its own, for this run or by chance."""
        place, name = self.options.get("checkpointlocation"), self.options.get("queryname")
        if place is None and name is not None:
            below = self.frame.sparkSession.conf.get(CHECKPOINTS, None)
            place = None if below is None else f"{below.rstrip('/')}/{name}"
        return place


def format_of(writer: DataStreamWriter) -> str:
    return str(_field(writer, FORMAT)).lower()


def given(writer: DataStreamWriter) -> Given:
    laid_out = any(_field(writer, name).isDefined() for name in LAID_OUT)
    mode, trigger = _field(writer, MODE), _field(writer, TRIGGER)
    return Given(writer._df, format_of(writer), _options(writer), laid_out, mode, trigger)


def refuse_unknown(spark: SparkSession) -> None:
    """A Spark whose writer is made differently: every start of a query would fail, of whatever format."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark

    jvm: Any = spark._jvm
    try:
        writer = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(WRITER)
        there = {each.getName() for each in writer.getDeclaredFields()}
    except Py4JJavaError:
        there = set()
    missing = {FORMAT, OPTIONS, MODE, TRIGGER, *LAID_OUT} - there
    if missing:
        raise FixConfiguration(
            f"the formats of kept do not know Spark {spark.version}: its writer has no {', '.join(sorted(missing))}",
            way_out="use the pyspark of kept[spark], or kept.Pipeline",
        )


def _options(writer: DataStreamWriter) -> dict[str, str]:
    found: dict[str, str] = {}
    pairs = _field(writer, OPTIONS).iterator()
    while pairs.hasNext():
        pair = pairs.next()
        found[str(pair.productElement(0)).lower()] = str(pair.productElement(1))
    return found


def _field(writer: DataStreamWriter, name: str) -> Any:
    told: Any = writer._jwrite
    found = told.getClass().getDeclaredField(name)
    found.setAccessible(True)
    return found.get(told)
