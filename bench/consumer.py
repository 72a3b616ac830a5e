"""How fast a consumer hands records out, beside raw loops over confluent-kafka's consume(500).

One is as the client comes, which waits for a second whenever it has fetched enough; one has the setting that kept gives
to its members, and then what is left is the price of a record in Python: a microsecond.
"""

from __future__ import annotations

import time
import uuid

from cluster import Run, a_cluster, arguments, filled, in_turn, report
from confluent_kafka import Consumer as Client

from kept.consumer.consuming import FETCHED_AGAIN, Consumer
from kept.guarantees import AtLeastOnce

AS_IT_COMES, TUNED = "raw consume(500)", "raw consume(500), fetched again as ours"
ABOUT = "Records a second of a consumer loop that touches every value, at least once."


def raw(bootstrap: str, topic: str, records: int, fetched_again: int = 1000) -> float:
    """What a careful person writes: consume(500), then commit what is done every second."""
    client = Client(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"raw-{uuid.uuid4().hex}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "partition.assignment.strategy": "cooperative-sticky",
            "check.crcs": True,
            "fetch.queue.backoff.ms": fetched_again,
            "log_level": 0,
        }
    )
    client.subscribe([topic])
    done = size = 0
    began = commit_at = 0.0
    while done < records:
        messages = client.consume(500, 0.5)
        if not messages:
            continue
        if not began:
            began = time.monotonic()
            commit_at = began + 1
        for message in messages:
            if message.error():
                raise SystemExit(message.error().str())
            size += len(message.value())
        done += len(messages)
        last = {(message.topic(), message.partition()): message for message in messages}
        for message in last.values():
            client.store_offsets(message)
        if time.monotonic() >= commit_at or done >= records:
            client.commit(asynchronous=False)
            commit_at = time.monotonic() + 1
    took = time.monotonic() - began
    client.close()
    audit(done, size, records)
    return records / took


def kept_records(bootstrap: str, topic: str, records: int) -> float:
    done = size = 0
    began = 0.0
    with Consumer(bootstrap, topic, guarantee=AtLeastOnce(), group=f"ours-{uuid.uuid4().hex}") as consumer:
        for record in consumer:
            if not began:
                began = time.monotonic()
            size += len(record.value or b"")
            done += 1
            if done == records:
                consumer.stop()
        took = time.monotonic() - began
    audit(done, size, records)
    return records / took


def kept_batches(bootstrap: str, topic: str, records: int) -> float:
    done = size = 0
    began = 0.0
    with Consumer(bootstrap, topic, guarantee=AtLeastOnce(), group=f"ours-{uuid.uuid4().hex}") as consumer:
        for batch in consumer.batches(500):
            if not began:
                began = time.monotonic()
            for record in batch:
                size += len(record.value or b"")
            done += len(batch)
            if done == records:
                consumer.stop()
        took = time.monotonic() - began
    audit(done, size, records)
    return records / took


def audit(done: int, size: int, records: int) -> None:
    if (done, size) != (records, records * 150):
        raise SystemExit(f"{done} records of {size} bytes, wanted {records}")


def main() -> None:
    chosen = arguments(ABOUT, 500_000)
    with a_cluster(chosen.bootstrap) as bootstrap:
        topic = filled(bootstrap, chosen.records)
        runs: dict[str, Run] = {
            AS_IT_COMES: lambda: raw(bootstrap, topic, chosen.records),
            TUNED: lambda: raw(bootstrap, topic, chosen.records, FETCHED_AGAIN),
            "kept, record by record": lambda: kept_records(bootstrap, topic, chosen.records),
            "kept, batches of 500": lambda: kept_batches(bootstrap, topic, chosen.records),
        }
        rates = in_turn(runs, chosen.rounds)
    ours = [name for name in runs if name.startswith("kept")]
    report(rates, dict.fromkeys(ours, AS_IT_COMES), dict.fromkeys(ours, TUNED), as_json=chosen.json)


if __name__ == "__main__":
    main()
