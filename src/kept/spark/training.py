"""What a pipeline makes Spark load, without a broker or a database: `class_archive` runs it under spark-submit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id string, cents bigint"
BATCHES = 2


def as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def carry(frame: DataFrame, _number: int) -> None:
    frame.mapInArrow(as_they_are, SCHEMA).collect()


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as scratch:
        records = Path(scratch, "records")
        records.mkdir()
        for number in range(BATCHES):
            (records / f"{number}.json").write_text(f'{{"id": "{number}", "cents": {number}}}\n')
        source = spark.readStream.option("maxFilesPerTrigger", 1).text(str(records))
        rows = source.selectExpr(f"from_json(value, '{SCHEMA}') as row").select("row.*")
        writer = rows.writeStream.foreachBatch(carry).option("checkpointLocation", f"{scratch}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
