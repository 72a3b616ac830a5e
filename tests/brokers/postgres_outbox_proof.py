"""Proof of the Postgres outbox by seeds: `python -m tests.brokers.postgres_outbox_proof --seeds 50 [--first 0]`.

In each: writers overlap, stall and abort; relays are killed with SIGKILL, at named points and at random, and started
again, at times two at once. In every fourth, all brokers are away meanwhile, for longer than any time-out. An
independent reader then compares Kafka with the versions in the database.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TypeAlias

import confluent_kafka
import psycopg
from confluent_kafka import KafkaError, TopicPartition

from kept.local import Cluster
from kept.local.ports import ANY_FREE
from kept.local.tether import tethered
from kept.outbox.postgres_backlog import PostgresBacklog
from kept.outbox.postgres_schema import make_outbox
from kept.stores.sessions import open_session
from tests.brokers import outbox_writers
from tests.brokers.outbox_proof import AWAY, POINTS, RARE
from tests.brokers.outbox_writers import Harm, Seen
from tests.brokers.pipes import new_topic
from tests.brokers.programs import postgres_relay
from tests.brokers.programs.outbox_life import WHEN
from tests.brokers.store_things import a_database

WRITERS = 5
TRANSACTIONS = 100
DRAINED_WITHIN = 90.0
OUTAGE_EVERY = 4
BEFORE_THE_OUTAGE = 1.5
Death: TypeAlias = tuple[str, str, int]


def relay_process(dsn: str, bootstrap: str, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", postgres_relay.__name__, dsn, bootstrap, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def an_outbox(server: str) -> str:
    """A database with an empty outbox, and with the writers' tables."""
    dsn = a_database(server)
    session = open_session(dsn, "test", 5, 60)
    make_outbox(session)
    session.close()
    outbox_writers.prepare(dsn)
    return dsn


def in_kafka(bootstrap: str, topic: str) -> Seen:
    """What a read_committed reader that shares nothing with us sees: accounts and tokens, in the order of each log."""
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "an auditor",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    seen = Seen()
    try:
        left = set(reader.list_topics(topic, 30).topics[topic].partitions)
        reader.assign([TopicPartition(topic, number, 0) for number in left])
        while left:
            message = reader.poll(30)
            assert message is not None, f"partitions {left} do not come to their end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition() or 0)
                continue
            seen.records.append((int(message.key() or b""), (message.value() or b"").decode()))
    finally:
        reader.close()
    return seen


class Relays:
    """Relays that are killed and started again; at times a second one beside the first."""

    def __init__(self, dsn: str, bootstrap: str, luck: random.Random) -> None:
        self._where = dsn, bootstrap
        self._luck = luck
        self._alive: list[subprocess.Popen[str]] = []
        self.killed = self.fenced = self.died = 0
        self._all: list[subprocess.Popen[str]] = []

    def start(self, death: Death | None = None) -> None:
        process = relay_process(*self._where, json.dumps(death))
        self._alive.append(process)
        self._all.append(process)

    def _some_death(self) -> Death | None:
        """Most die at a point, the others where they happen to be. A relay lives for a second or two."""
        point = self._luck.choice(POINTS)
        times = 1 if point in RARE else self._luck.randint(1, 3)
        return (self._luck.choice(WHEN), point, times) if self._luck.random() < 0.7 else None

    def harass(self, until: threading.Event) -> None:
        """One random thing after the other."""
        self.start(self._some_death())
        while not until.is_set():
            time.sleep(self._luck.uniform(0.3, 2.5))
            self._bury()
            if self._luck.random() < 0.45:
                self.start(self._some_death())
            else:
                self._kill_one()
            if not self._alive:
                self.start(self._some_death())
        self._bury()
        if not self._alive:
            self.start()

    def _kill_one(self) -> None:
        if self._alive:
            process = self._alive.pop(self._luck.randrange(len(self._alive)))
            process.send_signal(signal.SIGKILL)
            self.killed += 1

    def _bury(self) -> None:
        for process in [process for process in self._alive if process.poll() is not None]:
            self._alive.remove(process)

    def revive(self) -> None:
        self._bury()
        if not self._alive:
            self.start()

    def end(self) -> None:
        for process in self._alive:
            process.send_signal(signal.SIGTERM)
        for process in self._all:
            said, _ = process.communicate(timeout=60)
            self.fenced += said.startswith("Fenced")
            self.died += process.returncode == -signal.SIGKILL
            # Told to end before it could hear it, a process ends by the signal.
            assert process.returncode in (0, 1, -signal.SIGKILL, -signal.SIGTERM), said
            assert process.returncode != 1 or said.startswith("Fenced"), said


class Outage(threading.Thread):
    """Every broker is killed while the writers write, and comes back after longer than a relay waits for anything."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            time.sleep(BEFORE_THE_OUTAGE)
            for number in (1, 2, 3):
                self._cluster.broker(number).kill()
            time.sleep(AWAY)  # the outage itself
            self._cluster.up()
        except BaseException as error:  # noqa: BLE001 - raised where its end is waited for
            self.failed = error

    def end(self) -> None:
        self.join()
        if self.failed is not None:
            raise self.failed


def prove(cluster: Cluster, seed: int) -> Harm:
    """One seed; raises or returns what an auditor found."""
    luck = random.Random(seed)
    dsn, topic = an_outbox(cluster.dsn), new_topic(cluster.bootstrap)
    relays = Relays(dsn, cluster.bootstrap, luck)
    written = threading.Event()
    harasser = threading.Thread(target=relays.harass, args=(written,))
    harasser.start()
    outage = Outage(cluster) if seed % OUTAGE_EVERY == OUTAGE_EVERY - 1 else None
    try:
        if outage is not None:
            outage.start()
        outbox_writers.write(dsn, seed, WRITERS, TRANSACTIONS, topic)
        if outage is not None:
            outage.end()
    finally:
        written.set()
        harasser.join()
    backlog = PostgresBacklog(dsn)
    deadline = time.monotonic() + DRAINED_WITHIN
    try:
        while backlog.lag().records:
            assert time.monotonic() < deadline, f"seed {seed}: {backlog.lag()} is left"
            relays.revive()
            time.sleep(0.1)
    finally:
        backlog.close()
        relays.end()
    truth = outbox_writers.truth_of(dsn)
    harm = in_kafka(cluster.bootstrap, topic).compared_with(truth)
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {dsn.rpartition('/')[2]} WITH (FORCE)".encode())
    records = sum(map(len, truth.values()))
    print(
        f"seed {seed}: {records} records, {relays.died} relays dead ({relays.killed} of them at random), "
        f"{relays.fenced} fenced{', an outage' if outage else ''}: {harm}",
        flush=True,
    )
    return harm


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seeds", type=int, default=50)
    arguments.add_argument("--first", type=int, default=0)
    chosen = arguments.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as place, tethered(Cluster(Path(place) / "cluster")) as cluster:
        cluster.up(ports=ANY_FREE)
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            bad += prove(cluster, seed) != Harm(0, 0, 0)
        cluster.down()
    print(f"{chosen.seeds} seeds, {bad} with harm")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
