"""Consumers whose commits are lost on the way: what is handed out, what is recorded, and who hears of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kept.consumer.consuming import Consumer
from kept.consumer.policies import AfterBatch, Asynchronously, Policy
from kept.consumer.records import Record
from kept.errors import KeptError, TryAgain
from kept.guarantees import AtLeastOnce, AtMostOnce
from kept.local import Cluster
from kept.local.tether import tethered
from kept.verify.proxy import Api, Direction, Drop, EveryKth, KafkaProxy, Reset, Rule, in_front_of
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
