"""Consumers whose commits are lost on the way: what is handed out, what is recorded, and who hears of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kept.consumer.at_most_once import SERVED_EVERY
from kept.consumer.consuming import Consumer
from kept.consumer.policies import AfterBatch, Asynchronously, Policy
from kept.consumer.records import Record
from kept.errors import KeptError, TryAgain
from kept.guarantees import AtLeastOnce, AtMostOnce
from kept.local import Cluster
from kept.local.tether import tethered
from kept.verify.proxy import (
    Api,
    Direction,
    Drop,
    EveryKth,
    Hold,
    KafkaProxy,
    Nth,
    Reset,
    Rule,
    in_front_of,
)
from tests.brokers.groups import Watcher, fill, make_topic
from tests.conftest import Eventually

REQUEST, RESPONSE = Direction.REQUEST, Direction.RESPONSE
IMPATIENT: dict[str, Any] = {"socket.timeout.ms": 1000}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProxy]:
    """A cluster whose clients all go through a proxy."""
    with (
        tethered(Cluster(tmp_path_factory.mktemp("behind") / "cluster")) as cluster,
        in_front_of(cluster) as proxy,
    ):
        yield proxy


@pytest.fixture
def far(proxy: KafkaProxy) -> str:
    """A topic behind the proxy, with one partition; its name serves as group and client id too."""
    return make_topic(proxy.bootstrap, 1)


@pytest.fixture
def watcher(proxy: KafkaProxy, far: str) -> Iterator[Watcher]:
    found = Watcher(proxy.bootstrap, far, far)
    yield found
    found.close()


def number(record: Record) -> int:
    return int(record.value or b"")


def test_a_failed_commit_is_heard_of_and_the_next_one_covers_it(
    proxy: KafkaProxy, far: str, watcher: Watcher, eventually: Eventually
) -> None:
    fill(proxy.bootstrap, far, range(10))
    heard: list[KeptError] = []
    policy = Asynchronously(0.1, heard.append)
    consumer = Consumer(
        proxy.bootstrap, far, group=far, guarantee=AtLeastOnce(), commit=policy, **{"client.id": far, **IMPATIENT}
    )
    seen: list[int] = []
    lost = None

    def loop() -> None:
        with consumer:
            for record in consumer:
                seen.append(number(record))  # noqa: PERF401 - one by one, as they come

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        eventually(lambda: watcher.recorded() == [10], "the first progress")
        lost = proxy.add(Rule(Api.OFFSET_COMMIT, REQUEST, Drop(), client=far))
        fill(proxy.bootstrap, far, range(10, 20))
        eventually(lambda: heard, "the failure", within=60)
        assert watcher.recorded() == [10]
        proxy.remove(lost)
        eventually(lambda: watcher.recorded() == [20], "a later commit in its place", within=60)
    finally:
        consumer.stop()
        if lost is not None:
            proxy.remove(lost)
        thread.join(90)
    assert isinstance(heard[0], TryAgain)
    assert seen == list(range(20)), "nothing was handed out again"


def test_what_was_un_read_with_a_lost_answer_is_handed_out_by_nobody_twice(
    proxy: KafkaProxy, far: str, watcher: Watcher, eventually: Eventually
) -> None:
    """The progress was set back, the answer lost; when the client asks again, another member has done the records."""
    session: dict[str, Any] = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    fill(proxy.bootstrap, far, range(10))
    beside = make_topic(proxy.bootstrap, 1)  # only the first member reads it, so that the other topic goes away
    ours: dict[str, Any] = {"group": far, "guarantee": AtMostOnce(), "commit": AfterBatch(10), **session}
    first = Consumer(proxy.bootstrap, [far, beside], **{**ours, "client.id": far})
    second = Consumer(proxy.bootstrap, far, **ours)
    seen: dict[Consumer, list[int]] = {first: [], second: []}
    goes_on = threading.Event()

    def loop(consumer: Consumer) -> None:
        with consumer:
            for record in consumer:
                seen[consumer].append(number(record))
                if consumer is first:
                    goes_on.wait(60)
                    time.sleep(SERVED_EVERY)  # a slow effect: the member is served behind it

    def is_to_give_it_away() -> bool:
        described = watcher.admin.describe_consumer_groups([far])[far].result(30)
        given = [each.topic for one in described.members if one.assignment for each in one.assignment.topic_partitions]
        return len(described.members) == 2 and given == [beside]

    threads = [threading.Thread(target=loop, args=(consumer,)) for consumer in (first, second)]
    try:
        threads[0].start()
        eventually(lambda: seen[first], "the first record is handed out, and nine more are committed")
        assert watcher.recorded() == [10]
        lost = proxy.add(Rule(Api.OFFSET_COMMIT, RESPONSE, Reset(), client=far, at_most=1))
        again = proxy.add(Rule(Api.OFFSET_COMMIT, REQUEST, Hold(), Nth(2), client=far))
        threads[1].start()
        eventually(is_to_give_it_away, "the coordinator has the topic go over to the second", within=60)
        goes_on.set()
        again.wait_caught(60)
        deaf = proxy.add(Rule(Api.HEARTBEAT, REQUEST, Drop(), client=far))
        eventually(lambda: len(seen[second]) == 9, "the second does what was set back", within=60)
        for rule in (lost, deaf, again):
            proxy.remove(rule)
        again.release()
        eventually(lambda: first.partitions == {(beside, 0)}, "the first has heard of it, and is a member again", 60)
    finally:
        goes_on.set()
        first.stop()
        second.stop()
        for thread in threads:
            thread.join(90)
    assert seen == {first: [0], second: list(range(1, 10))}


def test_an_old_commit_never_replaces_a_newer_one(proxy: KafkaProxy, far: str, watcher: Watcher) -> None:
    """Every other commit loses its connection, so that the client sends it again; progress only rises."""
    fill(proxy.bootstrap, far, range(3000))
    harm = proxy.add(Rule(Api.OFFSET_COMMIT, RESPONSE, Reset(), EveryKth(2), client=far))
    seen: list[list[int]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            seen.append(watcher.recorded())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        with Consumer(
            proxy.bootstrap,
            far,
            group=far,
            guarantee=AtLeastOnce(),
            commit=Asynchronously(0.02),
            **{"client.id": far, **IMPATIENT},
        ) as consumer:
            for record in consumer:
                over.wait(0.001)
                if record.offset == 2999:
                    consumer.stop()
    finally:
        over.set()
        thread.join(60)
        proxy.remove(harm)
    assert harm.caught > 1
    assert seen == sorted(seen)
    assert watcher.recorded() == [3000], "the last one is synchronous"


@pytest.mark.parametrize("asynchronously", [False, True])
def test_at_most_once_hands_out_nothing_whose_commit_failed(
    proxy: KafkaProxy, far: str, watcher: Watcher, asynchronously: bool
) -> None:
    """Whether the request or its answer was lost: the records are un-read, committed again, and handed out once."""
    fill(proxy.bootstrap, far, range(30))
    heard: list[KeptError] = []
    policy: Policy = Asynchronously(on_failure=heard.append) if asynchronously else AfterBatch(10)
    born = Consumer(proxy.bootstrap, far, group=far, guarantee=AtMostOnce(), commit=policy)
    with born:
        for _ in born:
            break
    rules = [
        proxy.add(Rule(Api.OFFSET_COMMIT, REQUEST, Drop(), client=far, at_most=4)),
        proxy.add(Rule(Api.OFFSET_COMMIT, RESPONSE, Drop(), client=far, at_most=1)),
    ]
    seen = []
    with Consumer(
        proxy.bootstrap, far, group=far, guarantee=AtMostOnce(), commit=policy, **{"client.id": far, **IMPATIENT}
    ) as consumer:
        for record in consumer:
            assert watcher.recorded()[0] > record.offset
            seen.append(number(record))
            if record.offset == 29:
                consumer.stop()
    for rule in rules:
        proxy.remove(rule)
    assert sum(rule.caught for rule in rules) >= 3, "commits failed"
    assert seen == list(range(1, 30)), "each once, in order"
    assert not asynchronously or heard, "the failure was told"
    assert watcher.recorded() == [30]
