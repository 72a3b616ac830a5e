"""Exactly once from Kafka to Kafka, beside a hand-written transactional loop that re-uses one producer.

The hand-written loop does what the usual example does; it lacks rule 1 (docs/rules.md), which costs a fence a
transaction. Both commit every 500 ms; in one process, and in two that share a group.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from operator import gt
from pathlib import Path

from cluster import PARTITIONS, Run, a_cluster, arguments, filled, in_turn, new_topic, report
from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.consumer.consuming import FETCHED_AGAIN, Consumer
from kept.consumer.outgoing import Output
from kept.consumer.records import Record
from kept.guarantees import ExactlyOnce

ABOUT = "Records a second from one topic to another, exactly once, a transaction every 500 ms."
SECONDS = 0.5
HEARTBEAT = 300
"""Milliseconds, of both: the first member hears soon that there is another one, and most of the work is still to do."""
PEER, OURS = "by hand, one producer", "kept into_kafka"


class ByHand:
    """A member that runs until it is ended: consume, produce, send offsets, commit; and so before partitions go."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.client = Client(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "partition.assignment.strategy": "cooperative-sticky",
                "heartbeat.interval.ms": HEARTBEAT,
                "fetch.queue.backoff.ms": FETCHED_AGAIN,  # as ours: with librdkafka's own second it runs out of records
                "check.crcs": True,
                "log_level": 0,
            }
        )
        self.producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex, "log_level": 0})
        self.producer.init_transactions(60)
        self.last: dict[tuple[str, int], int] = {}
        self.open_since = 0.0

    def run(self, source: str, sink: str) -> None:
        self.client.subscribe([source], on_revoke=lambda *_: self.commit())
        produce, last = self.producer.produce, self.last
        while True:
            messages = self.client.consume(1000, 0.1)
            if messages and not self.open_since:
                self.producer.begin_transaction()
                self.open_since = time.monotonic()
            for message in messages:
                if message.error():
                    raise SystemExit(message.error().str())
                try:
                    produce(sink, message.value(), message.key())
                except BufferError:
                    self.producer.poll(1)
                    produce(sink, message.value(), message.key())
                last[message.topic(), message.partition()] = message.offset() + 1
            self.producer.poll(0)
            if self.open_since and time.monotonic() - self.open_since >= SECONDS:
                self.commit()

    def commit(self) -> None:
        if not self.open_since:
            return
        positions = [TopicPartition(topic, number, offset) for (topic, number), offset in self.last.items()]
        try:
            self.producer.send_offsets_to_transaction(positions, self.client.consumer_group_metadata(), 60)
            self.producer.commit_transaction(60)
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            self.producer.abort_transaction(60)  # a rebalance came in between: read it again
            for position in self.client.committed(self.client.assignment(), timeout=60):
                self.client.seek(position if position.offset >= 0 else TopicPartition(*_place(position), 0))
        self.last.clear()
        self.open_since = 0.0


def _place(position: TopicPartition) -> tuple[str, int]:
    return position.topic, position.partition


def by_hand(bootstrap: str, source: str, sink: str, group: str) -> None:
    ByHand(bootstrap, group).run(source, sink)


def ours(bootstrap: str, source: str, sink: str, group: str) -> None:
    def copy(record: Record) -> Output:
        return Output(sink, record.value, record.key)

    with Consumer(bootstrap, source, guarantee=ExactlyOnce(group), **{"heartbeat.interval.ms": HEARTBEAT}) as consumer:
        consumer.into_kafka(copy, seconds=SECONDS)


def timed(bootstrap: str, source: str, records: int, who: str, processes: int) -> float:
    """Start members, wait until the group's progress is at the end, end them, and look at every record."""
    sink, name = new_topic(bootstrap), f"bench-{uuid.uuid4().hex[:12]}"
    call = [sys.executable, str(Path(__file__).resolve()), "--member", who, bootstrap, source, sink, name]
    members = [subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(processes)]
    try:
        begin_together(members)
        rate = watched(bootstrap, source, name if who == PEER else ExactlyOnce(name).group, records, processes)
    finally:
        for one in members:
            one.kill()
        for one in members:
            one.communicate()
    audit(bootstrap, sink, records)
    Topics(bootstrap).delete(sink)  # or brokers write ever more to their disk, and the last runs wait for it
    return rate


def begin_together(members: list[subprocess.Popen[bytes]]) -> None:
    """Nobody joins before all have their imports behind them: a member that comes late finds half of the work done."""
    for one in members:
        one.stdout.readline()
    for one in members:
        one.stdin.write(b"\n")
        one.stdin.flush()


def told_to_begin() -> None:
    """The other side of `begin_together`."""
    print("ready", flush=True)
    sys.stdin.readline()


def watched(bootstrap: str, source: str, group: str, records: int, processes: int) -> float:
    """The rate from when every member has partitions and every partition moves: joining a group takes its own time."""
    settings: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap, "log_level": 0}
    watcher = Client({**settings, "group.id": group, "isolation.level": "read_uncommitted"})
    admin = AdminClient(settings)
    places = [TopicPartition(source, number) for number in range(PARTITIONS)]
    deadline = time.monotonic() + 300
    began, before, shared, done = 0.0, 0, list[int](), 0
    while done < records:
        if time.monotonic() > deadline:
            raise SystemExit(f"{done} of {records} records after 300 s")
        time.sleep(0.02)
        reached = [max(0, each.offset) for each in watcher.committed(places, timeout=30)]
        done = sum(reached)
        if not shared and done and at_work(admin, group) == processes:
            shared = reached
        if not began and shared and all(map(gt, reached, shared)):
            began, before = time.monotonic(), done
    took = time.monotonic() - began
    watcher.close()
    if not began or before > records // 2:
        raise SystemExit(f"all members were at work only after {before or done} records: give more --records")
    return (records - before) / took


def at_work(admin: AdminClient, group: str) -> int:
    """How many members of the group have partitions."""
    found = admin.describe_consumer_groups([group])[group].result(30)
    return sum(1 for member in found.members if member.assignment.topic_partitions)


def audit(bootstrap: str, sink: str, records: int) -> None:
    with Reader(bootstrap, sink, start=Start.BEGINNING) as reader:
        found: dict[int, tuple[int, int]] = {}
        twice = []
        for record in reader.to_end():
            here = record.partition, record.offset
            first = found.setdefault(int((record.value or b"")[:12]), here)
            if first is not here:
                twice.append((first, here))
    if len(found) != records or twice:
        raise SystemExit(f"{records - len(found)} lost, {len(twice)} repeated: {twice[:3]} to {twice[-1:]}")


def main() -> None:
    chosen = arguments(ABOUT, 2_000_000)
    with a_cluster(chosen.bootstrap) as bootstrap:
        source = filled(bootstrap, chosen.records)
        runs: dict[str, Run] = {}
        pairs = {}
        for processes, words in ((1, "1 process"), (2, "2 processes")):
            for who in (PEER, OURS):
                runs[f"{who}, {words}"] = lambda who=who, processes=processes: timed(  # type: ignore[misc]
                    bootstrap, source, chosen.records, who, processes
                )
            pairs[f"{OURS}, {words}"] = f"{PEER}, {words}"
        rates = in_turn(runs, chosen.rounds)
    report(rates, pairs, as_json=chosen.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--member"]:
        told_to_begin()
        {PEER: by_hand, OURS: ours}[sys.argv[2]](*sys.argv[3:])
    else:
        main()
