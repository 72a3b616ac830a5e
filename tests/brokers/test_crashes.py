"""Processes that kill themselves at the worst moments: at most once repeats nothing, at least once loses nothing."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kept.consumer import Reader, Start
from kept.local import Cluster
from tests.brokers.groups import did, end, fill, make_topic, start
from tests.brokers.programs.member import POINTS, POLICIES, Life

RECORDS = 200
SEEDS = range(20)
AT_ONCE = 4
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


def audit(cluster: Cluster, topic: str, effects: Path) -> tuple[list[int], list[int]]:
    """Which records had no effect, and which had several: by a reader that has nothing to do with the group."""
    with Reader(cluster.bootstrap, topic, start=Start.BEGINNING) as reader:
        wanted = Counter({int(record.value or b""): 1 for record in reader.to_end()})
    had = Counter(int(one.value) for one in did(effects))
    assert set(had) <= set(wanted)
    return sorted(set(wanted) - set(had)), sorted(number for number, times in had.items() if times > 1)


def in_parallel(lives: list[Life]) -> Iterator[int]:
    for first in range(0, len(lives), AT_ONCE):
        running = [start(life) for life in lives[first : first + AT_ONCE]]
        yield from [end(process, 120) for process in running]


@pytest.mark.parametrize("at_most_once", [True, False], ids=["at most once", "at least once"])
def test_twenty_seeds_of_deaths(cluster: Cluster, numbers: str, tmp_path: Path, at_most_once: bool) -> None:
    policies = [name for name in POLICIES if not (at_most_once and name == "every")]
    lives = []
    for seed in SEEDS:
        policy, deaths = random_lives(seed, policies)
        life = life_of(cluster, numbers, tmp_path / str(seed), at_most_once=at_most_once, policy=policy)
        life.lives = deaths
        lives.append(life)
    assert set(in_parallel(lives)) == {0}
    lost_at_all = repeated_at_all = 0
    for seed, life in zip(SEEDS, lives, strict=True):
        lost, repeated = audit(cluster, numbers, Path(life.effects))
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
