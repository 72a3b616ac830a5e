"""End to end, from Kafka to the messages table: kept against a loop by hand, and against loops of one record each.

python bench/into_postgres.py [--json] [--records N] [--rounds N]

Starts a local cluster of its own, and takes it down again. The contenders take turns; every round reads the same topic
from its beginning into an empty table of its own and is audited: every key once. What is compared is the time from the
first record's arrival at the loop to the last commit, so that joining the group (which only kept does) is left out;
`with start` tells it too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import psycopg

from kept.admin.topics import Topics
from kept.consumer import Consumer
from kept.consumer.consuming import FETCHED_AGAIN
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.local.ports import ANY_FREE
from kept.local.tether import tethered

TOPIC = "bench-into-postgres"
PARTITIONS = 3
CHUNK = 10_000
STAMP = "idempotency_key"
FEW = 1000
OF_THE_ARTICLE = 30_000
"""A tenth of ours. Its table has no index: each record reads all that are there, and ten times as many take a hundred
times as long."""
MESSAGES = "CREATE TABLE messages (id bigserial PRIMARY KEY, idempotency_key uuid NOT NULL UNIQUE, message text)"
PROGRESS = "CREATE TABLE progress (partition int PRIMARY KEY, next_offset bigint NOT NULL)"


class Round:
    """The times of one run: from its start, and from its first record, to the last commit."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.first = 0.0
        self.ended = 0.0

    def record_arrived(self) -> None:
        self.first = self.first or time.perf_counter()

    def over(self) -> Round:
        self.ended = time.perf_counter()
        return self


def fill(bootstrap: str, records: int) -> None:
    """Records of 100 bytes, each stamped in its header."""
    Topics(bootstrap).create(TOPIC, PARTITIONS, ExactlyOnce("bench"))
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "none", "enable.idempotence": True}
    )
    for number in range(records):
        value = f"{number:08d}".encode().ljust(100, b".")
        while True:
            try:
                producer.produce(TOPIC, value, partition=number % PARTITIONS, headers=[(STAMP, str(uuid.uuid4()))])
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(120):
        sys.exit("the topic could not be filled")


def ours(bootstrap: str, dsn: str, records: int) -> Round:
    """`Consumer.into_postgres`, as it is used."""
    consumer = Consumer(bootstrap, TOPIC, guarantee=ExactlyOnce(f"bench-{uuid.uuid4().hex[:8]}"))
    take = consumer._member.take
    round_ = Round()
    done = 0

    def counted(most: int, wait: float) -> Any:
        """The loop asks for more only when the last chunk is committed."""
        nonlocal done
        if done >= records:
            round_.over()
            consumer.stop()
            return []
        found = take(most, wait)
        if found:
            round_.record_arrived()
            done += len(found)
        return found

    consumer._member.take = counted  # type: ignore[method-assign]
    watchdog = threading.Timer(600, consumer.stop)
    watchdog.start()
    with consumer:
        consumer.into_postgres(dsn)
    watchdog.cancel()
    return round_


def reader(bootstrap: str, dsn: str, messages: str = MESSAGES) -> confluent_kafka.Consumer:
    """What all loops by hand need: tables, and a reader from the beginning."""
    with psycopg.connect(dsn) as setup:
        setup.execute(messages.encode())
        setup.execute(PROGRESS.encode())
        for partition in range(PARTITIONS):
            setup.execute("INSERT INTO progress VALUES (%s, 0)", (partition,))
    client = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "by-hand",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": FETCHED_AGAIN,  # as ours: with librdkafka's own second it runs out of records
        }
    )
    client.assign([confluent_kafka.TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    return client


def stamp_of(message: confluent_kafka.Message) -> str:
    for name, value in message.headers() or []:  # type: ignore[str-unpack]
        if name == STAMP and value is not None:
            return value if isinstance(value, str) else value.decode()
    raise ValueError("no stamp")


def by_hand(bootstrap: str, dsn: str, records: int) -> Round:
    """The usual good loop: consume, COPY into a temporary table, INSERT ... ON CONFLICT, progress, COMMIT."""
    round_ = Round()
    client, done = reader(bootstrap, dsn), 0
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TEMPORARY TABLE arriving (key uuid, message text) ON COMMIT DELETE ROWS")
        connection.commit()
        while done < records:
            messages = client.consume(CHUNK, 0.05)
            if not messages:
                continue
            round_.record_arrived()
            last = {message.partition(): message.offset() for message in messages}
            connection.execute("SELECT next_offset FROM progress WHERE partition = ANY(%s) FOR UPDATE", (list(last),))
            with connection.cursor().copy("COPY arriving (key, message) FROM STDIN") as copy:
                for message in messages:
                    copy.write_row((stamp_of(message), (message.value() or b"").decode()))
            connection.execute(
                "INSERT INTO messages (idempotency_key, message) SELECT key, message FROM arriving "
                "ON CONFLICT (idempotency_key) DO NOTHING"
            )
            connection.cursor().executemany(
                "UPDATE progress SET next_offset = %s WHERE partition = %s",
                [(offset + 1, partition) for partition, offset in last.items() if offset is not None],
            )
            connection.commit()
            done += len(messages)
        round_.over()
    client.close()
    return round_


def one_at_a_time(client: confluent_kafka.Consumer, round_: Round, records: int) -> Iterator[confluent_kafka.Message]:
    """So many records, as they come; asking for the next one says that the last one is done."""
    done = 0
    while done < records:
        message = client.poll(0.05)
        if message is not None:
            round_.record_arrived()
            yield message
            done += 1
    round_.over()


def one_by_one(bootstrap: str, dsn: str, records: int) -> Round:
    """INSERT ... WHERE NOT EXISTS into a table with an index, its progress and a COMMIT for each record."""
    round_ = Round()
    client = reader(bootstrap, dsn)
    with psycopg.connect(dsn) as connection:
        for message in one_at_a_time(client, round_, records):
            key = stamp_of(message)
            connection.execute(
                "INSERT INTO messages (idempotency_key, message) SELECT %s, %s "
                "WHERE NOT EXISTS (SELECT FROM messages WHERE idempotency_key = %s)",
                (key, (message.value() or b"").decode(), key),
            )
            statement = "UPDATE progress SET next_offset = %s WHERE partition = %s"
            connection.execute(statement, ((message.offset() or 0) + 1, message.partition()))
            connection.commit()
    client.close()
    return round_


def article(bootstrap: str, dsn: str, records: int) -> Round:
    """The article's loop and table: INSERT ... WHERE NOT EXISTS, which finds out without an index; no progress."""
    round_ = Round()
    table = "CREATE TABLE messages (id serial PRIMARY KEY, idempotency_key text, message text)"
    client = reader(bootstrap, dsn, table)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for message in one_at_a_time(client, round_, records):
            key = stamp_of(message)
            connection.execute(
                "INSERT INTO messages (idempotency_key, message) SELECT %s, %s "
                "WHERE NOT EXISTS (SELECT 1 FROM messages WHERE idempotency_key = %s)",
                (key, (message.value() or b"").decode(), key),
            )
    client.close()
    return round_


def a_database(server: str) -> str:
    name = f"bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{server.rpartition('/')[0]}/{name}"


def audited(dsn: str, records: int) -> None:
    """Every key once, and as many as were sent."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*), count(DISTINCT message) FROM messages").fetchone()
    if row != (records, records):
        sys.exit(f"the audit failed: {row} of {records}")


Contender = Callable[[str, str, int], Round]


def measure(cluster: Cluster, contender: Contender, records: int) -> dict[str, float]:
    dsn = a_database(cluster.dsn)
    result = contender(cluster.bootstrap, dsn, records)
    if not result.ended:
        sys.exit(f"{contender.__name__} did not end")
    audited(dsn, records)
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {dsn.rpartition('/')[2]} WITH (FORCE)".encode())
        connection.execute("CHECKPOINT")
    return {
        "records_per_second": records / (result.ended - result.first),
        "records_per_second_with_start": records / (result.ended - result.began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"ours": [], "by_hand": [], "one_by_one": [], "article": []}
    with tempfile.TemporaryDirectory() as place, tethered(Cluster(Path(place) / "cluster")) as cluster:
        cluster.up(ports=ANY_FREE)
        fill(cluster.bootstrap, options.records)
        for number in range(options.rounds):
            turns: list[Contender] = [ours, by_hand] if number % 2 == 0 else [by_hand, ours]
            for contender in turns:
                rounds[contender.__name__].append(measure(cluster, contender, options.records))
            if number < 3:
                rounds["one_by_one"].append(measure(cluster, one_by_one, min(FEW, options.records)))
            if number < 1:
                rounds["article"].append(measure(cluster, article, min(OF_THE_ARTICLE, options.records)))
    report(options.records, rounds, as_json=options.json)


def report(records: int, rounds: dict[str, list[dict[str, float]]], *, as_json: bool) -> None:
    medians = {
        name: statistics.median(one["records_per_second"] for one in found) for name, found in rounds.items() if found
    }
    ratios = {f"ours / {name}": medians["ours"] / medians[name] for name in ("by_hand", "one_by_one", "article")}
    if as_json:
        print(json.dumps({"records": records, "rounds": rounds, "medians": medians, "ratios": ratios}, indent=2))
        return
    for name, found in rounds.items():
        speeds = " ".join(f"{one['records_per_second']:>9,.0f}" for one in found)
        print(f"{name:<11} {medians[name]:>9,.0f} records/s (median)   rounds: {speeds}")
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
