"""A driver that runs what it is told, line by line, and says how it ended."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from queue import SimpleQueue
from threading import Thread

import kept
import kept.spark
from kept.pipelines.telling import BatchDone
from tests.spark.conftest import QUIET
from tests.spark.drivers import Order


def say(batch: BatchDone) -> None:
    print("batch", batch.rows, flush=True)


def orders() -> Iterator[str]:
    """Line by line. They end with whoever gives them, and then this ends, with its Java, whatever it is at."""
    given: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            given.put(line)
        os.killpg(0, signal.SIGKILL)

    Thread(target=listen, daemon=True).start()
    while True:
        yield given.get()


def main(master: str, settings: str) -> None:
    spark = kept.spark.session("obedient", master=master or None, **{**QUIET, **json.loads(settings)})
    print("ready", flush=True)
    for line in orders():
        try:
            told: object = asdict(Order.of(line).pipeline(spark, say).run())
        except kept.KeptError as error:
            told = f"{type(error).__name__}: {error}"
        print("ended", json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
