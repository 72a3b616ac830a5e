"""A driver in a process of its own, as a person starts one: into Postgres until it is told to end, then into Kafka."""

from __future__ import annotations

import sys

import kept
import kept.spark
from kept.spark.sinks import Sink
from tests.spark.conftest import QUIET
from tests.spark.things import Transform, records, values


def main(bootstrap: str, topic: str, dsn: str, out: str) -> None:
    spark = kept.spark.session("driver", **QUIET)

    def run(sink: Sink, transform: Transform) -> None:
        ran = kept.Pipeline(
            source=kept.KafkaSource(bootstrap, topic, max_per_batch=300),
            transform=transform,
            sink=sink,
            guarantee=kept.ExactlyOnce(f"to-{topic}"),
            spark=spark,
        ).run()
        print(f"ended well after {ran.batches} batches", flush=True)

    run(kept.PostgresSink(dsn, "out"), values)
    run(kept.KafkaSink(bootstrap, out), records)


if __name__ == "__main__":
    main(*sys.argv[1:])
