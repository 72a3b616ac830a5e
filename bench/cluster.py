"""What the benchmarks share: a cluster that ends with them, a filled topic, rounds in turn, and a report."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from kept.admin.topics import Topics
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.local.ports import ANY_FREE
from kept.local.tether import tethered

PARTITIONS = 8
SIZE = 150
WARM = 2
"""Rounds: brokers that have just started are half as fast, until their virtual machines know what they do often."""
Run = Callable[[], float]
"""Does the whole work once, audits it, and returns records a second."""


def arguments(about: str, records: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--records", type=int, default=records, help="how many, of 150 bytes")
    parser.add_argument("--rounds", type=int, default=5, help="how often each takes its turn")
    parser.add_argument("--bootstrap", help="a cluster that runs already, instead of one of its own")
    return parser.parse_args()


@contextmanager
def a_cluster(bootstrap: str | None) -> Iterator[str]:
    """The address of a cluster that is down afterwards, unless it was given."""
    if bootstrap:
        yield bootstrap
        return
    with tempfile.TemporaryDirectory() as directory, tethered(Cluster(Path(directory) / "cluster")) as cluster:
        cluster.up(ports=ANY_FREE)
        yield cluster.bootstrap


def new_topic(bootstrap: str) -> str:
    name = f"bench-{uuid.uuid4().hex[:12]}"
    Topics(bootstrap).create(name, PARTITIONS, ExactlyOnce("bench"))
    return name


def filled(bootstrap: str, records: int) -> str:
    """A topic with so many records, evenly over its partitions; each value begins with its number."""
    name = new_topic(bootstrap)
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
    producer = Producer(settings)  # idempotent: what stands twice in the source would be taken for somebody's fault
    for number in range(records):
        while True:
            try:
                producer.produce(name, b"%012d" % number + b"x" * (SIZE - 12), partition=number % PARTITIONS)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    if producer.flush(120):
        raise SystemExit("the source could not be filled")
    return name


def in_turn(runs: Mapping[str, Run], rounds: int) -> dict[str, list[float]]:
    """Each run in each round, in alternating order; the first rounds warm everything up and do not count."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(1 - WARM, rounds + 1):
        for name in list(runs) if number % 2 else list(reversed(runs)):
            rate = runs[name]()
            print(f"round {number}: {name} {rate:,.0f} records/s", file=sys.stderr, flush=True)
            if number > 0:
                rates[name].append(rate)
    return rates


def report(
    rates: Mapping[str, list[float]], pairs: Mapping[str, str], also: Mapping[str, str] | None = None, *, as_json: bool
) -> None:
    """Medians, and the median of each round's ratio of ours to its peer; `also`: to a second one."""
    medians = {name: round(statistics.median(of_one)) for name, of_one in rates.items()}
    ratios = {ours: _ratios(rates, ours, peer) for ours, peer in pairs.items()}
    middle = {name: round(statistics.median(of_one), 3) for name, of_one in ratios.items()}
    second = {f"{ours} / {peer}": _ratios(rates, ours, peer) for ours, peer in (also or {}).items()}
    seconds = {name: round(statistics.median(of_one), 3) for name, of_one in second.items()}
    if as_json:
        told = {"records_per_second": medians, "ratio": middle, "ratios": ratios, "rates": rates}
        print(json.dumps({**told, "also": {"ratio": seconds, "ratios": second}} if also else told))
        return
    for name, rate in medians.items():
        print(f"{name:40} {rate:>10,} records/s")
    for ours, ratio in middle.items():
        print(f"{ours} / {pairs[ours]}: {ratio} (rounds: {ratios[ours]})")
    for name, ratio in seconds.items():
        print(f"{name}: {ratio} (rounds: {second[name]})")


def _ratios(rates: Mapping[str, list[float]], ours: str, peer: str) -> list[float]:
    return [round(mine / theirs, 3) for mine, theirs in zip(rates[ours], rates[peer], strict=True)]
