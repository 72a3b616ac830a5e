"""Members that come, go, die and freeze: nothing is lost, order is kept, and whoever was succeeded records nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from kept.consumer import Consumer, Start
from kept.consumer.membership import Membership
from kept.consumer.policies import AfterBatch
from kept.consumer.positions import Next
from kept.consumer.records import Place
from kept.guarantees import AtLeastOnce, AtMostOnce, consumer_settings
from kept.local import Cluster
from kept.producer import Producer
from tests.brokers.groups import Did, Watcher, did, end, fill, make_topic, start
from tests.brokers.programs.member import FENCED, Life
from tests.conftest import Eventually

STORM = 30.0
SHORT_SESSION = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
KEYS = 12


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that do not outlive the test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()


def new_life(cluster: Cluster, topic: str, effects: Path, **more: object) -> Life:
    settings = {**SHORT_SESSION, **dict(more.pop("settings", {}))}  # type: ignore[call-overload]
    return Life(cluster.bootstrap, topic, f"group-{uuid.uuid4().hex[:8]}", str(effects), settings=settings, **more)  # type: ignore[arg-type]


@contextmanager
def watched(watcher: Watcher) -> Iterator[list[list[int]]]:
    """What was recorded, again and again; a look that fails is told, and shows nothing."""
    seen: list[list[int]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            try:
                seen.append(watcher.recorded())
            except KafkaException as failure:
                print(f"after {len(seen)} looks: {failure}")

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(60)


def assert_never_backwards(seen: list[list[int]]) -> None:
    for before, later in pairwise(seen):
        assert all(now >= then for then, now in zip(before, later, strict=True)), (before, later)


def assert_in_order(effects: list[Did]) -> None:
    """A member's stream of a partition has no hole unless it began again lower; a key's first effects rise."""
    streams: dict[tuple[int, int], list[int]] = defaultdict(list)
    for one in effects:
        streams[one.who, one.partition].append(one.offset)
    reached: dict[int, int] = defaultdict(lambda: -1)
    for one in effects:
        assert one.offset <= reached[one.partition] + 1, f"{one} came before what stands in front of it"
        reached[one.partition] = max(reached[one.partition], one.offset)
    assert streams
    firsts: dict[str, list[int]] = defaultdict(list)
    done = set()
    for one in effects:
        if one.value not in done:
            done.add(one.value)
            key, number = one.value.split("-")
            firsts[key].append(int(number))
    assert all(numbers == sorted(numbers) for numbers in firsts.values())


def last_at_work(effects: Path) -> int:
    done = did(effects)
    return done[-1].who if done else 0


def test_a_storm_of_members_loses_nothing_and_keeps_the_order_of_every_key(
    cluster: Cluster, topic: str, tmp_path: Path, running: list[subprocess.Popen[bytes]], eventually: Eventually
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    life = new_life(cluster, topic, tmp_path / "effects", policy="every", seconds=0.001)
    watcher = Watcher(cluster.bootstrap, life.group, topic, 3)
    sent: list[str] = []
    happened: list[str] = []
    members = [start(life) for _ in range(3)]
    running += members
    deadline = time.monotonic() + STORM
    with watched(watcher) as seen, Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        following = time.monotonic() + 2
        while time.monotonic() < deadline:
            for _ in range(20):
                key, number = dice.randrange(KEYS), len(sent)
                producer.send(topic, f"{key}-{number}", partition=key % 3)
                sent.append(f"{key}-{number}")
            time.sleep(0.03)
            if time.monotonic() > following:
                following = time.monotonic() + dice.uniform(1, 4)
                harm = dice.choice([signal.SIGKILL, signal.SIGTERM])
                at_work = [number for number in range(3) if members[number].pid == last_at_work(tmp_path / "effects")]
                one = dice.choice(at_work or range(3))
                members[one].send_signal(harm)
                happened.append(harm.name)
                if harm is signal.SIGTERM:
                    assert end(members[one]) in (0, -signal.SIGTERM), "it may have been too young to hear"
                members[one] = start(life)
                running.append(members[one])
        producer.flush()
        eventually(lambda: {one.value for one in did(tmp_path / "effects")} >= set(sent), "every effect", within=90)
        for process in members:
            process.send_signal(signal.SIGTERM)
        assert {end(process) for process in members} == {0}
        eventually(lambda: len(seen) > 20, "enough looks to tell", within=60)
    effects = did(tmp_path / "effects")
    print(f"{len(sent)} sent, {len(effects)} effects, {happened}, progress looked at {len(seen)} times")
    assert_in_order(effects)
    assert_never_backwards(seen)
    assert sum(watcher.recorded()) == len(sent)
    watcher.close()


def test_a_member_that_takes_too_long_is_told_and_records_nothing(
    cluster: Cluster, tmp_path: Path, running: list[subprocess.Popen[bytes]], eventually: Eventually
) -> None:
    topic = make_topic(cluster.bootstrap, 1)
    fill(cluster.bootstrap, topic, range(10))
    life = new_life(
        cluster, topic, tmp_path / "slow", policy="each", settings={"max.poll.interval.ms": 6000}, slow={"3": 9.0}
    )
    watcher = Watcher(cluster.bootstrap, life.group, topic)
    running.append(start(life))
    assert end(running[0]) == FENCED
    assert [one.offset for one in did(tmp_path / "slow")] == [0, 1, 2, 3]
    assert watcher.recorded() == [3], "the record that took too long is not recorded as done"
    watcher.close()


@pytest.mark.parametrize("at_most_once", [True, False], ids=["at most once", "at least once"])
def test_a_frozen_member_that_was_succeeded_records_nothing_when_it_wakes(
    cluster: Cluster, tmp_path: Path, running: list[subprocess.Popen[bytes]], eventually: Eventually, at_most_once: bool
) -> None:
    topic = make_topic(cluster.bootstrap, 1)
    fill(cluster.bootstrap, topic, range(20))
    life = new_life(cluster, topic, tmp_path / "frozen", policy="ten", at_most_once=at_most_once, slow={"4": 2.0})
    watcher = Watcher(cluster.bootstrap, life.group, topic)

    def had() -> list[int]:
        return [one.offset for name in ("frozen", "successor") for one in did(tmp_path / name)]

    frozen = start(life)
    running.append(frozen)
    eventually(lambda: len(did(tmp_path / "frozen")) == 5, "the fifth record in hand", within=60)
    frozen.send_signal(signal.SIGSTOP)
    life.effects = str(tmp_path / "successor")
    running.append(start(life))
    everything = 20
    eventually(lambda: watcher.recorded() == [everything], "the successor at the end", within=60)
    with watched(watcher) as seen:
        frozen.send_signal(signal.SIGCONT)
        eventually(lambda: watcher.members() == 2, "the frozen one back as a new member", within=60)
        fill(cluster.bootstrap, topic, range(20, 30))
        eventually(lambda: max(had()) == 29 and watcher.recorded() == [30], "both at work again", within=60)
        for process in running:
            process.send_signal(signal.SIGTERM)
        assert {end(process) for process in running} == {0}
        eventually(lambda: len(seen) > 20, "enough looks to tell", within=60)
    assert_never_backwards(seen)
    if at_most_once:
        assert len(had()) == len(set(had())), "an effect twice"
        assert set(range(10, 30)) <= set(had()), "only what the frozen one had committed may be missing"
    else:
        assert set(had()) == set(range(30))
        assert had().count(0) == 2, "what was not recorded when it froze is done again"
    watcher.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_record_in_hand_and_leaves_the_group(
    cluster: Cluster, tmp_path: Path, running: list[subprocess.Popen[bytes]], eventually: Eventually, number: int
) -> None:
    topic = make_topic(cluster.bootstrap, 1)
    fill(cluster.bootstrap, topic, range(10))
    life = new_life(cluster, topic, tmp_path / "effects", slow={"2": 1.0})
    life.settings = {}  # a session of 45 s: whoever does not leave is missed late
    watcher = Watcher(cluster.bootstrap, life.group, topic)
    running.append(start(life))
    eventually(lambda: len(did(tmp_path / "effects")) == 3, "the third record in hand", within=60)
    running[0].send_signal(number)
    assert end(running[0]) == 0
    assert watcher.members() == 0, "the group is empty at once"
    assert [one.offset for one in did(tmp_path / "effects")] == [0, 1, 2]
    assert watcher.recorded() == [3], "the record in hand was finished and recorded"
    watcher.close()


def test_a_second_signal_does_not_wait(
    cluster: Cluster, tmp_path: Path, running: list[subprocess.Popen[bytes]], eventually: Eventually
) -> None:
    topic = make_topic(cluster.bootstrap, 1)
    fill(cluster.bootstrap, topic, range(10))
    life = new_life(cluster, topic, tmp_path / "effects", slow={"2": 60.0})
    running.append(start(life))
    eventually(lambda: len(did(tmp_path / "effects")) == 3, "the third record in hand", within=60)
    running[0].send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert running[0].poll() is None, "it finishes the record first"
    os.kill(running[0].pid, signal.SIGTERM)
    assert end(running[0], 20) == -signal.SIGTERM


class Asks:
    """A follower that asks the cluster where to begin, as they all do."""

    def __init__(self, member: Membership) -> None:
        self.member = member
        self.asked: list[Place] = []

    def assigned(self, places: Sequence[Place]) -> Mapping[Place, Next]:
        self.asked += places
        return {place: found or Next(0) for place, found in self.member.committed(places).items()}

    def revoked(self, places: Sequence[Place]) -> None:
        pass

    lost = revoked


def test_partitions_that_come_while_a_member_leaves_are_not_begun(
    cluster: Cluster, topic: str, eventually: Eventually
) -> None:
    """A client that closes answers no question: asking where to begin would wait for its time-outs."""
    watcher = Watcher(cluster.bootstrap, f"group-{uuid.uuid4().hex[:8]}", topic)
    settings = consumer_settings(AtLeastOnce(), watcher.group).values()
    member = Membership({**settings, "bootstrap.servers": cluster.bootstrap, "log_level": 0}, [topic])
    follower = Asks(member)
    member.join(follower)
    eventually(watcher.stable, "the group has given out its partitions, and nobody has polled for them")
    began = time.monotonic()
    member.leave()
    watcher.close()
    assert follower.asked == []
    assert time.monotonic() - began < 20


def test_at_most_once_gives_up_what_it_took_ahead_of_a_partition_that_went(
    cluster: Cluster, eventually: Eventually
) -> None:
    """While a slow body is at work records come in ahead; what came of a partition is not ours when that has gone."""
    topic, group = make_topic(cluster.bootstrap, 2), f"group-{uuid.uuid4().hex[:8]}"
    done: list[str] = []
    shared = threading.Event()

    def member() -> Consumer:
        return Consumer(
            cluster.bootstrap,
            topic,
            group=group,
            guarantee=AtMostOnce(),
            commit=AfterBatch(20),
            start=Start.BEGINNING,
        )

    def work(consumer: Consumer, *, slowly: bool) -> None:
        with consumer:
            for record in consumer:
                done.append((record.value or b"").decode())
                if not slowly:
                    shared.set()
                elif not shared.is_set():
                    time.sleep(1.1)  # longer than a second: the group is heard between two records

    first, second = member(), member()
    threads = [threading.Thread(target=work, args=(first,), kwargs={"slowly": True})]
    threads[0].start()
    eventually(lambda: len(first.partitions) == 2, "it has both partitions", 60)
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        for number in range(60):  # one by one, as they are fetched then: of both partitions in turn
            producer.send(topic, str(number), partition=number % 2).result()
            time.sleep(0.05)
    eventually(lambda: len(done) >= 6, "some came in ahead of both partitions", 60)
    threads.append(threading.Thread(target=work, args=(second,), kwargs={"slowly": False}))
    threads[1].start()
    eventually(lambda: len(done) >= 60, "every record is done", 120)
    first.stop()
    second.stop()
    for thread in threads:
        thread.join(60)
    assert sorted(map(int, done)) == list(range(60))
