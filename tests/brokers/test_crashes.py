"""Processes that kill themselves at the worst moments: at most once repeats nothing, at least once loses nothing."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition
from confluent_kafka import Consumer as Client

from kept.local import Cluster
from tests.brokers.groups import did, end, fill, make_topic, start
from tests.brokers.programs.member import POINTS, POLICIES, Life
from tests.brokers.seeds import SEEDS
from tests.brokers.store_things import a_database

RECORDS = 200
AT_ONCE = 4
PLAIN = {"group.id": "audit", "enable.partition.eof": True, "isolation.level": "read_committed", "log_level": 0}
# A static member that comes back takes its place at once, instead of after the session of the dead one.
SETTINGS = {"group.instance.id": "the-only-one", "enable.partition.eof": True}


@pytest.fixture(scope="module")
def numbers(cluster: Cluster) -> str:
    topic = make_topic(cluster.bootstrap, 2)
    fill(cluster.bootstrap, topic, range(RECORDS), 2)
    return topic


def life_of(cluster: Cluster, topic: str, effects: Path, *, at_most_once: bool, policy: str) -> Life:
    group = f"crash-{uuid.uuid4().hex[:8]}"
    return Life(cluster.bootstrap, topic, group, str(effects), at_most_once, policy, settings=dict(SETTINGS))


def random_lives(seed: int, policies: list[str]) -> tuple[str, list[tuple[str, int]]]:
    """A policy and three deaths; commits are fewer than records, so fewer of them are waited for."""
    dice = random.Random(seed)
    policy = policies[seed % len(policies)]
    often = 60 if policy == "each" else 6
    deaths = []
    for _ in range(3):
        point = dice.choice(POINTS)
        deaths.append((point, dice.randint(1, 60 if "effect" in point else often)))
    return policy, deaths


def audit(cluster: Cluster, topic: str, life: Life) -> tuple[list[int], list[int]]:
    """Which records had no effect, and which had several: by readers that have nothing to do with the group."""
    wanted, had = Counter(values(cluster, topic)), Counter(rows(life.dsn) if life.dsn else values(cluster, life.sink))
    assert set(had) <= set(wanted)
    return sorted(set(wanted) - set(had)), sorted(number for number, times in had.items() if times > 1)


def values(cluster: Cluster, topic: str) -> list[int]:
    """By a plain client, to the end of every partition."""
    client = Client({**PLAIN, "bootstrap.servers": cluster.bootstrap})
    numbers = client.list_topics(topic, timeout=30).topics[topic].partitions
    client.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
    found: list[int] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + 60
    while len(ended) < len(numbers):
        assert time.monotonic() < deadline, f"{topic} was not read to its end"
        for message in client.consume(500, 1.0):
            error = message.error()
            if error is None:
                found.append(int(message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    client.close()
    return found


def rows(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [int(value) for (value,) in connection.execute("SELECT value FROM effects").fetchall()]


def in_parallel(lives: list[Life]) -> Iterator[int]:
    for first in range(0, len(lives), AT_ONCE):
        running = [start(life) for life in lives[first : first + AT_ONCE]]
        yield from [end(process, 120) for process in running]


@pytest.mark.parametrize("sink", ["into Postgres", "into Kafka"])
@pytest.mark.parametrize("at_most_once", [True, False], ids=["at most once", "at least once"])
def test_seeds_of_deaths(cluster: Cluster, numbers: str, tmp_path: Path, at_most_once: bool, sink: str) -> None:
    policies = [name for name in POLICIES if not (at_most_once and name == "every")]
    lives = []
    for seed in SEEDS:
        policy, deaths = random_lives(seed, policies)
        life = life_of(cluster, numbers, tmp_path / str(seed), at_most_once=at_most_once, policy=policy)
        life.lives = deaths
        if sink == "into Postgres":
            life.dsn = a_database(cluster.dsn)
            with psycopg.connect(life.dsn) as connection:
                connection.execute("CREATE TABLE effects (value text)")
        else:
            life.sink = make_topic(cluster.bootstrap, 1)
        lives.append(life)
    assert set(in_parallel(lives)) == {0}
    lost_at_all = repeated_at_all = 0
    for seed, life in zip(SEEDS, lives, strict=True):
        lost, repeated = audit(cluster, numbers, life)
        print(f"seed {seed} {life.policy} {life.lives}: {len(lost)} lost, {len(repeated)} repeated")
        assert (repeated if at_most_once else lost) == []
        lost_at_all += len(lost)
        repeated_at_all += len(repeated)
    assert (lost_at_all if at_most_once else repeated_at_all) > 0, "no death hit where it hurts"


def test_ten_received_and_committed_then_a_crash_at_the_fifth_loses_the_rest(cluster: Cluster, tmp_path: Path) -> None:
    """The first failure that the articles tell of, as they tell it."""
    topic = make_topic(cluster.bootstrap, 1)
    fill(cluster.bootstrap, topic, range(1, 11))
    life = life_of(cluster, topic, tmp_path / "effects", at_most_once=True, policy="ten")
    life.lives = [("before the effect", 5)]
    assert end(start(life)) == 0
    assert [int(one.value) for one in did(tmp_path / "effects")] == [1, 2, 3, 4]


def test_ten_processed_then_a_crash_before_the_commit_processes_them_twice(cluster: Cluster, tmp_path: Path) -> None:
    """The second."""
    topic = make_topic(cluster.bootstrap, 1)
    fill(cluster.bootstrap, topic, range(1, 11))
    life = life_of(cluster, topic, tmp_path / "effects", at_most_once=False, policy="ten")
    life.lives = [("before a commit", 2)]  # the first one seeds the group
    assert end(start(life)) == 0
    assert [int(one.value) for one in did(tmp_path / "effects")] == [*range(1, 11), *range(1, 11)]
