"""Whether a pipeline stays as quick and as small as it began: ten million records beside one million.

    python bench/long_run.py [--records 10000000] [--only kafka|postgres] [--json]

One session. A million records warm it up, another million are timed, then ten times as many; in batches of 250,000
records of 150 bytes, exactly once, each run audited. Memory is what the JVM, the driver and Spark's Python workers
have in use, looked at twice a second: the peak of the last quarter of the long run beside that of its second quarter.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from cluster import Run

from kept import KafkaSink, PostgresSink
from kept.local import Cluster
from kept.local.ports import ANY_FREE
from kept.local.tether import tethered
from kept.spark import session
from spark import INTO_KAFKA, INTO_POSTGRES, Bench

TIMES = 10
LOOK_EVERY = 0.5


class Memory:
    """Megabytes of this process and all that it started, as time passes."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self._over = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        self.seen, self._over = [], threading.Event()
        watcher = threading.Thread(target=self._watch, args=(self._over,))
        watcher.start()
        try:
            yield
        finally:
            self._over.set()
            watcher.join()

    def quarters(self) -> list[int]:
        """The peak of each."""
        size = len(self.seen) / 4
        return [round(max(self.seen[int(size * part) : int(size * (part + 1))])) for part in range(4)]

    def _watch(self, over: threading.Event) -> None:
        me = psutil.Process()
        while not over.wait(LOOK_EVERY):
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    total += 0 if is_server(process) else process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.seen.append(total / 1e6)


def is_server(process: psutil.Process) -> bool:
    """Brokers and Postgres are not ours to judge."""
    return process.name().startswith("postgres") or any("kafka.Kafka" in word for word in process.cmdline())


def run_for(bench: Bench, sink: str, memory: Memory) -> Run:
    def work(target: KafkaSink | PostgresSink) -> None:
        with memory.watched():
            bench.ours(target)

    if sink == "kafka":
        return bench.into_topic(lambda topic: work(KafkaSink(bench.bootstrap, topic)))
    return bench.into_table(lambda table: work(PostgresSink(bench.dsn, table, key="id")), "PRIMARY KEY")


def measured(short: Bench, long: Bench, sink: str) -> dict[str, object]:
    memory = Memory()
    run_for(short, sink, memory)()
    before, after = (run_for(bench, sink, memory)() for bench in (short, long))
    peaks = memory.quarters()
    return {
        "times_as_long": round(TIMES * before / after, 2),
        "records_per_second": [round(before), round(after)],
        "megabytes_by_quarter": peaks,
        "memory_last_to_second_quarter": round(peaks[3] / peaks[1], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--records", type=int, default=10_000_000, help="a tenth of it in whole batches of 250,000")
    parser.add_argument("--only", choices=("kafka", "postgres"))
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as directory, tethered(Cluster(Path(directory) / "cluster")) as cluster:
        cluster.up(ports=ANY_FREE)
        spark = session("bench", **{"spark.ui.enabled": "false", "spark.log.level": "ERROR"})
        short, long = (Bench(cluster, spark, chosen.records // part) for part in (TIMES, 1))
        for sink, name in (("kafka", INTO_KAFKA), ("postgres", INTO_POSTGRES)):
            if chosen.only in (None, sink):
                found[name] = measured(short, long, sink)
                print(name, found[name], file=sys.stderr, flush=True)
        spark.stop()
    if chosen.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
