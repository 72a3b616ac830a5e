"""What the tests of the stores share: a pipeline on a source that does not change, and workers in other processes."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Sequence

import psycopg

from kept.errors import KeptError
from kept.progress import Identity, Range, Source
from kept.stores import Claims, PostgresProgress, Seed

IDENTITY = Identity("cluster", "topic-id", 3)
SOURCE = Source(IDENTITY, log_start=0, log_end=1_000_000, epoch_end=1_000_000)
TOPIC = "payments"
SOURCES = {(TOPIC, partition): SOURCE for partition in range(8)}


def seeds(partitions: int, at_birth: int = 0, identity: Identity = IDENTITY) -> list[Seed]:
    return [Seed(partition, at_birth, 0, identity) for partition in range(partitions)]


def span(start: int, end: int, partition: int = 0) -> Range:
    return Range(TOPIC, partition, start, end, 3)


def pipeline(dsn: str, partitions: int = 1, lock_within: float = 1.0) -> PostgresProgress:
    """An owner of all partitions of the pipeline, which is born if need be."""
    store = PostgresProgress(dsn, "ledger", lock_within=lock_within)
    store.seed(TOPIC, seeds(partitions))
    store.take_over(TOPIC, range(partitions))
    return store


def apply(store: PostgresProgress, start: int, end: int, partition: int = 0) -> None:
    """The effect of these offsets: a row each."""
    with store.chunk([span(start, end, partition)], SOURCES) as chunk:
        insert(chunk.connection, partition, range(start, end))


def insert(connection: psycopg.Connection[tuple[object, ...]], partition: int, offsets: Sequence[int]) -> None:
    connection.cursor().executemany("INSERT INTO effects VALUES (%s, %s)", [(partition, at) for at in offsets])


def effects(dsn: str) -> list[tuple[int, int]]:
    with psycopg.connect(dsn) as connection:
        return [(row[0], row[1]) for row in connection.execute("SELECT * FROM effects ORDER BY 1, 2").fetchall()]


def recorded(dsn: str) -> dict[int, int]:
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute("SELECT partition, next_offset FROM kept_progress").fetchall())


def a_database(server: str) -> str:
    """The DSN of a new, empty database on the same server."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{server.rpartition('/')[0]}/{name}"


def worker(what: str, dsn: str) -> subprocess.Popen[str]:
    """A process of its own; it waits for a line before it starts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.brokers.store_things", what, dsn],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert told_by(process) == "started"
    return process


def told_by(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _seed(dsn: str, _line: str) -> None:
    with PostgresProgress(dsn, "ledger") as store:
        print(sorted((n, p.position.next_offset) for n, p in store.seed(TOPIC, seeds(50)).items()), flush=True)


def _sleep_in_a_chunk(dsn: str, _line: str) -> None:
    """Take over, apply ten offsets, wait to be told, and only then commit."""
    store = pipeline(dsn)
    try:
        with store.chunk([span(0, 10)], SOURCES) as chunk:
            insert(chunk.connection, 0, range(10))
            print("holding", flush=True)
            sys.stdin.readline()
    except KeptError as error:
        print(type(error).__name__, flush=True)
        try:
            store.settle([(TOPIC, 0)])
        except KeptError as settled:
            print(type(settled).__name__, flush=True)
    store.close()


def _claim(dsn: str, _line: str) -> None:
    """Claim, apply the effect, and wait to be killed before the mark."""
    with Claims(dsn, "mail") as claims, claims.once("k") as claim:
        assert claim
        print("claimed", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    print("started", flush=True)
    {"seed": _seed, "sleep": _sleep_in_a_chunk, "claim": _claim}[sys.argv[1]](sys.argv[2], sys.stdin.readline())
