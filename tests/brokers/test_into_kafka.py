"""Exactly once from Kafka to Kafka, whoever dies or is late: nothing lost, nothing twice, nothing torn."""

from __future__ import annotations

import random
import signal
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kept.consumer.outgoing import Output
from kept.consumer.records import Record
from kept.errors import FixConfiguration
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.local.tether import tethered
from kept.verify.proxy import Api, Direction, HoldAndReset, KafkaProxy, Nth, Reset, Rule, in_front_of
from tests.brokers.pipes import (
    Member,
    copying,
    fill,
    member,
    new_name,
    new_topic,
    pipe,
    process,
    read,
    values,
)
from tests.brokers.piping import POINTS
from tests.brokers.seeds import SEEDS
from tests.conftest import Eventually

RECORDS = [f"record-{number:04}" for number in range(600)]
WANTED = sorted(value.encode() for value in RECORDS)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProxy]:
    with (
        tethered(Cluster(tmp_path_factory.mktemp("behind") / "cluster")) as cluster,
        in_front_of(cluster) as proxy,
    ):
        yield proxy


@pytest.fixture(scope="module")
def source(cluster: Cluster) -> str:
    """Read by every group anew."""
    name = new_topic(cluster.bootstrap)
    fill(cluster.bootstrap, name, RECORDS)
    return name


def in_order(records: list[Record]) -> bool:
    """Whether each source partition's records stand in their order: its key says which one it was."""
    by_source: dict[bytes | None, list[bytes]] = {}
    for record in records:
        by_source.setdefault(record.key, []).append(record.value or b"")
    return all(found == sorted(found) for found in by_source.values())


def keyed(topic: str) -> object:
    return lambda record: Output(topic, record.value, str(record.partition))


def killed_and_gone_on(bootstrap: str, source: str, seed: int) -> str:
    """What is wrong after a kill at a random point, with a successor that runs to the end; nothing is ''."""
    chance = random.Random(seed)
    point = POINTS[seed % len(POINTS)]
    nth = chance.randint(1, len(RECORDS) - 1) if point == "in transform" else chance.randint(1, 3)
    # The whole source may fit into one transaction: then there is no second one to be killed in, but a first one.
    for time_of_death in dict.fromkeys((nth, 1)):
        outputs, name = [new_topic(bootstrap), new_topic(bootstrap)], new_name()
        story = f"seed {seed}: {point} {time_of_death}"
        first = process(bootstrap, source, name, outputs, point=point, nth=time_of_death)
        first.communicate(timeout=120)
        if first.returncode == -signal.SIGKILL:
            break
    else:
        return f"{story}: nobody died"
    second = process(bootstrap, source, name, outputs)
    second.communicate(timeout=120)
    if second.returncode != 0:
        return f"{story}: the successor ended with {second.returncode}"
    found = [values(bootstrap, topic) for topic in outputs]
    wrong = [f"{story}: {len(each)} records, {len(set(each))} different" for each in found if each != WANTED]
    return "; ".join(wrong)


def test_a_kill_at_any_point_loses_and_repeats_nothing(cluster: Cluster, source: str) -> None:
    """Each record goes to two topics; a kill -9 for every seed."""
    with ThreadPoolExecutor(5) as pool:
        wrong = list(pool.map(lambda seed: killed_and_gone_on(cluster.bootstrap, source, seed), SEEDS))
    assert [one for one in wrong if one] == []


def test_a_kill_with_positions_apart_repeats(cluster: Cluster, source: str) -> None:
    """The control: output first, positions later, and a kill in between, is seen by the same audit."""
    sink, name = new_topic(cluster.bootstrap), new_name()
    first = process(
        cluster.bootstrap, source, name, [sink], point="after commit", nth=2, apart=True
    )  # its birth is first
    first.communicate(timeout=120)
    assert first.returncode == -signal.SIGKILL
    pipe(cluster.bootstrap, source, name, copying(sink))
    assert len(values(cluster.bootstrap, sink)) > len(RECORDS)


def test_a_zombie_does_not_commit_after_its_successor(cluster: Cluster, source: str) -> None:
    """Rule 11: stopped with its output sent, past its session; succeeded; and woken again."""
    for point in ("before offsets", "before commit"):
        sink, name = new_topic(cluster.bootstrap), new_name()
        zombie = process(cluster.bootstrap, source, name, [sink], point=point, nth=1, act="stop")
        assert zombie.stdout is not None
        while "stopped" not in zombie.stdout.readline():
            assert zombie.poll() is None
        pipe(cluster.bootstrap, source, name, copying(sink))
        before = values(cluster.bootstrap, sink)
        zombie.send_signal(signal.SIGCONT)
        zombie.communicate(timeout=90)
        assert (point, zombie.returncode, before == WANTED) == (point, 0, True)
        assert values(cluster.bootstrap, sink) == WANTED


def test_a_late_end_of_one_transaction_does_not_touch_the_next(proxy: KafkaProxy) -> None:
    """Rule 1: the end of the first is held, resent by the client, and arrives in the middle of the second."""
    source, sink = new_topic(proxy.bootstrap), new_topic(proxy.bootstrap)
    fill(proxy.bootstrap, source, ["one"], partition=0)
    go_on = threading.Event()
    seen: list[bytes] = []

    def transform(record: Record) -> list[Output]:
        seen.append(record.value or b"")
        if record.value == b"three":
            go_on.wait(30)
        return [Output(sink, record.value, partition=number) for number in range(3)]

    late = proxy.add(Rule(Api.END_TXN, Direction.REQUEST, HoldAndReset(), Nth(1)))
    with member(proxy.bootstrap, source, new_name(), transform, seconds=1.0):
        late.wait_caught(30)
        proxy.remove(late)
        fill(proxy.bootstrap, source, ["two", "three"], partition=0)
        try:
            late.release()
            late.wait_answered(30)
        finally:
            go_on.set()
        fill(proxy.bootstrap, source, ["four"], partition=0)
        _until_there(proxy.bootstrap, sink, 12)
    assert [record.value for record in read(proxy.bootstrap, sink) if record.partition == 0] == [
        b"one",
        b"two",
        b"three",
        b"four",
    ]
    assert len(values(proxy.bootstrap, sink)) == 12


def _until_there(bootstrap: str, topic: str, count: int) -> None:
    deadline = threading.Event()
    for _ in range(300):
        if len(values(bootstrap, topic)) >= count:
            return
        deadline.wait(0.2)
    pytest.fail(f"{topic} never had {count} records")


@pytest.mark.parametrize("api", [Api.END_TXN, Api.TXN_OFFSET_COMMIT, Api.ADD_OFFSETS_TO_TXN, Api.INIT_PRODUCER_ID])
@pytest.mark.parametrize("direction", list(Direction), ids=lambda direction: direction.value)
def test_lost_questions_and_answers_of_a_commit(proxy: KafkaProxy, api: Api, direction: Direction) -> None:
    source, sink = new_topic(proxy.bootstrap), new_topic(proxy.bootstrap)
    fill(proxy.bootstrap, source, RECORDS[:60])
    lossy = proxy.add(Rule(api, direction, Reset(), at_most=3))
    try:
        pipe(proxy.bootstrap, source, new_name(), copying(sink))
    finally:
        proxy.remove(lossy)
    assert lossy.caught > 0
    assert values(proxy.bootstrap, sink) == WANTED[:60]


@pytest.mark.slow
def test_brokers_away_for_longer_than_a_transaction_lasts(proxy: KafkaProxy, eventually: Eventually) -> None:
    source, sink = new_topic(proxy.bootstrap), new_topic(proxy.bootstrap)
    fill(proxy.bootstrap, source, RECORDS[:30])
    options = {"transaction.timeout.ms": 2000}
    with member(proxy.bootstrap, source, new_name(), copying(sink), **options) as one:
        eventually(lambda: len(values(proxy.bootstrap, sink)) == 30, "the first records")
        fill(proxy.bootstrap, source, RECORDS[30:60])
        proxy.cut()
        threading.Event().wait(12)  # longer than the session, too
        proxy.mend()
        fill(proxy.bootstrap, source, RECORDS[60:90])
        eventually(lambda: one.error or len(values(proxy.bootstrap, sink)) >= 90, "all records", 120)
    assert values(proxy.bootstrap, sink) == WANTED[:90]


@pytest.mark.slow
def test_every_broker_is_killed_once_in_turn(mended: Cluster, eventually: Eventually) -> None:
    """Whichever keeps the group, the transactions, the source or the sink."""
    bootstrap = mended.bootstrap
    source, sink = new_topic(bootstrap), new_topic(bootstrap)
    with member(bootstrap, source, new_name(), keyed(sink)) as one:  # type: ignore[arg-type]
        for number in (1, 2, 3):
            fill(bootstrap, source, RECORDS[(number - 1) * 90 : number * 90 - 45])
            mended.broker(number).kill()
            fill(bootstrap, source, RECORDS[number * 90 - 45 : number * 90])
            mended.broker(number).start()
        eventually(lambda: one.error or len(values(bootstrap, sink)) >= 270, "all records", 120)
    assert values(bootstrap, sink) == WANTED[:270]
    assert in_order(read(bootstrap, sink))


@pytest.mark.slow
def test_members_come_and_go_in_the_middle(cluster: Cluster, eventually: Eventually) -> None:
    """Three members of one group, one of which leaves and comes back, while records keep coming."""
    bootstrap, name = cluster.bootstrap, new_name()
    source, sink = new_topic(bootstrap, partitions=6), new_topic(bootstrap)
    chance = random.Random(7)
    stays = Member(bootstrap, source, name, keyed(sink))  # type: ignore[arg-type]
    others: list[Member] = []
    for step in range(6):
        for partition in range(6):
            part = [f"record-{number:04}" for number in range(600) if number % 6 == partition]
            fill(bootstrap, source, part[step * 16 : step * 16 + 16], partition)
        if others and chance.random() < 0.5:
            others.pop(chance.randrange(len(others))).stop()
        elif len(others) < 2:
            others.append(Member(bootstrap, source, name, keyed(sink)))  # type: ignore[arg-type]
        if step == 2:
            eventually(lambda: any(len(one.consumer.partitions) < 6 for one in [stays, *others]), "a rebalance")
    eventually(lambda: len(values(bootstrap, sink)) >= 576, "all records", 60)
    for one in [stays, *others]:
        one.stop()
    assert sorted({record.value for record in read(bootstrap, sink)}) == values(bootstrap, sink)  # type: ignore[type-var]
    assert len(values(bootstrap, sink)) == 576
    assert in_order(read(bootstrap, sink))


@pytest.mark.slow
def test_a_transform_slower_than_a_transaction_may_last(cluster: Cluster) -> None:
    """The transaction's clock does not run while the transform thinks, and progress is made in small steps."""
    source, sink = new_topic(cluster.bootstrap), new_topic(cluster.bootstrap)
    fill(cluster.bootstrap, source, RECORDS[:12])

    def slow(record: Record) -> Output:
        threading.Event().wait(0.5 if record.offset else 2.5)
        return Output(sink, record.value)

    pipe(cluster.bootstrap, source, new_name(), slow, **{"transaction.timeout.ms": 2000})
    assert values(cluster.bootstrap, sink) == WANTED[:12]


def test_seconds_that_no_transaction_can_last(cluster: Cluster, topic: str) -> None:
    for seconds, timeout in ((0, 10_000), (-1, 10_000), (6, 10_000)):
        with pytest.raises(FixConfiguration, match="a transaction every"):
            pipe(
                cluster.bootstrap,
                topic,
                new_name(),
                copying(topic),
                seconds=seconds,
                **{"transaction.timeout.ms": timeout},
            )


def test_a_run_that_failed_can_be_run_again(cluster: Cluster) -> None:
    """What was sent before the error is not committed by the next run."""
    from kept.consumer.consuming import Consumer

    source, sink = new_topic(cluster.bootstrap), new_topic(cluster.bootstrap)
    fill(cluster.bootstrap, source, RECORDS[:9])
    broken = [True]

    def transform(record: Record) -> Output:
        if record.value == b"record-0008" and broken:
            broken.clear()
            raise KeyboardInterrupt
        return Output(sink, record.value)

    until = {(source, number): 3 for number in range(3)}
    with Consumer(cluster.bootstrap, source, guarantee=ExactlyOnce(f"again-{uuid.uuid4().hex[:6]}")) as consumer:
        with pytest.raises(KeyboardInterrupt):
            consumer.into_kafka(transform, until=until)
        consumer.into_kafka(transform, until=until)
    assert values(cluster.bootstrap, sink) == WANTED[:9]
