"""Transactions when the network and other owners do their worst: whole or absent, and always known."""

from __future__ import annotations

import struct
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Producer as Client

from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.errors import Fenced, TransactionAborted, TryAgain
from kept.guarantees import ExactlyOnce, merge, producer_settings
from kept.local import Cluster
from kept.local.tether import tethered
from kept.producer import Producer
from kept.producer.clients import beside
from kept.producer.marks import Mark
from kept.producer.transactions import Transactions
from kept.verify.proxy import Answer, Api, Direction, HoldAndReset, KafkaProxy, Nth, Reset, Rule, in_front_of
from tests.conftest import Eventually


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
            producer.send(far, "one")
            producer.flush(30)
            late = proxy.add(Rule(Api.END_TXN, Direction.REQUEST, HoldAndReset(), Nth(1)))
        late.wait_caught(30)
        proxy.remove(late)
        with producer.transaction():
            producer.send(far, "two", partition=0)
            producer.flush(30)
            late.release()
            late.wait_answered(30)
            producer.send(far, "three", partition=1)
            producer.flush(30)
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(far, "never")
            producer.flush(30)
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
            looked_up = producer.send(far, "committed")
            producer.flush(30)
        healed.join()
        assert looked_up.result(0).topic == far
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
            absent = producer.send(far, "absent")
            producer.flush(30)
        healed.join()
        with pytest.raises(TransactionAborted):
            absent.result(0)
        with producer.transaction():
            producer.send(far, "after")
    assert values(proxy.bootstrap, far) == [b"after", b"before"]


HEADER = struct.Struct(">ihhih")
"""Of a request: length, api key, version, correlation id, length of the client's name."""


def asks_for_a_group(find_coordinator: bytes) -> bool:
    """Its last byte is the kind of coordinator that is asked for."""
    return find_coordinator[-1] == 0


def not_available(find_coordinator: bytes) -> bytes:
    """What a broker says while the group's partition has no leader: throttle time, error 15, no text, no address."""
    number = HEADER.unpack_from(find_coordinator)[3]
    body = struct.pack(">iihhihi", number, 0, 15, -1, -1, 0, -1)
    return struct.pack(">i", len(body)) + body


NO_COORDINATOR = Rule(Api.FIND_COORDINATOR, Direction.REQUEST, Answer(not_available), about=asks_for_a_group)


def test_the_client_by_itself_looks_for_a_coordinator_and_then_waits_for_ever(proxy: KafkaProxy, far: str) -> None:
    """The control: what `put_offsets` is for. A connection that opens or closes wakes it."""
    reader = Consumer({"bootstrap.servers": proxy.bootstrap, "group.id": far, "log_level": 0})
    client = Client({"bootstrap.servers": proxy.bootstrap, "transactional.id": far, "client.id": far, "log_level": 0})
    client.init_transactions(30)
    client.begin_transaction()
    offsets, group = [TopicPartition(far, 0, 1)], reader.consumer_group_metadata()
    none = proxy.add(replace(NO_COORDINATOR, client=far))
    call = beside(lambda: client.send_offsets_to_transaction(offsets, group, 1))
    none.wait_caught(times=3)
    proxy.remove(none)
    assert not wait([call], 5).done, "a coordinator is there again, and five times its time-out is over"
    proxy.cut()
    proxy.mend()
    assert wait([call], 30).done, "woken, it says that its time is over; or that all is well"
    reader.close()


def test_a_coordinator_that_is_not_there_yet_holds_no_commit_up_for_ever(proxy: KafkaProxy, far: str) -> None:
    with Producer(proxy.bootstrap, named()) as producer:
        with producer.transaction():
            producer.send(far, "before")
        none = proxy.add(NO_COORDINATOR)
        begun = time.monotonic()
        with pytest.raises(TransactionAborted, match="coordinator"), producer.transaction(within=2):
            producer.send(far, "absent")
            producer.flush(30)
        assert time.monotonic() - begun < 20
        proxy.remove(none)
        with producer.transaction():
            producer.send(far, "after")
    assert none.caught > 0
    assert values(proxy.bootstrap, far) == [b"after", b"before"]


def test_a_process_that_was_succeeded_between_transactions_stops_for_good(cluster: Cluster, topic: str) -> None:
    guarantee = named()
    with Producer(cluster.bootstrap, guarantee) as old, Producer(cluster.bootstrap, guarantee) as new:
        with old.transaction():
            old.send(topic, "old")
        with new.transaction():
            new.send(topic, "new")
        for _ in range(2):
            with pytest.raises(Fenced, match="another process has taken over this name"), old.transaction():
                old.send(topic, "zombie")
                old.flush(30)
        with new.transaction():
            new.send(topic, "new again")
    assert values(cluster.bootstrap, topic) == [b"new", b"new again", b"old"]


def test_who_sleeps_until_the_mark_has_expired_is_succeeded_all_the_same(
    cluster: Cluster, topic: str, eventually: Eventually
) -> None:
    """A name that rests for a week loses its mark; here it is deleted. The last owner is not the first one."""
    guarantee = named()
    for _ in range(2):
        asleep = Producer(cluster.bootstrap, guarantee)
        with asleep.transaction():
            asleep.send(topic, "before")
    began = time.time()
    asleep.forget()
    eventually(lambda: time.time() > began + 1, "a second, for a week")
    with Producer(cluster.bootstrap, guarantee) as new:
        with new.transaction():
            new.send(topic, "new")
        with pytest.raises(Fenced), asleep.transaction():
            asleep.send(topic, "zombie")
        with new.transaction():
            new.send(topic, "new again")
    assert values(cluster.bootstrap, topic) == [b"before", b"before", b"new", b"new again"]


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


class SlowAtItsSecondId(Transactions):
    """Its second client is fenced when the gate opens, whatever happened since it was asked for."""

    gate = threading.Event()

    def client(self, transactional_id: str, within: float) -> Client:
        if self.last is not None and transactional_id.endswith("/1"):
            assert self.gate.wait(60)
        return super().client(transactional_id, within)


def test_a_claim_knows_what_was_committed_while_it_was_made(cluster: Cluster, topic: str) -> None:
    """The old owner fences an id again after its successor did, and commits before the successor's claim is there."""
    settings = {**merge(producer_settings(named()), {}), "bootstrap.servers": cluster.bootstrap, "log_level": 0}
    old, new = SlowAtItsSecondId(settings), Transactions(settings)
    old.claim(30)
    commit(old, topic)
    last: list[Mark] = []

    def meanwhile(_found: Mark | None) -> None:
        if not last:
            old.gate.set()
            last.append(commit(old, topic))

    assert new.claim(30, agreed=meanwhile).before == last[-1].sequence, "or what the old one sent is sent again"
    with pytest.raises(Fenced):
        commit(old, topic)
    old.close()
    new.close()


def commit(transactions: Transactions, topic: str) -> Mark:
    """One record in one transaction."""
    transaction = transactions.open(30)
    transaction.client.produce(topic, b"one")
    transaction.commit(30)
    assert transactions.last is not None
    return transactions.last


def test_a_successor_ends_what_its_predecessor_left_open(cluster: Cluster, topic: str) -> None:
    guarantee = named()
    old = Producer(cluster.bootstrap, guarantee)
    with old.transaction():
        old.send(topic, "first")
    left_open = old.transaction()
    left_open.__enter__()
    old.send(topic, "left open")
    old.flush(30)
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
