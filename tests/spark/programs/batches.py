"""A driver process with two pipelines in batch mode, which kills itself in the middle of the second batch of both."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence

import kept
import kept.spark
from kept.spark import Emit, KafkaSource, UntilEnd
from kept.spark.sinks import Sink
from kept.spark.staging import Staged
from tests.spark.batches import Dying, Groups, counted, counted_records
from tests.spark.conftest import QUIET
from tests.spark.things import Transform


def main(bootstrap: str, topic: str, dsn: str, out: str, checkpoint: str) -> None:
    """Into Postgres it dies before the move; into Kafka after it, before Spark has written the batch down."""
    spark = kept.spark.session("driver", **QUIET)
    both_are_there = threading.Barrier(2, action=lambda: os.kill(os.getpid(), signal.SIGKILL))

    def die(_staged: Sequence[Staged]) -> None:
        both_are_there.wait()

    def run(sink: Sink, transform: Transform, name: str) -> None:
        kept.Pipeline(
            source=KafkaSource(bootstrap, topic, max_per_batch=45),
            transform=transform,
            sink=sink,
            guarantee=kept.ExactlyOnce(f"to-{topic}"),
            trigger=UntilEnd(),
            checkpoint=f"{checkpoint}/{name}",
            emit=Emit.CHANGES,
            spark=spark,
        ).run()

    table, records = Dying(Groups(dsn).sink, 1, before=die), Dying(kept.KafkaSink(bootstrap, out), 1, after=die)
    threading.Thread(target=run, args=(table, counted, "a")).start()
    run(records, counted_records, "b")


if __name__ == "__main__":
    main(*sys.argv[1:])
