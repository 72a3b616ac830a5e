"""The producer on a real cluster: receipts, refusals, transactions that are whole or absent."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout

import pytest

from kept.consumer import Reader, Record, Start
from kept.errors import (
    Fenced,
    FixConfiguration,
    NotPersisted,
    OutcomeUnknown,
    TransactionAborted,
    TryAgain,
    WeakensGuarantee,
)
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee
from kept.local import Cluster
from kept.producer import Producer
from kept.producer.transactions import Transactions
from tests.conftest import Eventually


def values(cluster: Cluster, topic: str, *, committed: bool = True, patience: float = 30) -> list[bytes]:
    with Reader(cluster.bootstrap, topic, start=Start.BEGINNING, committed=committed) as reader:
        return sorted(record.value or b"" for record in reader.to_end(patience))


def named() -> ExactlyOnce:
    return ExactlyOnce(f"test-{uuid.uuid4().hex[:8]}")


@pytest.mark.parametrize("guarantee", [AtMostOnce(), AtLeastOnce()])
def test_a_receipt_says_where_the_record_is(
    cluster: Cluster, topic: str, guarantee: Guarantee, eventually: Eventually
) -> None:
    moment = int(time.time() * 1000) - 3_600_000
    with Producer(cluster.bootstrap, guarantee) as producer:
        receipt = producer.send(
            topic, b"value", key="key", partition=2, headers={"trace": b"42"}, timestamp=moment
        ).result(30)
    found: list[Record] = []
    with Reader(cluster.bootstrap, topic, start=Start.BEGINNING, partition=2) as reader:

        def read() -> bool:
            """With acks=1 the log may seem to end before the record for a moment, and then nothing comes."""
            record = reader.poll(1)
            found.extend([] if record is None else [record])
            return bool(found)

        eventually(read, "the record can be read")
    (record,) = found
    assert (receipt.topic, receipt.partition, receipt.offset) == (topic, 2, 0)
    assert (record.offset, record.timestamp, record.key, record.value) == (0, moment, b"key", b"value")
    assert record.headers == (("trace", b"42"),)


def test_records_of_one_key_share_a_partition_and_keep_their_order(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        deliveries = [producer.send(topic, str(number), key="same") for number in range(500)]
        receipts = [delivery.result(30) for delivery in deliveries]
    assert len({receipt.partition for receipt in receipts}) == 1
    assert [receipt.offset for receipt in receipts] == list(range(500))


def test_a_transaction_is_visible_whole_after_it_and_not_before(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, named()) as producer:
        with producer.transaction():
            for partition in range(3):
                producer.send(topic, f"p{partition}", partition=partition)
            producer.flush(30)
            with pytest.raises(TryAgain, match="a transaction is still open"):
                values(cluster, topic, patience=2)
            assert values(cluster, topic, committed=False) == [b"p0", b"p1", b"p2"]
        assert values(cluster, topic) == [b"p0", b"p1", b"p2"]


def test_an_exception_aborts_the_transaction_and_comes_through(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, named()) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(topic, "never")
            producer.flush(30)
            _ = 1 // 0
        with producer.transaction():
            producer.send(topic, "after")
    assert values(cluster, topic) == [b"after"]
    assert values(cluster, topic, committed=False) == [b"after", b"never"]


def test_a_receipt_is_given_after_the_commit_and_never_for_what_was_aborted(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, named()) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():
            aborted = producer.send(topic, "never", partition=0)
            producer.flush(30)
            assert not aborted.done()
            with pytest.raises(OutcomeUnknown, match="still open") as inside:
                aborted.result()
            _ = 1 // 0
        with producer.transaction():
            committed = producer.send(topic, "after", partition=0)
        with pytest.raises(NotPersisted, match="partition"), producer.transaction():
            beside = producer.send(topic, "beside it")
            producer.send(topic, "bad", partition=99)
    assert "leave the block" in inside.value.way_out
    assert committed.result(0).offset == 2, "behind the aborted one and its mark"
    for handle in (aborted, beside):
        with pytest.raises(TransactionAborted):
            handle.result(0)


def test_another_thread_waits_for_the_end_of_the_transaction_that_it_sent_into(cluster: Cluster, topic: str) -> None:
    def from_another_thread() -> tuple[str, object]:
        try:
            return "persisted", producer.send(topic, "another's").result(60)
        except TransactionAborted as aborted:
            return "absent", aborted

    with Producer(cluster.bootstrap, named()) as producer, ThreadPoolExecutor(1) as another:
        with producer.transaction():
            joins = another.submit(from_another_thread)
            with pytest.raises(FutureTimeout):
                joins.result(0.5)
        assert joins.result(30)[0] == "persisted"
        with pytest.raises(ZeroDivisionError), producer.transaction():
            joins = another.submit(from_another_thread)
            with pytest.raises(FutureTimeout):
                joins.result(0.5)
            _ = 1 // 0
        assert joins.result(30)[0] == "absent"
    assert values(cluster, topic) == [b"another's"]


def test_the_process_before_is_fenced_and_its_transaction_absent(cluster: Cluster, topic: str) -> None:
    guarantee = named()
    old, new = Producer(cluster.bootstrap, guarantee), Producer(cluster.bootstrap, guarantee)
    with pytest.raises(Fenced), old.transaction():
        old.send(topic, "zombie")
        old.flush(30)
        with new.transaction():
            new.send(topic, "successor")
    assert values(cluster, topic) == [b"successor"]


def test_a_transaction_inside_a_transaction_is_refused(cluster: Cluster) -> None:
    with (
        Producer(cluster.bootstrap, named()) as producer,
        producer.transaction(),
        pytest.raises(FixConfiguration, match="open already"),
        producer.transaction(),
    ):
        pytest.fail("a second transaction began inside the first")


def test_transactions_belong_to_exactly_once(cluster: Cluster) -> None:
    with (
        Producer(cluster.bootstrap, AtLeastOnce()) as producer,
        pytest.raises(FixConfiguration, match="at-least-once has no transactions"),
        producer.transaction(),
    ):
        pytest.fail("a transaction began without a guarantee that has them")


def test_a_weakening_setting_is_refused_before_anything_is_connected() -> None:
    with pytest.raises(WeakensGuarantee, match="acks=1 weakens exactly-once"):
        Producer("nowhere:1", ExactlyOnce("x"), acks=1)


def test_a_missing_topic_is_not_persisted_and_says_what_to_do(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap, AtLeastOnce(), **{"topic.metadata.propagation.max.ms": 500}) as producer:
        with pytest.raises(NotPersisted, match="kept topics create") as caught:
            producer.send("no-such-topic", "x").result(60)
        assert not caught.value.retriable


def test_a_record_too_large_is_not_persisted(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer, pytest.raises(NotPersisted, match="too large"):
        producer.send(topic, b"x" * 2_000_000).result(30)


def test_a_refused_record_ends_its_transaction(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, named()) as producer:
        with pytest.raises(NotPersisted, match="too large"), producer.transaction():
            producer.send(topic, "good")
            producer.send(topic, b"x" * 2_000_000)  # nobody looks at this handle
        assert values(cluster, topic) == []


def test_a_record_refused_later_is_named_and_not_tried_again(cluster: Cluster, topic: str) -> None:
    """The client learns only on the way that there is no such partition: nobody asks the handle, commit must tell."""
    with Producer(cluster.bootstrap, named()) as producer:
        with pytest.raises(NotPersisted, match="partition"), producer.transaction():
            producer.send(topic, "good")
            producer.send(topic, "bad", partition=99)
        assert values(cluster, topic) == []


def test_closing_tells_of_failures_that_nobody_asked_about(cluster: Cluster, topic: str) -> None:
    told = pytest.raises(NotPersisted, match="2 records failed, and nobody asked")
    with told, Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        producer.send(topic, "good")
        producer.send(topic, "bad", partition=99)
        producer.send(topic, b"x" * 2_000_000)
    assert values(cluster, topic) == [b"good"]


def test_what_was_asked_about_is_not_told_again(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        for _ in range(2):
            with pytest.raises(NotPersisted):
                producer.send(topic, "bad", partition=99).result(30)


def test_without_an_acknowledgement_the_fate_is_unknown(cluster: Cluster, topic: str, eventually: Eventually) -> None:
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer:
        producer.send(topic, "first", partition=0).result(30)  # a leader that is not ready would take it, and lose it
    with Producer(cluster.bootstrap, AtMostOnce(), acks=0) as producer, pytest.raises(OutcomeUnknown, match="acks=0"):
        producer.send(topic, "perhaps", partition=0).result(30)
    eventually(lambda: values(cluster, topic) == [b"first", b"perhaps"], "it was sent all the same")


def test_a_transaction_that_outlived_its_time_is_not_committed(cluster: Cluster, topic: str) -> None:
    producer = Producer(cluster.bootstrap, named(), **{"transaction.timeout.ms": 1000})
    with pytest.raises((Fenced, TransactionAborted)), producer.transaction():
        producer.send(topic, "too late")
        producer.flush(30)
        wait_until_aborted(cluster, topic)
    assert values(cluster, topic) == []


def test_a_flush_in_a_transaction_that_is_over_leaves_it_to_the_end_to_tell(cluster: Cluster, topic: str) -> None:
    """The client tells of the fence by whichever of its calls comes next, in words of its own."""
    producer = Producer(cluster.bootstrap, named(), **{"transaction.timeout.ms": 1000})
    began = 0.0
    with pytest.raises((Fenced, TransactionAborted)), producer.transaction():
        producer.send(topic, "too late")
        producer.flush(30)
        wait_until_aborted(cluster, topic)
        producer.send(topic, "later still")
        began = time.monotonic()
        producer.flush(30)
    print(f"{time.monotonic() - began:.1f} s")
    with producer.transaction():
        producer.send(topic, "the next one")
    producer.close()
    assert values(cluster, topic) == [b"the next one"]


def wait_until_aborted(cluster: Cluster, topic: str) -> None:
    """A read_committed reader gets past the record when the coordinator has ended its transaction."""
    with Reader(cluster.bootstrap, topic, start=Start.BEGINNING) as reader:
        assert list(reader.to_end()) == []


def test_a_setting_the_client_refuses_is_told_at_construction() -> None:
    for guarantee in (AtLeastOnce(), ExactlyOnce("x")):
        with pytest.raises(FixConfiguration, match=r"no\.such\.setting"):
            Producer("127.0.0.1:1", guarantee, **{"no.such.setting": "x"})


def test_a_partition_the_topic_lacks_is_not_persisted(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap, AtLeastOnce()) as producer, pytest.raises(NotPersisted, match="partition"):
        producer.send(topic, "x", partition=99).result(30)


def test_brokers_away_leave_the_fate_unknown_and_close_says_so() -> None:
    producer = Producer("127.0.0.1:1", AtLeastOnce())
    delivery = producer.send("topic", "x")
    with pytest.raises(OutcomeUnknown, match="still under way"):
        delivery.result(0.5)
    with pytest.raises(OutcomeUnknown, match="1 records were still under way"):
        producer.close(0.5)


@pytest.mark.parametrize("guarantee", [AtMostOnce(), AtLeastOnce()])
def test_a_producer_that_was_closed_takes_nothing_more(cluster: Cluster, topic: str, guarantee: Guarantee) -> None:
    """Nobody would wait for it any more: it was lost with the process, without a word."""
    producer = Producer(cluster.bootstrap, guarantee)
    producer.send(topic, "one").result()
    producer.close(0)
    with pytest.raises(FixConfiguration, match="closed"):
        producer.send(topic, "two")
    producer.close()


def test_a_full_buffer_pushes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producer, "room_within", 0.5)
    producer = Producer("127.0.0.1:1", AtLeastOnce(), **{"queue.buffering.max.messages": 10})
    for number in range(10):
        producer.send("topic", str(number))
    with pytest.raises(NotPersisted, match="buffer stayed full") as caught:
        producer.send("topic", "one too many")
    assert caught.value.retriable


def test_no_broker_is_an_error_to_try_again_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kept.producer.clients.CONNECTS_WITHIN", 0.5)
    with (
        Producer("127.0.0.1:1", named()) as producer,
        pytest.raises(TryAgain, match="no broker answers"),
        producer.transaction(),
    ):
        pytest.fail("a transaction began without a broker")


def test_marks_are_read_over_the_same_connection_as_records_are_sent(cluster: Cluster) -> None:
    """A cluster that is reached by a special way: here the brokers have no address of that family at all."""
    transactions = Transactions(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": named().group, "broker.address.family": "v6"}
    )
    with pytest.raises(TryAgain, match="no broker answers"):
        transactions.look(2)
    transactions.close()
