"""How fast the outbox is, against what a person would do without it.

    python bench/outbox.py [--bootstrap HOST:PORT] [--records 200000] [--rounds 5] [--only relay] [--json]

- send: 32 threads that each wait for the disk, against 32 threads that each wait for acks=all of raw confluent-kafka;
- batches: `send_all` of 1,000, against raw confluent-kafka that produces 1,000 and flushes;
- one sender's latency, against one write and fsync of a file on the same disk;
- relay: a full journal into Kafka exactly once, against the same records by raw confluent-kafka in transactions, all on
  one client (which is quicker, and unsafe: docs/decisions/0007): once in transactions of a tenth of a second, as the
  producer is measured, and once in transactions as large as the relay's own.

Each in turn, so that whatever else the machine does meets both; relayed records are counted in Kafka. Without
--bootstrap a cluster of its own is started. Figures of one machine, to be read as ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer as Client

from kept.admin.topics import Topics
from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.outbox import Outbox, Relay
from kept.outbox.journal import Journal
from kept.outbox.relay import TOGETHER as AS_THE_RELAY

sys.path.insert(0, str(Path(__file__).parent))
from producer import SIZE, WARM, audit, brokers, by_hand_in_transactions, settings, told, values

SENDERS = 32
TOGETHER = 1000
ALONE = 300


def made(bootstrap: str) -> str:
    topic = f"bench-{uuid.uuid4().hex[:12]}"
    Topics(bootstrap).create(topic, 8, ExactlyOnce("bench"))
    return topic


def in_threads(send: Callable[[bytes], object], content: list[bytes]) -> float:
    """Seconds in which so many threads, each waiting for its own record, get all of it done."""
    threads = [
        threading.Thread(target=lambda some: [send(value) for value in some], args=(content[number::SENDERS],))
        for number in range(SENDERS)
    ]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun


def raw_senders(bootstrap: str, content: list[bytes]) -> float:
    """Each thread waits until all replicas have its record; a thread of its own brings the reports in."""
    topic = made(bootstrap)
    client = Client({**settings(bootstrap, AtLeastOnce()), "linger.ms": 0})
    client.produce(topic, WARM)
    client.flush(30)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            client.poll(0.1)

    def send(value: bytes) -> None:
        arrived = threading.Lock()
        arrived.acquire()
        client.produce(topic, value, on_delivery=lambda _error, _message: arrived.release())
        arrived.acquire()

    serving = threading.Thread(target=serve)
    serving.start()
    took = in_threads(send, content)
    over.set()
    serving.join()
    return took


def raw_batches(bootstrap: str, content: list[bytes]) -> float:
    topic = made(bootstrap)
    client = Client(settings(bootstrap, AtLeastOnce()))
    client.produce(topic, WARM)
    client.flush(30)
    begun = time.perf_counter()
    for first in range(0, len(content), TOGETHER):
        for value in content[first : first + TOGETHER]:
            client.produce(topic, value)
        client.flush(60)
    return time.perf_counter() - begun


def our_senders(folder: Path, content: list[bytes]) -> float:
    with Outbox(folder / f"{uuid.uuid4()}.db") as outbox:
        return in_threads(lambda value: outbox.send("t", value), content)


def our_batches(folder: Path, content: list[bytes]) -> float:
    with Outbox(folder / f"{uuid.uuid4()}.db") as outbox:
        begun = time.perf_counter()
        for first in range(0, len(content), TOGETHER):
            outbox.send_all([("t", value) for value in content[first : first + TOGETHER]])
        return time.perf_counter() - begun


def one_fsync(folder: Path) -> float:
    """Seconds of one write of a page behind the others and its fsync."""
    file = os.open(folder / f"{uuid.uuid4()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    begun = time.perf_counter()
    for _ in range(ALONE):
        os.write(file, bytes(4096))
        os.fsync(file)
    took = time.perf_counter() - begun
    os.close(file)
    return took / ALONE


def one_send(folder: Path) -> float:
    with Outbox(folder / f"{uuid.uuid4()}.db") as outbox:
        begun = time.perf_counter()
        for _ in range(ALONE):
            outbox.send("t", b"x" * SIZE)
        return (time.perf_counter() - begun) / ALONE


def raw_relay(bootstrap: str, content: list[bytes], together: int | None = None) -> float:
    topic = made(bootstrap)
    took = by_hand_in_transactions(bootstrap, topic, content, together)
    audit(bootstrap, topic, [WARM, *content])
    return took


def our_relay(bootstrap: str, folder: Path, content: list[bytes]) -> float:
    """The first record goes before the clock starts, as in the other."""
    path, topic = folder / f"{uuid.uuid4()}.db", made(bootstrap)
    with Outbox(path) as outbox:
        for first in range(0, len(content), 20_000):
            outbox.send_all([(topic, value) for value in content[first : first + 20_000]])
    journal = Journal(path)
    work = Relay(journal, bootstrap)
    begun: list[float] = []
    begin = work._carrier.begin

    def watched() -> int:
        start = begin()
        begun.append(time.perf_counter())  # it has claimed its name; what follows is relaying
        return start

    work._carrier.begin = watched  # type: ignore[method-assign]
    work.run(until_empty=True)
    took = time.perf_counter() - begun[0]
    journal.close()
    told(work.relayed == len(content), f"{work.relayed} of {len(content)} were relayed")
    audit(bootstrap, topic, content)
    return took


def compared(bootstrap: str, folder: Path, records: int, rounds: int, only: str) -> list[dict[str, object]]:
    content, fewer = values(records), values(max(SENDERS, records // 10))
    pairs: dict[str, tuple[int, Callable[[], float], Callable[[], float]]] = {
        "32 senders": (len(fewer), lambda: raw_senders(bootstrap, fewer), lambda: our_senders(folder, fewer)),
        "batches": (records, lambda: raw_batches(bootstrap, content), lambda: our_batches(folder, content)),
        "relay, peer by 0.1 s": (
            records,
            lambda: raw_relay(bootstrap, content),
            lambda: our_relay(bootstrap, folder, content),
        ),
        f"relay, peer by {AS_THE_RELAY:,}": (
            records,
            lambda: raw_relay(bootstrap, content, AS_THE_RELAY),
            lambda: our_relay(bootstrap, folder, content),
        ),
        "one sender": (1, lambda: one_fsync(folder), lambda: one_send(folder)),
    }
    rows: list[dict[str, object]] = []
    for name, (count, raw, ours) in pairs.items():
        if only not in name:
            continue
        raw()  # warm
        speeds = [(count / raw(), count / ours()) for _ in range(rounds)]
        rows.append(
            {
                "what": name,
                "raw": round(statistics.median(raw for raw, _ in speeds)),
                "kept": round(statistics.median(kept for _, kept in speeds)),
                "ratio": round(statistics.median(kept / raw for raw, kept in speeds), 2),
                "ratios": [round(kept / raw, 2) for raw, kept in speeds],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="the outbox against confluent-kafka and the disk")
    parser.add_argument("--bootstrap", help="brokers to use; without it, a cluster of its own")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="comparisons with this word in their name")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with brokers(options.bootstrap) as bootstrap, tempfile.TemporaryDirectory() as folder:
        rows = compared(bootstrap, Path(folder), options.records, options.rounds, options.only)
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{options.records:,} records of {SIZE} bytes, records (one sender: sends, or fsyncs) a second, medians")
    print(f"{'':22} {'raw':>9} {'kept':>9} {'ratio':>6}   the rounds' ratios")
    for row in rows:
        print(f"{row['what']:22} {row['raw']:>9,} {row['kept']:>9,} {row['ratio']:>6}   {row['ratios']}")


if __name__ == "__main__":
    main()
