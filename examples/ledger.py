"""The transform of payments-to-ledger.toml: an entry for every payment."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import abs as absolute
from pyspark.sql.functions import col, when

import kept.spark


def entries(frame: DataFrame) -> DataFrame:
    """What was a sign becomes a side. The place of each row has to come along: kept.spark.POSITION."""
    amount = col("value.amount")
    side = when(amount < 0, "debit").otherwise("credit").alias("side")
    return frame.select("value.id", "value.account", side, absolute(amount).alias("amount"), *kept.spark.POSITION)
