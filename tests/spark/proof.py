"""Pipelines on Spark through every fault, under each guarantee, into each sink: an independent reader counts.

    python -m tests.spark.proof [--seeds 10] [--first 0] [--only FAULT] [--records 100000] [--minutes 9]

Each run is a world of its own, made by its seed. What is in docs/spark-proof.jsonl already, by the code that is here
and with as many records, is not run again: a piece ends when its minutes are over, and the next one goes on. Lines of
other code are dropped when a piece begins: they prove nothing of this one. Each piece writes docs/spark-proof.md anew.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import random
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from importlib.metadata import version
from itertools import product
from pathlib import Path

import confluent_kafka
import psycopg

import kept
import kept.spark
from kept.admin.topics import Topics
from kept.local import Cluster
from kept.local.ports import ANY_FREE
from kept.local.tether import tethered
from kept.verify.trials.code import LENGTH, PACKAGE, hash_of
from tests.brokers.store_things import a_database
from tests.spark.conftest import QUIET, ROOT, reachable_by_workers
from tests.spark.drivers import Order
from tests.spark.faults import BATCHES, FAULTS, TOUCH_THE_SOURCE, Means, World, filled_topic
from tests.spark.things import each_once
from tests.spark.turns import Run, Turns
from tests.spark.verdicts import BATCH, PARTITION, VOLUME, Verdict, counted, latest, of_code, page

LINES, PAGE = ROOT / "docs" / "spark-proof.jsonl", ROOT / "docs" / "spark-proof.md"
WORDS = ("exactly-once", "at-least-once", "at-most-once")
ABOVE = frozenset({"aio", "cli", "demo", "verify"})
"""What no pipeline may import (ARCHITECTURE.md): to change it changes nothing that is proved here."""
MOST_WANTED = "exactly-once", PARTITION
SEEDS_OF_OTHERS = 3
"""Of the guarantees that may lose or repeat, and of batch mode."""


def runs(seeds: range, only: Sequence[str], records: int) -> Iterator[Run]:
    """Seed by seed, exactly once first: whoever has little time has seen every fault.

    In batch mode exactly once alone, and no task stands between the two moves: both are the driver's.
    """
    ways = [*((word, PARTITION) for word in WORDS), (WORDS[0], BATCH)]
    for seed, (word, mode), fault, sink in product(seeds, ways, only or FAULTS, ("postgres", "kafka")):
        without_meaning = fault == "postgres-restarted" and sink == "kafka"
        between = fault == "task-killed-between" and mode == BATCH
        enough = (word, mode) != MOST_WANTED and seed >= seeds.start + SEEDS_OF_OTHERS
        if not without_meaning and not between and not enough:
            yield Run(fault, sink, word, seed, records, mode)


def made(run: Run, means: Means, folder: Path) -> World:
    """The world of a seed: a full topic, an empty sink."""
    cluster, name = means.cluster, f"{run.fault}-{run.seed}-{uuid.uuid4().hex[:8]}"
    topic = filled_topic(cluster, run.records) if run.fault in TOUCH_THE_SOURCE else means.filled(run.records)
    if run.sink == "kafka":
        Topics(cluster.bootstrap).create(f"out-of-{name}", 2, kept.ExactlyOnce("tests"))
    folder.mkdir(parents=True)
    order = Order(
        cluster.bootstrap,
        topic,
        name,
        a_database(cluster.dsn) if run.sink == "postgres" else None,
        "" if run.sink == "postgres" else f"out-of-{name}",
        word=run.word,
        per_batch=-(-run.records // BATCHES),
        chunk=chunk_of(run.records),
        mode=run.mode,
    )
    return World(means, order, random.Random(f"{run.fault} {run.sink} {run.word} {run.seed}"), folder, run.records)


def chunk_of(records: int) -> int:
    """Two in each of the three tasks of a batch: something is done, and something left, wherever a fault strikes."""
    return max(50, -(-records // BATCHES // 6))


def played(run: Run, means: Means, folder: Path) -> Verdict:
    """The world is made, harmed, and audited."""
    begun = time.monotonic()
    world = made(run, means, folder)
    struck = FAULTS[run.fault](world)
    counts = counted(each_once(run.records), world.order.out.held())
    allowed = max(1, struck) * (world.order.per_batch or 0)
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    seconds = round(time.monotonic() - begun, 1)
    stopped, used = tuple(world.stopped), versions(means.cluster)
    return Verdict(*run[:5], *counts, struck, allowed, stopped, seconds, now, used, code(), run.mode)


def code(package: Path = PACKAGE) -> str:
    """A hash of every file that a pipeline may use."""
    found = hashlib.sha256()
    for each in sorted(package.iterdir()):
        if each.is_dir() and each.name not in ABOVE:
            found.update(f"{each.name} {hash_of(each)}\n".encode())
        elif each.is_file():
            found.update(each.name.encode() + b"\n" + each.read_bytes())
    return found.hexdigest()[:LENGTH]


def versions(cluster: Cluster) -> dict[str, str]:
    with psycopg.connect(cluster.dsn) as connection:
        postgres = connection.info.server_version // 10000
    return {
        "kept": kept.__version__,
        "pyspark": version("pyspark"),
        "librdkafka": str(confluent_kafka.libversion()[0]),
        "Postgres": str(postgres),
        "Python": platform.python_version(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="harms pipelines on Spark, and counts")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", choices=list(FAULTS), action="append", default=[], help="may be said several times")
    parser.add_argument("--records", type=int, default=VOLUME)
    parser.add_argument("--lanes", type=int, default=2, help="how many runs at once, where they do not disturb others")
    parser.add_argument("--folder", help="keep what the servers and drivers write there; must be empty")
    parser.add_argument("--minutes", type=float, default=9.0, help="no run begins after them")
    options = parser.parse_args()
    now = code()
    done = latest(_lines(), now)
    wanted = [
        run
        for run in runs(range(options.first, options.first + options.seeds), options.only, options.records)
        if not ((was := done.get(run.key)) and was.records >= run.records and was.word_for_it == "holds")
    ]
    if wanted:
        _drop_others(now)
    good, left = _play(wanted, options, now)
    PAGE.write_text(page(_lines()), encoding="utf-8")
    print(f"{len(wanted) - left} runs, {left} are left; {PAGE.relative_to(ROOT)} is written")
    return 0 if good and not left else 1


def _lines() -> list[str]:
    return LINES.read_text().splitlines() if LINES.exists() else []


def _drop_others(now: str) -> None:
    lines = _lines()
    kept_ones = of_code(lines, now)
    if len(kept_ones) < len(lines):
        print(f"{len(lines) - len(kept_ones)} lines of other code are dropped: this is {now}", flush=True)
        LINES.write_text("".join(f"{line}\n" for line in kept_ones), encoding="utf-8")


def _play(wanted: list[Run], options: argparse.Namespace, now: str) -> tuple[bool, int]:
    """Whether all of them have held, and how many were left for another time."""
    settings = {**QUIET, "spark.sql.execution.arrow.maxRecordsPerBatch": str(chunk_of(options.records))}
    until = time.monotonic() + 60 * options.minutes
    turns = Turns(wanted, options.lanes)
    good: list[bool] = []
    reachable_by_workers()
    with _folder(options.folder) as folder, tethered(Cluster(folder / "cluster")) as cluster:
        if wanted:
            cluster.up(ports=ANY_FREE)

        def play(run: Run) -> None:
            try:
                verdict = played(run, means, folder / f"{wanted.index(run)}-{run.fault}-{run.sink}-{run.word}")
            except Exception:  # noqa: BLE001 - the others go on; without a line it is run again
                good.append(False)
                print(f"no verdict: {run}\n{traceback.format_exc()}", flush=True)
                return
            if verdict.code != now:
                good.append(False)
                print(f"no verdict: the code was changed under {run}", flush=True)
                return
            good.append(verdict.word_for_it == "holds")
            print(verdict, flush=True)
            with LINES.open("a", encoding="utf-8") as lines:
                lines.write(verdict.line() + "\n")

        with Means(cluster, lambda: kept.spark.session("proof", **settings), folder, settings) as means:
            left = turns.take(play, until)
    return all(good), left


@contextmanager
def _folder(named: str | None) -> Iterator[Path]:
    """Where everything is that a piece makes; thrown away unless a person has named it."""
    with nullcontext(named) if named else tempfile.TemporaryDirectory() as name:
        Path(name).mkdir(parents=True, exist_ok=True)
        yield Path(name).resolve()


if __name__ == "__main__":
    sys.exit(main())
