"""Consumers at least and at most once, on real brokers: what is done when, and what is recorded by then."""

from __future__ import annotations

import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from kept.consumer.at_least_once import AtLeastOnceLoop
from kept.consumer.consuming import Consumer
from kept.consumer.membership import Membership
from kept.consumer.policies import AfterBatch, AfterEach, Asynchronously, Every, Policy
from kept.consumer.records import Record
from kept.errors import FixConfiguration, TryAgain
from kept.guarantees import AtLeastOnce, AtMostOnce, Guarantee
from kept.local import Cluster
from tests.brokers.groups import Watcher, fill, make_topic
from tests.conftest import Eventually

AT_LEAST, AT_MOST = AtLeastOnce(), AtMostOnce()
POLICIES: list[Policy] = [Every(0.2), AfterEach(), AfterBatch(4), Asynchronously(0.2)]
BEFORE: list[Policy] = [AfterEach(), AfterBatch(4), Asynchronously()]
Make = Callable[..., Consumer]


@pytest.fixture
def one(cluster: Cluster) -> str:
    """A topic with one partition."""
    return make_topic(cluster.bootstrap, 1)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make(cluster: Cluster, one: str, group: str) -> Iterator[Make]:
    """Consumers of the topic with one partition; closed at the end."""
    made: list[Consumer] = []

    def consumer(guarantee: Guarantee, policy: Policy | None = None, topic: str = one, **more: Any) -> Consumer:
        made.append(Consumer(cluster.bootstrap, topic, guarantee=guarantee, group=group, commit=policy, **more))
        return made[-1]

    yield consumer
    for each in made:
        each.close()


@pytest.fixture
def watcher(cluster: Cluster, one: str, group: str) -> Iterator[Watcher]:
    found = Watcher(cluster.bootstrap, group, one)
    yield found
    found.close()


def number(record: Record) -> int:
    return int(record.value or b"")


def until(consumer: Consumer, last: int) -> list[int]:
    """The numbers that come, up to one that stops the loop."""
    found = []
    for record in consumer:
        found.append(number(record))
        if found[-1] == last:
            consumer.stop()
    return found


@contextmanager
def in_background(consumer: Consumer, body: Callable[[Record], object]) -> Iterator[None]:
    """The loop in a thread of its own; what it raised is raised here."""
    failed: list[BaseException] = []

    def loop() -> None:
        try:
            with consumer:
                for record in consumer:
                    body(record)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        consumer.stop()
        thread.join(60)
    assert not failed, failed


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_record_is_done_when_the_next_is_asked_for(
    cluster: Cluster, one: str, make: Make, watcher: Watcher, policy: Policy
) -> None:
    fill(cluster.bootstrap, one, range(6))
    seen: list[int] = []
    with make(AT_LEAST, policy) as consumer:
        with pytest.raises(ZeroDivisionError):
            for record in consumer:
                seen.append(number(record))
                seen[-1] // (2 - seen[-1])
        for record in consumer:  # a second loop goes on with the record that raised
            seen.append(number(record))
            if seen[-1] == 3:
                break
    assert seen == [0, 1, 2, 2, 3]
    assert watcher.recorded() == [3], "the record at the break is not done"
    with make(AT_LEAST, policy) as consumer:
        assert until(consumer, 4) == [3, 4]
    assert watcher.recorded() == [5], "the record at stop() is done"


@pytest.mark.parametrize("policy", [Every(0.2), Asynchronously(0.2), AfterBatch(500)], ids=repr)
def test_progress_is_recorded_on_time_when_no_more_records_come(
    cluster: Cluster, one: str, make: Make, watcher: Watcher, policy: Policy, eventually: Eventually
) -> None:
    fill(cluster.bootstrap, one, range(10))
    with in_background(make(AT_LEAST, policy), lambda record: None):
        eventually(lambda: watcher.recorded() == [10], "progress recorded while the loop is idle")
        assert watcher.members() == 1
        fill(cluster.bootstrap, one, range(5))
        eventually(lambda: watcher.recorded() == [15], "and again")


@pytest.mark.parametrize(("policy", "every"), [(AfterEach(), 1), (AfterBatch(4), 4)])
def test_progress_by_the_count(
    cluster: Cluster, one: str, make: Make, watcher: Watcher, policy: Policy, every: int
) -> None:
    fill(cluster.bootstrap, one, range(10))
    found = {}
    with make(AT_LEAST, policy) as consumer:
        for record in consumer:
            found[record.offset] = watcher.recorded()[0]
            if record.offset == 9:
                consumer.stop()
    assert found == {offset: offset // every * every for offset in range(10)}


@pytest.mark.parametrize("policy", BEFORE, ids=repr)
def test_at_most_once_progress_is_in_kafka_before_the_record_is_handed_out(
    cluster: Cluster, one: str, make: Make, watcher: Watcher, policy: Policy
) -> None:
    fill(cluster.bootstrap, one, range(10))
    with make(AT_MOST, policy) as consumer:
        for record in consumer:
            recorded = watcher.recorded()[0]
            assert recorded > record.offset
            if isinstance(policy, AfterEach):
                assert recorded == record.offset + 1
            if record.offset == 5:
                consumer.stop()
    assert watcher.recorded() == [6], "what was not handed out is un-read"
    with make(AT_MOST, policy) as consumer:
        assert until(consumer, 9) == [6, 7, 8, 9]


def test_at_most_once_a_record_that_raised_does_not_come_again(cluster: Cluster, one: str, make: Make) -> None:
    fill(cluster.bootstrap, one, range(6))
    with make(AT_MOST) as consumer:
        with pytest.raises(ZeroDivisionError):
            for record in consumer:
                1 // (2 - number(record))
        assert until(consumer, 4) == [3, 4]


def test_a_batch_is_done_as_a_whole_or_as_it_is_acknowledged(
    cluster: Cluster, one: str, make: Make, watcher: Watcher
) -> None:
    fill(cluster.bootstrap, one, range(20))
    seen: list[list[int]] = []
    with make(AT_LEAST, AfterEach()) as consumer:
        for batch in consumer.batches(5):
            seen.append([number(record) for record in batch])
            if len(seen) == 2:
                batch.acknowledge(batch[4], batch[0], batch[2])  # in whatever order
            if seen[-1][-1] == 19:
                consumer.stop()
            if len(seen) == 3:
                assert watcher.recorded() == [6], "only the unbroken row of acknowledged records"
    assert seen[:2] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert seen[2][:2] == [6, 8], "what was not acknowledged comes again, first, and nothing else does"
    assert sorted(each for row in seen for each in row) == sorted([*range(20), 6, 8])
    assert watcher.recorded() == [20]


def test_at_most_once_acknowledges_nothing(cluster: Cluster, one: str, make: Make) -> None:
    fill(cluster.bootstrap, one, range(3))
    with pytest.raises(FixConfiguration, match="acknowledges nothing"):
        for batch in make(AT_MOST).batches():
            batch.acknowledge(batch[0])


@pytest.mark.parametrize("guarantee", [AT_LEAST, AT_MOST], ids=lambda each: each.word)
def test_paused_partitions_are_handed_out_after_resume_and_nothing_is_skipped(
    cluster: Cluster, topic: str, make: Make, guarantee: Guarantee
) -> None:
    fill(cluster.bootstrap, topic, range(300), 3)
    chosen = (topic, 1)
    seen: list[int] = []
    held_back = 0
    with make(guarantee, AfterBatch(500), topic=topic) as consumer:
        for record in consumer:
            seen.append(number(record))
            if record.place == chosen and not held_back:
                held_back = len(seen)
                consumer.pause(chosen)
            if held_back and len([each for each in seen if each % 3 != 1]) == 200:
                break
        assert len([each for each in seen if each % 3 == 1]) in (1, 100), "paused within the body: at once"
        consumer.resume(chosen)
        for record in consumer:
            seen.append(number(record))
            if len(set(seen)) == 300:
                consumer.stop()
    assert sorted(set(seen)) == list(range(300))
    assert len(seen) <= 301, "only the record at the break, if any, came twice"
    for part in range(3):
        row = [each for each in seen if each % 3 == part]
        assert row == sorted(row)


def test_pause_without_names_holds_for_partitions_to_come(
    cluster: Cluster, one: str, make: Make, watcher: Watcher, eventually: Eventually
) -> None:
    fill(cluster.bootstrap, one, range(3))
    consumer = make(AT_LEAST)
    consumer.pause()  # it owns nothing yet
    seen: list[int] = []
    with in_background(consumer, lambda record: seen.append(number(record))):
        eventually(lambda: consumer.partitions, "a partition")
        time.sleep(1.0)
        assert seen == []
        consumer.resume()
        eventually(lambda: seen == [0, 1, 2], "the records after resume")


def test_replay_goes_back_and_forth_and_is_recorded(cluster: Cluster, one: str, make: Make, watcher: Watcher) -> None:
    fill(cluster.bootstrap, one, range(10))
    seen: list[int] = []
    with make(AT_LEAST, AfterBatch(100)) as consumer:
        for record in consumer:
            seen.append(number(record))
            if len(seen) == 5:
                consumer.replay({(one, 0): 2})
                assert watcher.recorded() == [2]
            elif len(seen) == 7:
                consumer.replay({(one, 0): 9})
            elif record.offset == 9:
                consumer.stop()
        with pytest.raises(FixConfiguration, match="has no offset 11"):
            consumer.replay({(one, 0): 11})
        with pytest.raises(FixConfiguration, match="is not ours"):
            consumer.replay({(one, 1): 0})
    assert seen == [0, 1, 2, 3, 4, 2, 3, 9]
    assert watcher.recorded() == [10]
    with pytest.raises(FixConfiguration, match="does not read again"):
        make(AT_MOST).replay({})


def test_replay_moves_no_partition_that_went_to_another_member_meanwhile(
    cluster: Cluster, one: str, make: Make, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a commit under way is waited for, the group may take partitions away."""
    fill(cluster.bootstrap, one, range(10))
    with make(AT_LEAST, AfterBatch(3)) as consumer:
        for record in consumer:
            if number(record) == 5:
                monkeypatch.setattr(AtLeastOnceLoop, "_hear_out", lambda loop: loop._member.owned.clear())
                with pytest.raises(TryAgain, match="went to another member"):
                    consumer.replay({(one, 0): 9})
                assert watcher.recorded() == [3]
                consumer.stop()


def test_who_is_still_joining_is_not_idle(cluster: Cluster, one: str) -> None:
    member = Membership({"bootstrap.servers": cluster.bootstrap, "group.id": "nobody"}, [one])
    assert member.take(1, 0.1) == []
    assert member.idle_for == 0.0
    member.leave()


@pytest.mark.parametrize("guarantee", [AT_LEAST, AT_MOST], ids=lambda each: each.word)
def test_closing_inside_the_body_twice_or_before_the_beginning(
    cluster: Cluster, one: str, make: Make, watcher: Watcher, guarantee: Guarantee
) -> None:
    make(guarantee).close()
    fill(cluster.bootstrap, one, range(5))
    consumer = make(guarantee, AfterEach())
    seen = []
    for record in consumer:
        seen.append(number(record))
        if seen[-1] == 2:
            consumer.close()
    consumer.close()
    assert seen == [0, 1, 2]
    assert watcher.recorded() == [2 if guarantee is AT_LEAST else 3], "the record in hand was not done yet"
    with pytest.raises(FixConfiguration, match="is closed"):
        iter(consumer)


class Interrupted(Exception):
    """Raised by a signal, wherever the program happens to be."""


@contextmanager
def interrupted_at_the_worst(consumer: Consumer, dice: random.Random) -> Iterator[None]:
    """As if the signal came when the client has returned, and nobody has its answer yet."""
    member = consumer._member

    def worst(act: Callable[..., Any]) -> Callable[..., Any]:
        def acting(*arguments: Any) -> Any:
            answer = act(*arguments)
            if dice.random() < 0.2:
                raise Interrupted
            return answer

        return acting

    names = ("take", "commit", "commit_later", "seek")
    vars(member).update({name: worst(getattr(member, name)) for name in names})
    try:
        yield
    finally:
        for name in names:
            del vars(member)[name]


@pytest.mark.parametrize(
    "policy", [AfterBatch(7), pytest.param(Asynchronously(0.02), marks=pytest.mark.slow)], ids=repr
)
@pytest.mark.parametrize("guarantee", [AT_LEAST, AT_MOST], ids=lambda each: each.word)
def test_an_interrupt_anywhere_in_the_loop_swallows_nothing(
    cluster: Cluster, one: str, make: Make, guarantee: Guarantee, policy: Policy
) -> None:
    """Ctrl-C inside a poll, a commit or between two lines; whoever goes on afterwards misses nothing."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    fill(cluster.bootstrap, one, range(400))
    seen: list[int] = []
    interrupts = 0

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with make(guarantee, policy) as consumer:
            for record in consumer:
                seen.append(number(record))
                break
            deadline = time.monotonic() + 60
            while 399 not in seen and interrupts < 60 and time.monotonic() < deadline:
                try:
                    with interrupted_at_the_worst(consumer, dice):
                        for record in consumer:
                            signal.setitimer(signal.ITIMER_REAL, 0)
                            seen.append(number(record))
                            if seen[-1] == 399:
                                break
                            if dice.random() < 0.1:
                                time.sleep(0.025)  # now a commit by the clock is due
                                signal.setitimer(signal.ITIMER_REAL, dice.choice([1e-6, 1e-5, 1e-4, 1e-3, 1e-2]))
                except Interrupted:
                    interrupts += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            fill(cluster.bootstrap, one, [400])
            seen += until(consumer, 400)  # the rest in peace
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    print(f"{interrupts} interrupts, {len(seen) - len(set(seen))} repeated")
    assert interrupts > 3
    if guarantee is AT_LEAST:
        assert set(seen) == set(range(401))
    else:
        assert len(seen) == len(set(seen)), "handed out twice"
        print(f"{401 - len(seen)} lost")
        assert len(seen) >= 401 - interrupts, "more than the one in hand was lost"
