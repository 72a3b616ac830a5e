"""Plans of Spark as trees: how Python walks through one, and makes a frame of another.

A plan is an object of the JVM, and everything that is asked of it a call there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plan(frame: DataFrame) -> Any:
    """What the frame asks for, every name in it resolved."""
    return frame._jdf.queryExecution().analyzed()


def framed(frame: DataFrame, of: Any) -> DataFrame:
    """A frame of another plan, in the same session."""
    from pyspark.sql import DataFrame as Frame  # noqa: PLC0415 - heavy, and only needed when a pipeline runs

    spark = frame.sparkSession
    jvm: Any = spark._jvm
    return Frame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, of), spark)


def nodes(below: Any) -> Iterator[Any]:
    """The node, and all under it."""
    yield below
    for child in listed(below.children()):
        yield from nodes(child)


def kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def attributes(node: Any) -> dict[str, Any]:
    """What comes out of a node, by name."""
    return {attribute.name(): attribute for attribute in listed(node.output())}


def listed(scala: Any) -> list[Any]:
    """A sequence of Scala's."""
    return [scala.apply(number) for number in range(scala.size())]
