"""The columns of kept's own that travel with a row from the source to the sink: its place, and its record as it was."""

from __future__ import annotations

TOPIC, PARTITION, OFFSET = "_kept_topic", "_kept_partition", "_kept_offset"
POSITION = (TOPIC, PARTITION, OFFSET)
"""To keep the place in a select: `frame.select("amount", *kept.spark.POSITION)`."""
ORIGIN = {TOPIC: "topic", PARTITION: "partition", OFFSET: "offset"}
"""Which column of Spark's Kafka source each of them is."""
ORIGINAL = "_kept_original"
"""The record as it was read; only where dead letters are kept."""
MISFIT = "_kept_misfit"
"""Why the record could not be read; NULL where it could. Only with a schema and dead letters."""
REFUSED = "_kept_refused"
"""A transform's own reason to bury a row; NULL lets it pass."""
CARRIED = (ORIGINAL, MISFIT)
"""What a transform need not name: it is carried through it."""
OURS = (*POSITION, *CARRIED, REFUSED)
