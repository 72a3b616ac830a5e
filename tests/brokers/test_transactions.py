"""Transactions when the network and other owners do their worst: whole or absent, and always known."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest

from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.errors import Fenced, TransactionAborted, TryAgain
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.local.tether import tethered
from kept.producer import Producer
from kept.verify.proxy import Api, Direction, HoldAndReset, KafkaProxy, Nth, Reset, Rule, in_front_of


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
    """A topic behind the proxy."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    Topics(proxy.bootstrap).create(name, 3, ExactlyOnce("tests"))
    return name


def named() -> ExactlyOnce:
    return ExactlyOnce(f"test-{uuid.uuid4().hex[:8]}")


def values(bootstrap: str, topic: str) -> list[bytes]:
    with Reader(bootstrap, topic, start=Start.BEGINNING) as reader:
        return sorted(record.value or b"" for record in reader.to_end())


def test_a_late_end_of_one_transaction_does_not_touch_the_next(proxy: KafkaProxy, far: str) -> None:
    """Rule 1: the end of the first is held, resent by the client, and arrives in the middle of the second."""
    with Producer(proxy.bootstrap, named()) as producer:
        with producer.transaction():
            producer.send(far, "one").result(30)
            late = proxy.add(Rule(Api.END_TXN, Direction.REQUEST, HoldAndReset(), Nth(1)))
        late.wait_caught(30)
        proxy.remove(late)
        with producer.transaction():
            producer.send(far, "two", partition=0).result(30)
            late.release()
            late.wait_answered(30)
            producer.send(far, "three", partition=1).result(30)
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(far, "never").result(30)
            _ = 1 // 0
    assert values(proxy.bootstrap, far) == [b"one", b"three", b"two"]


def test_an_answer_that_never_comes_is_looked_up(proxy: KafkaProxy, far: str) -> None:
    """The commit reaches the coordinator, its answers are lost for longer than the commit may take."""
    with Producer(proxy.bootstrap, named()) as producer:
        with producer.transaction():
            producer.send(far, "before")
        mute = proxy.add(Rule(Api.END_TXN, Direction.RESPONSE, Reset()))
        healed = threading.Timer(4, proxy.remove, [mute])
        healed.start()
        with producer.transaction(within=2):
            producer.send(far, "committed").result(30)
        healed.join()
        with producer.transaction():
            producer.send(far, "after")
    assert mute.caught > 0
    assert values(proxy.bootstrap, far) == [b"after", b"before", b"committed"]


def test_a_commit_that_never_arrives_is_known_to_be_absent(proxy: KafkaProxy, far: str) -> None:
    with Producer(proxy.bootstrap, named()) as producer:
        with producer.transaction():
            producer.send(far, "before")
        deaf = proxy.add(Rule(Api.END_TXN, Direction.REQUEST, Reset()))
        healed = threading.Timer(4, proxy.remove, [deaf])
        healed.start()
        with pytest.raises(TransactionAborted), producer.transaction(within=2):
            producer.send(far, "absent").result(30)
        healed.join()
        with producer.transaction():
            producer.send(far, "after")
    assert values(proxy.bootstrap, far) == [b"after", b"before"]


def test_a_process_that_was_succeeded_between_transactions_stops_for_good(cluster: Cluster, topic: str) -> None:
    guarantee = named()
    with Producer(cluster.bootstrap, guarantee) as old, Producer(cluster.bootstrap, guarantee) as new:
        with old.transaction():
            old.send(topic, "old")
        with new.transaction():
            new.send(topic, "new")
        for _ in range(2):
            with pytest.raises(Fenced, match="generation 2, this is 1"), old.transaction():
                old.send(topic, "zombie").result(30)
        with new.transaction():
            new.send(topic, "new again")
    assert values(cluster.bootstrap, topic) == [b"new", b"new again", b"old"]


def test_two_that_start_at_once_do_not_starve_each_other(cluster: Cluster, topic: str) -> None:
    """Each does what it is told: one of them ends up owning the name, the other stops; nothing is torn or doubled."""
    guarantee = named()
    sent: list[str] = []
    ends: list[str] = []

    def work(who: str) -> None:
        producer = Producer(cluster.bootstrap, guarantee)
        number = 0
        while number < 10:
            values_of_one = [f"{who}-{number}-{part}" for part in range(3)]
            try:
                with producer.transaction():
                    for partition, value in enumerate(values_of_one):
                        producer.send(topic, value, partition=partition)
            except TransactionAborted:
                continue
            except Fenced:
                ends.append("stopped")
                return
            sent.extend(values_of_one)
            number += 1
        ends.append("finished")

    workers = [threading.Thread(target=work, args=(who,)) for who in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(90)
    assert "finished" in ends
    found = Counter(values(cluster.bootstrap, topic))
    assert found == Counter(value.encode() for value in sent)


def test_a_successor_ends_what_its_predecessor_left_open(cluster: Cluster, topic: str) -> None:
    guarantee = named()
    old = Producer(cluster.bootstrap, guarantee)
    with old.transaction():
        old.send(topic, "first")
    left_open = old.transaction()
    left_open.__enter__()
    old.send(topic, "left open").result(30)
    with Producer(cluster.bootstrap, guarantee) as new, new.transaction():
        new.send(topic, "second")
    assert values(cluster.bootstrap, topic) == [b"first", b"second"]
    with pytest.raises(Fenced, match="its last transaction was not"):
        left_open.__exit__(None, None, None)


def test_transactions_ride_out_the_death_of_every_coordinator_in_turn(mended: Cluster, topic: str) -> None:
    """Whichever broker keeps the group's or the transactions' state for this name, it dies once in between."""
    wanted = []
    with Producer(mended.bootstrap, named()) as producer:
        for number in (1, 2, 3):
            mended.broker(number).kill()
            for _ in range(20):
                try:
                    with producer.transaction():
                        producer.send(topic, f"without {number}", partition=0)
                except (TransactionAborted, TryAgain):
                    continue
                break
            wanted.append(f"without {number}".encode())
            mended.broker(number).start()
    assert values(mended.bootstrap, topic) == wanted
