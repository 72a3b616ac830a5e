"""What real brokers refuse, as an error of our tree that says what to do next."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.errors import FixConfiguration, NotPersisted, OutcomeUnknown
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce
from kept.local import Cluster, kafka
from kept.local.ports import ANY_FREE, BROKERS
from kept.local.tether import tethered
from kept.outbox import Outbox
from kept.outbox.journal import Journal
from kept.producer import Producer
from kept.producer.fates import error_of
from tests.conftest import Eventually

Rule = TypeVar("Rule", AclBinding, AclBindingFilter)


@pytest.fixture
def wants_all(mended: Cluster) -> str:
    """A topic of one partition that takes a record only with all three copies."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    Topics(mended.bootstrap).create(name, 1, ExactlyOnce("tests"), {"min.insync.replicas": 3})
    return name


def partition(cluster: Cluster, topic: str) -> tuple[int, list[int]]:
    """The leader, and the copies in sync."""
    found = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0}).list_topics(topic, timeout=30)
    only = found.topics[topic].partitions[0]
    return only.leader, only.isrs


def a_follower(cluster: Cluster, topic: str) -> int:
    leader, _ = partition(cluster, topic)
    return next(number for number in (1, 2, 3) if number != leader)


def test_too_few_copies_before_the_record_was_written(mended: Cluster, wants_all: str, eventually: Eventually) -> None:
    """NOT_ENOUGH_REPLICAS: sent once, it is known to be absent; at least once waits until the broker is back."""
    follower = a_follower(mended, wants_all)
    mended.broker(follower).kill()
    eventually(lambda: len(partition(mended, wants_all)[1]) == 2, "the copy is out of sync", within=60)
    refused = refusal(mended, wants_all, "absent")
    assert refused.retriable
    assert "kept topics describe" in refused.way_out
    with Producer(mended.bootstrap, AtLeastOnce()) as patient:
        delivery = patient.send(wants_all, "patient")
        with pytest.raises(OutcomeUnknown, match="still under way"):
            delivery.result(1)
        mended.broker(follower).start()
        assert delivery.result(120)
    with Reader(mended.bootstrap, wants_all, start=Start.BEGINNING) as reader:
        found = [record.value for record in reader.to_end()]
    assert found.count(b"patient") == 1
    assert b"absent" not in found


def refusal(cluster: Cluster, topic: str, value: str) -> NotPersisted:
    """The refusal of a value by a leader that knows of its missing copy; until it knows, other values are unknown."""
    with Producer(cluster.bootstrap, AtMostOnce(), acks="all", **{"request.timeout.ms": 1000}) as producer:
        for _ in range(30):
            try:
                producer.send(topic, "a probe").result(60)
            except OutcomeUnknown:
                continue
            except NotPersisted:
                with pytest.raises(NotPersisted, match="Not enough in-sync replicas") as caught:
                    producer.send(topic, value).result(60)
                return caught.value
    pytest.fail("the leader never learned that a copy is missing")


def test_too_few_copies_after_the_record_was_written(mended: Cluster, wants_all: str) -> None:
    """The leader wrote it, a copy hangs: the answer does not rule the record out, and later it is there."""
    follower = a_follower(mended, wants_all)
    with Producer(mended.bootstrap, AtMostOnce(), acks="all", **{"request.timeout.ms": 4000}) as producer:
        producer.send(wants_all, "before").result(60)
        mended.broker(follower).pause()
        with pytest.raises(OutcomeUnknown, match="not known") as caught:
            producer.send(wants_all, "written").result(60)
        assert "kept topics describe" in caught.value.way_out
        mended.broker(follower).resume()
    with Reader(mended.bootstrap, wants_all, start=Start.BEGINNING) as reader:
        assert [reader_value(reader) for _ in range(2)] == [b"before", b"written"]


def reader_value(reader: Reader) -> bytes | None:
    record = reader.poll(60)
    while record is None:
        record = reader.poll(60)
    return record.value


def test_not_enough_replicas_after_append_is_unknown_and_says_where_to_look() -> None:
    """Brokers with eligible leader replicas (4.1 and later) time out instead; older ones answer with this."""
    error = error_of(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND), "topic", may_have_been_resent=False)
    assert isinstance(error, OutcomeUnknown)
    assert "kept topics describe" in error.way_out


def test_a_record_that_fell_with_another_may_be_sent_again(cluster: Cluster) -> None:
    """A compacted topic wants a key: the broker refuses the batch, and does not say because of which record."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    Topics(cluster.bootstrap).create(name, 1, AtMostOnce(), {"cleanup.policy": "compact"})
    with Producer(cluster.bootstrap, AtLeastOnce(), **{"linger.ms": 500}) as producer:
        for delivery in [producer.send(name, "x", key="key"), producer.send(name, "x")]:
            with pytest.raises(NotPersisted, match="refused together") as caught:
                delivery.result(60)
            assert caught.value.retriable
    with Producer(cluster.bootstrap, ExactlyOnce(f"test-{uuid.uuid4()}")) as exact:
        with pytest.raises(NotPersisted, match="wants a key"), exact.transaction():
            exact.send(name, "inside", key="key")
            exact.send(name, "inside")
        handles = [exact.send(name, "x", key=key) for key in ("a", "b", None, "c")]
        with pytest.raises(NotPersisted, match="wants a key") as alone:
            handles[2].result(60)
        assert not alone.value.retriable
        assert all(handles[number].result(60) for number in (0, 1, 3))
    with Reader(cluster.bootstrap, name, start=Start.BEGINNING) as reader:
        assert [record.key for record in reader.to_end()] == [b"a", b"b", b"c"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that knows rights: everybody may do everything, unless a rule says otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kafka.SMALL, "authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer")
        patch.setitem(kafka.SMALL, "allow.everyone.if.no.acl.found", "true")
        with tethered(Cluster(tmp_path_factory.mktemp("guarded") / "cluster")) as cluster:
            cluster.up(ports=ANY_FREE)
            yield cluster


def no_writing(topic: str, kind: type[Rule]) -> Rule:
    nobody = ("User:ANONYMOUS", "*", AclOperation.WRITE, AclPermissionType.DENY)
    return kind(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, *nobody)


def forbid_writing(cluster: Cluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_acls([no_writing(topic, AclBinding)]).values():
        made.result(30)
    deadline = time.monotonic() + 30
    for broker in BROKERS:  # each hears of it by itself
        while not is_hidden(cluster.broker(broker).address, topic):
            assert time.monotonic() < deadline, f"broker {broker} has not heard of the rule"


def is_hidden(broker: str, topic: str) -> bool:
    """A topic with a rule is described to nobody whom no rule allows it. A fresh client asks whom it is given."""
    found = AdminClient({"bootstrap.servers": broker}).list_topics(topic, timeout=10).topics
    return topic not in found or found[topic].error is not None


def allow_writing(cluster: Cluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for gone in admin.delete_acls([no_writing(topic, AclBindingFilter)]).values():
        gone.result(30)


@pytest.mark.parametrize("guarantee", [None, AtLeastOnce()])
def test_a_relay_without_the_right_to_write_says_so_and_goes_on_when_it_has_it(
    guarded: Cluster, tmp_path: Path, eventually: Eventually, guarantee: AtLeastOnce | None
) -> None:
    allowed, forbidden = (f"test-{uuid.uuid4().hex[:12]}" for _ in range(2))
    for name in (allowed, forbidden):
        Topics(guarded.bootstrap).create(name, 1, ExactlyOnce("tests"))
    forbid_writing(guarded, forbidden)
    with Outbox(tmp_path / "outbox.db", relay_to=guarded.bootstrap, guarantee=guarantee) as outbox:
        outbox.send_all([(allowed, "1"), (forbidden, "2"), (allowed, "3")])
        eventually(lambda: "uthorization" in (outbox.metrics().last_error or ""), "the relay names the right")
        journal = Journal(tmp_path / "outbox.db")
        eventually(lambda: "uthorization" in (journal.word() or ""), "and so does the journal")
        allow_writing(guarded, forbidden)
        assert outbox.flush(60) == 0
        assert outbox.metrics().refused == 0
        eventually(lambda: journal.word() is None, "nothing is in the way any more")
        journal.close()
    for name, expected in ((allowed, [b"1", b"3"]), (forbidden, [b"2"])):
        with Reader(guarded.bootstrap, name, start=Start.BEGINNING) as reader:
            found = [record.value or b"" for record in reader.to_end()]
        assert sorted(set(found)) == expected
        assert guarantee is not None or len(found) == len(expected)


def test_a_topic_without_the_right_to_write(guarded: Cluster) -> None:
    """Every guarantee names the right; under exactly-once the others' records are not held up by it."""
    allowed, forbidden = (f"test-{uuid.uuid4().hex[:12]}" for _ in range(2))
    for name in (allowed, forbidden):
        Topics(guarded.bootstrap).create(name, 1, ExactlyOnce("tests"))
    forbid_writing(guarded, forbidden)
    with Producer(guarded.bootstrap, AtMostOnce()) as producer:
        with pytest.raises(NotPersisted, match="authorization failed") as refused:
            producer.send(forbidden, "x").result(60)
        assert "right to write" in refused.value.way_out
    with Producer(guarded.bootstrap, AtLeastOnce()) as producer:
        with pytest.raises(OutcomeUnknown, match="authorization failed") as unknown:
            producer.send(forbidden, "x").result(60)
        assert "right to write" in unknown.value.way_out
    with Producer(guarded.bootstrap, ExactlyOnce(f"test-{uuid.uuid4()}")) as producer:
        with pytest.raises(NotPersisted) as missing, producer.transaction():
            producer.send(forbidden, "x")
        assert not missing.value.retriable
        assert "right to write" in missing.value.way_out
        handles = [producer.send(name, "x") for name in (allowed, forbidden, allowed)]
        with pytest.raises(NotPersisted, match="did not take") as alone:
            handles[1].result(90)
        assert "right to write" in alone.value.way_out
        assert [handles[number].result(60).offset >= 0 for number in (0, 2)] == [True, True]


def test_a_group_that_may_not_be_written(guarded: Cluster, eventually: Eventually) -> None:
    """The mark of an exactly-once name is in a group: without a right to it, trying again would not help."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    only = ("User:ANONYMOUS", "*", AclOperation.DESCRIBE, AclPermissionType.ALLOW)
    rule = AclBinding(ResourceType.GROUP, f"kept.{name}", ResourcePatternType.LITERAL, *only)
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
    for made in admin.create_acls([rule]).values():
        made.result(30)

    def is_told() -> bool:
        with Producer(guarded.bootstrap, ExactlyOnce(name)) as producer:
            try:
                with producer.transaction(within=5):
                    pass
            except FixConfiguration as error:
                return "uthorization" in error.what and f"group kept.{name}" in error.way_out
        return False

    eventually(is_told, "the right is named, once the coordinator has heard of the rule", 60)
