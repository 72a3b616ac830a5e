"""Records sent without a transaction under exactly-once: each there once, in order, and every receipt true."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kept.admin.topics import Topics
from kept.consumer import Reader, Record, Start
from kept.errors import Fenced, FixConfiguration, KeptError, NotPersisted, OutcomeUnknown, TryAgain
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.local.tether import tethered
from kept.producer import Producer, Receipt
from kept.producer.transactions import Transactions
from kept.verify.proxy import Api, Direction, KafkaProxy, Nth, Reset, Rule, in_front_of
from tests.conftest import Eventually

NEVER = 3600.0


def named() -> ExactlyOnce:
    return ExactlyOnce(f"test-{uuid.uuid4().hex[:8]}")


def records(bootstrap: str, topic: str, *, committed: bool = True) -> list[Record]:
    """What a read_committed reader finds, each partition in its order."""
    with Reader(bootstrap, topic, start=Start.BEGINNING, committed=committed) as reader:
        return list(reader.to_end())


def values(bootstrap: str, topic: str, partition: int | None = None) -> list[str]:
    found = records(bootstrap, topic)
    return [(each.value or b"").decode() for each in found if partition is None or each.partition == partition]


def as_receipt(record: Record) -> Receipt:
    return Receipt(record.topic, record.partition, record.offset, record.timestamp)


@pytest.fixture
def no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is committed merely because time passes."""
    monkeypatch.setattr("kept.producer.joining.COMPANY_WITHIN", NEVER)


def test_every_receipt_is_true_and_order_is_kept(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, named()) as producer:
        sent = [producer.send(topic, str(number), key=str(number % 7)) for number in range(3000)]
        receipts = [delivery.result(60) for delivery in sent]
    found = records(cluster.bootstrap, topic)
    assert {as_receipt(each): each.value for each in found} == {
        receipt: str(number).encode() for number, receipt in enumerate(receipts)
    }
    for partition in range(3):
        numbers = [int(each.value or b"") for each in found if each.partition == partition]
        assert numbers == sorted(numbers)


def test_nothing_is_visible_before_its_commit_and_a_result_asks_for_it(
    cluster: Cluster, topic: str, no_timer: None
) -> None:
    with Producer(cluster.bootstrap, named()) as producer:
        first, second = (producer.send(topic, value, partition=0) for value in "ab")
        assert not first.done()
        assert values(cluster.bootstrap, topic) == []
        assert second.result(60).partition == 0  # by the same commit as the first
        assert first.settled
        assert values(cluster.bootstrap, topic) == ["a", "b"]


def test_time_commits_what_nobody_asks_for(cluster: Cluster, topic: str, eventually: Eventually) -> None:
    with Producer(cluster.bootstrap, named()) as producer:
        delivery = producer.send(topic, "alone")
        eventually(delivery.done, "the record is committed by time")
        assert values(cluster.bootstrap, topic) == ["alone"]


def test_a_count_commits_what_nobody_asks_for(
    cluster: Cluster, topic: str, no_timer: None, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr("kept.producer.joining.ENOUGH_COMPANY", 50)
    with Producer(cluster.bootstrap, named()) as producer:
        sent = [producer.send(topic, str(number), partition=0) for number in range(50)]
        eventually(sent[-1].done, "the record is committed by count")


def test_flush_and_close_commit_what_is_left(cluster: Cluster, topic: str, no_timer: None) -> None:
    with Producer(cluster.bootstrap, named()) as producer:
        producer.send(topic, "flushed", partition=0)
        assert producer.flush() == 0
        assert values(cluster.bootstrap, topic) == ["flushed"]
        producer.send(topic, "closed", partition=0)
    assert values(cluster.bootstrap, topic) == ["flushed", "closed"]
    with pytest.raises(FixConfiguration, match="was closed"):
        producer.send(topic, "too late")


def test_close_keeps_its_time_though_the_next_client_is_still_being_prepared(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that are away keep that waiting, with nothing left to commit."""
    may_end, ended = threading.Event(), threading.Event()
    close = Transactions.close

    def slow(self: Transactions) -> None:
        may_end.wait(60)
        close(self)
        ended.set()

    monkeypatch.setattr(Transactions, "close", slow)
    producer = Producer(cluster.bootstrap, named())
    with producer.transaction():
        producer.send(topic, "inside")
    producer.close(timeout=0.1)
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(60)


def test_a_block_left_by_an_exception_commits_what_was_handed_over(
    cluster: Cluster, topic: str, no_timer: None
) -> None:
    with pytest.raises(ZeroDivisionError), Producer(cluster.bootstrap, named()) as producer:
        producer.send(topic, "handed over")
        _ = 1 // 0
    assert values(cluster.bootstrap, topic) == ["handed over"]


def test_a_transaction_comes_after_what_was_sent_before_it(cluster: Cluster, topic: str, no_timer: None) -> None:
    with Producer(cluster.bootstrap, named()) as producer:
        before = [producer.send(topic, f"before {number}", partition=0) for number in range(100)]
        with producer.transaction():
            assert all(delivery.settled for delivery in before)
            producer.send(topic, "inside", partition=0)
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(topic, "aborted", partition=0)
            _ = 1 // 0
        producer.send(topic, "after", partition=0)
    assert values(cluster.bootstrap, topic) == [*(f"before {number}" for number in range(100)), "inside", "after"]


def test_many_threads_at_once_also_beside_transactions(cluster: Cluster, topic: str) -> None:
    """Each thread finds its own records in its own order, whichever transaction they were in."""
    confirmed: dict[int, list[str]] = {}

    def work(who: int) -> None:
        sent = [(f"{who}-{number}", producer.send(topic, f"{who}-{number}", key=str(who))) for number in range(500)]
        for value, delivery in sent:
            delivery.result(60)
            confirmed.setdefault(who, []).append(value)

    with Producer(cluster.bootstrap, named()) as producer:
        threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for number in range(3):
            with producer.transaction():
                producer.send(topic, f"main-{number}", key="main")
        for thread in threads:
            thread.join(90)
    found = values(cluster.bootstrap, topic)
    for who in range(4):
        assert [value for value in found if value.startswith(f"{who}-")] == confirmed[who]
        assert len(confirmed[who]) == 500
    assert [value for value in found if value.startswith("main")] == ["main-0", "main-1", "main-2"]


def test_a_record_too_large_fails_alone(cluster: Cluster, topic: str) -> None:
    """Once by the client's own limit, once by the broker's, which is about a whole batch."""
    small = f"{topic}-small"
    Topics(cluster.bootstrap).create(small, 1, ExactlyOnce("tests"), {"max.message.bytes": "20000"})
    with Producer(cluster.bootstrap, named()) as producer:
        good = [producer.send(small, f"{number:03}" + "x" * 500) for number in range(100)]
        refused_here = producer.send(small, b"x" * 2_000_000)
        refused_there = producer.send(small, b"x" * 30_000)
        last = producer.send(small, "last")
        for delivery in (refused_here, refused_there):
            with pytest.raises(NotPersisted, match="too large") as caught:
                delivery.result(90)
            assert not caught.value.retriable
        assert last.result(60).partition == 0
        assert all(delivery.result(60) for delivery in good)
    assert [value[:3] for value in values(cluster.bootstrap, small)] == [*(f"{n:03}" for n in range(100)), "las"]


def test_an_unknown_topic_or_partition_fails_its_own_records(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, named(), **{"topic.metadata.propagation.max.ms": 500}) as producer:
        good = producer.send(topic, "good", partition=0)
        lost = producer.send("no-such-topic", "x")
        nowhere = producer.send(topic, "x", partition=99)
        also_good = producer.send(topic, "also good", partition=0)
        for delivery, advice in ((lost, "topics create"), (nowhere, "topics describe")):
            with pytest.raises(NotPersisted, match=advice):
                delivery.result(90)
        assert good.result(60).offset == 0 or also_good.result(60)
    assert values(cluster.bootstrap, topic) == ["good", "also good"]


def test_what_no_client_understands_is_told_and_harms_nobody(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, named()) as producer:
        with pytest.raises(TypeError, match="not int"):
            producer.send(topic, 5)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            producer.send(topic, "x", headers=[("name", object())])  # type: ignore[list-item]
        strange = producer.send(topic, "x", partition="zero")  # type: ignore[arg-type]
        good = producer.send(topic, "good")
        with pytest.raises(NotPersisted, match="does not understand"):
            strange.result(60)
        assert good.result(60)


def test_closing_tells_of_what_failed_without_anybody_asking(cluster: Cluster, topic: str) -> None:
    told = pytest.raises(NotPersisted, match="1 records failed, and nobody asked")
    with told, Producer(cluster.bootstrap, named()) as producer:
        producer.send(topic, "good")
        producer.send(topic, b"x" * 2_000_000)
        with producer.transaction():
            producer.send(topic, "inside")  # a transaction in between does not wipe it out
    assert sorted(values(cluster.bootstrap, topic)) == ["good", "inside"]


def test_a_successor_ends_it_and_nothing_is_doubled(cluster: Cluster, topic: str) -> None:
    guarantee = named()
    old, new = Producer(cluster.bootstrap, guarantee), Producer(cluster.bootstrap, guarantee)
    old.send(topic, "old", partition=0).result(60)
    new.send(topic, "new", partition=0).result(60)
    late = old.send(topic, "zombie", partition=0)
    with pytest.raises(Fenced):
        late.result(60)
    with pytest.raises(Fenced):
        old.send(topic, "zombie again")
    with pytest.raises(Fenced), old.transaction():
        pytest.fail("a transaction began after the end")
    new.send(topic, "new again", partition=0).result(60)
    old.close()
    new.close()
    assert values(cluster.bootstrap, topic) == ["old", "new", "new again"]


def test_fenced_records_that_nobody_asked_about_are_told_by_close(cluster: Cluster, topic: str) -> None:
    guarantee = named()
    with Producer(cluster.bootstrap, guarantee) as new:
        old = Producer(cluster.bootstrap, guarantee)
        old.send(topic, "old", partition=0).result(60)
        new.send(topic, "new", partition=0).result(60)
        old.send(topic, "zombie", partition=0)
        with pytest.raises(Fenced, match="1 records failed"):
            old.close()


def test_too_much_at_once_pushes_back_and_drops_nothing(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kept.producer.joining.MOST_BYTES", 5_000)
    with Producer(cluster.bootstrap, named()) as producer:
        for number in range(300):
            producer.send(topic, f"{number}", partition=0)
    assert values(cluster.bootstrap, topic) == [str(number) for number in range(300)]


def test_without_brokers_room_and_time_end_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kept.producer.clients.CONNECTS_WITHIN", 0.3)
    monkeypatch.setattr(Producer, "room_within", 0.3)
    monkeypatch.setattr("kept.producer.joining.MOST_RECORDS", 10)
    monkeypatch.setattr("kept.producer.joining.GIVEN_UP_AFTER", 3.0)
    producer = Producer("127.0.0.1:1", named())
    sent = [producer.send("topic", "in hand")]
    with pytest.raises(OutcomeUnknown, match="still under way"):
        sent[0].result(0.3)
    with pytest.raises(TryAgain, match="still under way"), producer.transaction(within=0.3):
        pytest.fail("a transaction began before what was sent")
    sent.extend(producer.send("topic", str(number)) for number in range(10))
    with pytest.raises(NotPersisted, match="no room") as full:
        producer.send("topic", "one too many")
    assert full.value.retriable
    for delivery in sent:
        with pytest.raises(NotPersisted, match="no broker answers") as given_up:
            delivery.result(60)
        assert given_up.value.retriable
    producer.close()


def test_closed_without_brokers_what_was_not_begun_is_known_to_be_absent() -> None:
    producer = Producer("127.0.0.1:1", named())
    begun = producer.send("topic", "begun")
    with pytest.raises(OutcomeUnknown):
        begun.result(0.3)
    waiting = producer.send("topic", "waiting")
    with pytest.raises(OutcomeUnknown, match="2 records were still under way"):
        producer.close(0.3)
    with pytest.raises(NotPersisted, match="closed before"):
        waiting.result(1)


@pytest.mark.slow
def test_every_broker_dies_once_in_the_middle(mended: Cluster, topic: str) -> None:
    """Whichever is the coordinator of the name or the leader of the partition, each record is there once, in order."""
    numbers = iter(range(1_000_000))
    sent = 0
    with Producer(mended.bootstrap, named()) as producer:
        for broker in (1, 2, 3):
            deliveries = [producer.send(topic, str(next(numbers)), partition=0) for _ in range(200)]
            mended.broker(broker).kill()
            deliveries += [producer.send(topic, str(next(numbers)), partition=0) for _ in range(200)]
            receipts = [delivery.result(120) for delivery in deliveries]
            mended.broker(broker).start()
            sent += len(receipts)
    assert values(mended.bootstrap, topic) == [str(number) for number in range(sent)]


def test_forget_leaves_no_group_and_sending_goes_on(cluster: Cluster, topic: str, no_timer: None) -> None:
    with Producer(cluster.bootstrap, named()) as producer:
        producer.send(topic, "pending", partition=0)
        producer.forget()
        assert values(cluster.bootstrap, topic) == ["pending"]


# Through a proxy.


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProxy]:
    """A cluster whose clients all go through a proxy."""
    with tethered(Cluster(tmp_path_factory.mktemp("behind") / "cluster")) as behind, in_front_of(behind) as proxy:
        yield proxy


@pytest.fixture
def far(proxy: KafkaProxy) -> str:
    name = f"test-{uuid.uuid4().hex[:12]}"
    Topics(proxy.bootstrap).create(name, 3, ExactlyOnce("tests"))
    return name


@contextmanager
def harmed(proxy: KafkaProxy, rule: Rule, seconds: float) -> Iterator[None]:
    """A rule that holds for some seconds, and caught something."""
    armed = proxy.add(rule)
    healed = threading.Timer(seconds, proxy.remove, [armed])
    healed.start()
    try:
        yield
    finally:
        healed.join()
    assert armed.caught > 0


@pytest.mark.slow
@pytest.mark.parametrize("direction", [Direction.REQUEST, Direction.RESPONSE])
def test_a_commit_or_its_answer_lost_for_seconds(
    proxy: KafkaProxy, far: str, direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost on the way there: aborted, and redone. Lost on the way back: found to be committed, and not redone."""
    monkeypatch.setattr("kept.producer.redoing.ATTEMPT_WITHIN", 2.0)
    with Producer(proxy.bootstrap, named()) as producer:
        sent = [producer.send(far, "before", partition=0)]
        sent[0].result(60)
        with harmed(proxy, Rule(Api.END_TXN, direction, Reset()), 5):
            sent += [producer.send(far, str(number), partition=0) for number in range(100)]
            sent[-1].result(60)
        sent.append(producer.send(far, "after", partition=0))
        receipts = [delivery.result(60) for delivery in sent]
    found = records(proxy.bootstrap, far)
    assert [each.value for each in found] == [b"before", *(str(number).encode() for number in range(100)), b"after"]
    assert [as_receipt(each) for each in found] == receipts


def test_an_outcome_that_stays_unknown_stops_the_producer(
    proxy: KafkaProxy, far: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the transaction goes out, and then nobody answers any more: not even the mark can be read."""
    monkeypatch.setattr("kept.producer.redoing.ATTEMPT_WITHIN", 8.0)  # the mark is not read before it is made dark
    monkeypatch.setattr("kept.producer.joining.GIVEN_UP_AFTER", 5.0)
    producer = Producer(proxy.bootstrap, named())
    producer.send(far, "before", partition=0).result(60)
    mute = proxy.add(Rule(Api.END_TXN, Direction.RESPONSE, Reset()))
    doubtful = producer.send(far, "doubtful", partition=0)
    mute.wait_caught(30)
    dark = proxy.add(Rule(Api.OFFSET_FETCH, Direction.RESPONSE, Reset()))
    try:
        waiting = producer.send(far, "not begun", partition=0)
        with pytest.raises(OutcomeUnknown, match="whether the transaction was committed is not known"):
            doubtful.result(120)
        with pytest.raises(NotPersisted, match="because of the records before it"):
            waiting.result(30)
        with pytest.raises(NotPersisted, match="because of the records before it"):
            producer.send(far, "not sent")
    finally:
        proxy.remove(mute)
        proxy.remove(dark)
    producer.close()
    assert values(proxy.bootstrap, far) in (["before"], ["before", "doubtful"])


def test_a_produce_answer_lost_doubles_nothing(proxy: KafkaProxy, far: str) -> None:
    with Producer(proxy.bootstrap, named()) as producer:
        producer.send(far, "before", partition=0).result(60)
        lost = proxy.add(Rule(Api.PRODUCE, Direction.RESPONSE, Reset(), Nth(1)))
        for number in range(50):
            producer.send(far, str(number), partition=0)
        assert producer.flush() == 0
        proxy.remove(lost)
    assert lost.caught == 1
    assert values(proxy.bootstrap, far) == ["before", *(str(number) for number in range(50))]


# Processes that end in the middle.

SENDS_FOR_EVER = """
import sys
from kept.guarantees import ExactlyOnce
from kept.producer import Producer
bootstrap, topic, name = sys.argv[1:]
with Producer(bootstrap, ExactlyOnce(name)) as producer:
    number = 0
    while True:
        sent = [producer.send(topic, str(number + ahead), partition=0) for ahead in range(50)]
        number += 50
        print(number, flush=True)
        sent[0].result()
        for delivery in sent:
            print("confirmed", delivery.result().offset, flush=True)
"""


def interrupted(cluster: Cluster, topic: str, name: str, how: signal.Signals, after: int) -> list[str]:
    """The lines of a process that is sent a signal when it has confirmed so many records."""
    process = subprocess.Popen(
        [sys.executable, "-c", SENDS_FOR_EVER, cluster.bootstrap, topic, name],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    while sum(line.startswith("confirmed") for line in lines) < after:
        line = process.stdout.readline()
        assert line, "it ended by itself"
        lines.append(line.strip())
    process.send_signal(how)
    rest, _ = process.communicate(timeout=90)
    return [*lines, *rest.splitlines()]


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_process_that_ends_in_the_middle(cluster: Cluster, topic: str, how: signal.Signals) -> None:
    """Killed: what it confirmed is there, nothing twice or out of order. Ctrl-C: also everything it handed over."""
    name = named().name
    handed_over, confirmed = 0, 0
    for round_number in range(3):
        lines = interrupted(cluster, topic, name, how, 60 + 35 * round_number)
        places = {int(line.split()[1]) for line in lines if line.startswith("confirmed")}
        with Producer(cluster.bootstrap, ExactlyOnce(name)) as successor, successor.transaction():
            pass  # it fences what is left
        found = records(cluster.bootstrap, topic)
        assert places <= {record.offset for record in found}
        values_now = [int(record.value or b"") for record in found][confirmed:]
        assert values_now == list(range(len(values_now)))
        assert len(values_now) >= len(places)
        handed_over = max([int(line) for line in lines if line.isdigit()], default=0)
        if how is signal.SIGINT:
            assert len(values_now) >= handed_over
        confirmed = len(found)


def test_ctrl_c_twice_ends_at_once_without_brokers() -> None:
    """The first leaves the block, the second leaves the waiting; no thread holds the process up."""
    program = """
import sys
from kept.guarantees import ExactlyOnce
from kept.producer import Producer
with Producer("127.0.0.1:1", ExactlyOnce("nobody")) as producer:
    handle = producer.send("topic", "x")
    print("sent", flush=True)
    handle.result()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "sent\n"
    begun = time.monotonic()
    while process.poll() is None and time.monotonic() - begun < 60:
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert time.monotonic() - begun < 30


def test_errors_of_handles_are_all_of_the_tree(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, named()) as producer:
        bad = producer.send(topic, b"x" * 2_000_000)
        with pytest.raises(KeptError) as caught:
            bad.result(60)
        assert caught.value.way_out
