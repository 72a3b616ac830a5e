"""How fast kept's producer is, against confluent-kafka used by hand with the same settings, but for one: by hand it has
five requests under way, as the client comes, which is quicker, and unsafe (docs/decisions/0003).

    python bench/producer.py [--bootstrap HOST:PORT] [--only GUARANTEE] [--records 100000] [--rounds 31] [--json]

Two pairs, each in turn, so that whatever else the machine does meets both:

- at least once: `kept.Producer.send()` against `produce()` with a delivery callback that counts.
- exactly once: `kept.Producer.send()` outside a transaction against a hand-written loop with one transaction for
  every tenth of a second, all on one client (which is quicker, and unsafe: docs/decisions/0007).

Every run is audited: each record was reported as delivered, and is in the topic for a read_committed reader, once.
Without --bootstrap a cluster of its own is started. Figures of one machine, to be read as ratios. Beside the
speed stands the processor time of this process a record: a busy machine changes it less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka import Producer as Client

from kept.admin.topics import Topics
from kept.guarantees import AtLeastOnce, ExactlyOnce, Guarantee, merge, producer_settings
from kept.local import Cluster
from kept.local.ports import ANY_FREE
from kept.local.tether import tethered
from kept.producer import Producer

PARTITIONS = 8
SIZE = 150
TRANSACTION_SECONDS = 0.1
REPORTS_EVERY = 100
WARM = b"warm"
Run = Callable[[str, str, list[bytes]], float]
"""Sends everything to the topic, and tells the seconds it took."""


class Counted:
    """A delivery callback that counts."""

    def __init__(self) -> None:
        self.delivered = 0

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.delivered += 1


def settings(bootstrap: str, guarantee: Guarantee) -> dict[str, object]:
    """By hand."""
    ours = merge(producer_settings(guarantee), {})
    return {"log_level": 0, **ours, "max.in.flight.requests.per.connection": 5, "bootstrap.servers": bootstrap}


def values(records: int) -> list[bytes]:
    return [b"%010d" % number + b"x" * (SIZE - 10) for number in range(records)]


def produce(client: Client, topic: str, value: bytes, report: Counted) -> None:
    while True:
        try:
            client.produce(topic, value, on_delivery=report)
        except BufferError:
            client.poll(0.05)
        else:
            return


def by_hand(bootstrap: str, topic: str, content: list[bytes]) -> float:
    """At least once with confluent-kafka alone."""
    client, report = Client(settings(bootstrap, AtLeastOnce())), Counted()
    produce(client, topic, WARM, Counted())  # connected, and the topic is known
    client.flush(30)
    begun = time.perf_counter()
    for number, value in enumerate(content):
        produce(client, topic, value, report)
        if number % REPORTS_EVERY == 0:
            client.poll(0)
    while client.flush(0.1):
        pass
    took = time.perf_counter() - begun
    told(report.delivered == len(content), f"{report.delivered} of {len(content)} were reported")
    return took


def by_hand_in_transactions(bootstrap: str, topic: str, content: list[bytes], together: int | None = None) -> float:
    """Exactly once with confluent-kafka alone, on one client: a transaction for every tenth of a second, or for so many
    records together."""
    client, report = Client(settings(bootstrap, ExactlyOnce(f"bench-{uuid.uuid4()}"))), Counted()
    client.list_topics(topic, timeout=30)
    client.init_transactions(30)
    client.begin_transaction()
    produce(client, topic, WARM, Counted())
    client.commit_transaction(60)
    begun = time.perf_counter()
    client.begin_transaction()
    ends = begun + TRANSACTION_SECONDS
    for number, value in enumerate(content):
        produce(client, topic, value, report)
        if number % REPORTS_EVERY == 0:
            client.poll(0)
        due = (number + 1) % (together or REPORTS_EVERY) == 0
        if due and (together is not None or time.perf_counter() > ends):
            client.commit_transaction(60)
            client.begin_transaction()
            ends = time.perf_counter() + TRANSACTION_SECONDS
    client.commit_transaction(60)
    took = time.perf_counter() - begun
    told(report.delivered == len(content), f"{report.delivered} of {len(content)} were reported")
    return took


def by_kept(guarantee: Guarantee) -> Run:
    def run(bootstrap: str, topic: str, content: list[bytes]) -> float:
        with Producer(bootstrap, guarantee) as producer:
            producer.send(topic, WARM).result(60)
            begun = time.perf_counter()
            for value in content:
                producer.send(topic, value)
            told(producer.flush(120) == 0, "records were left under way")
            took = time.perf_counter() - begun
            producer.forget()
        return took  # closing told of no failure

    return run


def audit(bootstrap: str, topic: str, content: list[bytes]) -> None:
    """Each record is there once."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "kept.bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[bytes] = []
    quiet = 0
    while quiet < (3 if len(found) >= len(content) else 30):
        batch = reader.consume(10_000, 0.3)
        quiet = 0 if batch else quiet + 1
        found.extend(message.value() or b"" for message in batch if message.error() is None)
    reader.close()
    told(len(found) == len(content) and set(found) == set(content), f"{len(found)} records for {len(content)} sent")


def told(holds: bool, otherwise: str) -> None:
    if not holds:
        sys.exit(f"the audit failed: {otherwise}")


@dataclass(frozen=True)
class Figures:
    """Of one run."""

    records_a_second: float
    microseconds_of_processor: float


def measured(bootstrap: str, run: Run, records: int) -> Figures:
    """One audited run, on a topic of its own."""
    topic, topics = f"bench-{uuid.uuid4().hex[:12]}", Topics(bootstrap)
    topics.create(topic, PARTITIONS, ExactlyOnce("bench"))
    content = values(records)
    processor = time.process_time()
    took = run(bootstrap, topic, content)
    processor = time.process_time() - processor
    audit(bootstrap, topic, [WARM, *content])
    topics.delete(topic)
    return Figures(records / took, processor / records * 1e6)


def in_turn(bootstrap: str, raw: Run, ours: Run, records: int, *, kept_first: bool) -> tuple[Figures, Figures]:
    """Both once, the raw one's figures first; who begins changes from round to round."""
    if kept_first:
        kept = measured(bootstrap, ours, records)
        return measured(bootstrap, raw, records), kept
    return measured(bootstrap, raw, records), measured(bootstrap, ours, records)


def compared(bootstrap: str, records: int, rounds: int, only: str | None) -> list[dict[str, object]]:
    pairs = {
        "at-least-once": (by_hand, by_kept(AtLeastOnce())),
        "exactly-once": (by_hand_in_transactions, by_kept(ExactlyOnce(f"bench-{uuid.uuid4()}"))),
    }
    rows: list[dict[str, object]] = []
    for name, (raw, ours) in pairs.items():
        if only not in (None, name):
            continue
        measured(bootstrap, raw, records)  # the brokers' code is warm after it
        speeds = [in_turn(bootstrap, raw, ours, records, kept_first=bool(turn % 2)) for turn in range(rounds)]
        ratios = [kept.records_a_second / hand.records_a_second for hand, kept in speeds]
        rows.append(
            {
                "guarantee": name,
                "by_hand": round(statistics.median(hand.records_a_second for hand, _ in speeds)),
                "kept": round(statistics.median(kept.records_a_second for _, kept in speeds)),
                "ratio": round(statistics.median(ratios), 2),
                "processor_by_hand_us": round(
                    statistics.median(hand.microseconds_of_processor for hand, _ in speeds), 1
                ),
                "processor_kept_us": round(statistics.median(kept.microseconds_of_processor for _, kept in speeds), 1),
                "ratios": [round(ratio, 2) for ratio in ratios],
            }
        )
    return rows


@contextmanager
def brokers(bootstrap: str | None) -> Iterator[str]:
    if bootstrap is not None:
        yield bootstrap
        return
    with tempfile.TemporaryDirectory() as folder, tethered(Cluster(Path(folder) / "cluster")) as cluster:
        cluster.up(ports=ANY_FREE)
        yield cluster.bootstrap


def table(rows: list[dict[str, object]], options: Mapping[str, object]) -> str:
    lines = [f"{options['records']:,} records of {SIZE} bytes, {PARTITIONS} partitions, records a second, medians"]
    lines.append(
        f"{'':15} {'by hand':>9} {'kept':>9} {'ratio':>6} {'us by hand':>11} {'us kept':>8}   the rounds' ratios"
    )
    lines += [
        f"{row['guarantee']:15} {row['by_hand']:>9,} {row['kept']:>9,} {row['ratio']:>6} "
        f"{row['processor_by_hand_us']:>11} {row['processor_kept_us']:>8}   {row['ratios']}"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="kept's producer against confluent-kafka used by hand")
    parser.add_argument("--bootstrap", help="brokers to use; without it, a cluster of its own")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--only", choices=["at-least-once", "exactly-once"], help="one of the two pairs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with brokers(options.bootstrap) as bootstrap:
        rows = compared(bootstrap, options.records, options.rounds, options.only)
    print(json.dumps(rows, indent=2) if options.json else table(rows, vars(options)))


if __name__ == "__main__":
    main()
