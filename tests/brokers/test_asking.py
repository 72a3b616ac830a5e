"""A broker dies while questions are asked of it: another one answers, long before the client would give up."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from datetime import datetime, timezone
from itertools import islice
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from kept.admin.backlog import Place as LogPlace
from kept.admin.logs import Logs
from kept.admin.topics import Topics
from kept.consumer import Consumer, Reader, Start
from kept.consumer.asking import ASK_AGAIN, ask_offsets, asked
from kept.consumer.beginning import From
from kept.consumer.records import Place
from kept.consumer.sources import Sources
from kept.errors import FixConfiguration
from kept.guarantees import AtMostOnce
from kept.local import Cluster
from kept.local.ports import HOST, choose
from tests.brokers.pipes import fill
from tests.conftest import Eventually

COUNT = 30


def every_broker_knows(cluster: Cluster, topic: str) -> bool:
    """One that was started a moment ago may be behind. A client's first question goes to the broker that it is told."""
    clients = [AdminClient({"bootstrap.servers": each, "log_level": 0}) for each in cluster.bootstrap.split(",")]
    try:
        return all(topic in client.list_topics(timeout=10).topics for client in clients)
    except KafkaException:
        return False  # it does not even answer yet


@pytest.fixture
def known_to_all(mended: Cluster, topic: str, eventually: Eventually) -> None:
    """The broker that the test before has killed knows the topic too."""
    eventually(lambda: every_broker_knows(mended, topic), "every broker knows the topic", within=30)


@pytest.mark.usefixtures("known_to_all")
def test_the_id_of_a_topic_is_told_though_the_broker_that_was_asked_has_died(mended: Cluster, topic: str) -> None:
    sources = Sources({"bootstrap.servers": mended.bootstrap, "log_level": 0})
    before = sources.topic_ids([topic])
    mended.broker(sources.admin.list_topics(timeout=10).controller_id).kill()
    began = time.monotonic()
    assert sources.topic_ids([topic]) == before
    assert sources.partitions(topic) == (before[topic], [0, 1, 2])
    print(f"told after {time.monotonic() - began:.1f} s")


@pytest.mark.usefixtures("known_to_all")
def test_the_ends_of_a_topic_are_told_though_the_leader_that_was_asked_has_died(mended: Cluster, topic: str) -> None:
    fill(mended.bootstrap, topic, [f"v{number}" for number in range(COUNT)])
    with Reader(mended.bootstrap, topic, start=Start.BEGINNING) as reader:
        mended.broker(Topics(mended.bootstrap).describe(topic).partitions[0].leader).kill()
        began = time.monotonic()
        found = list(reader.to_end())
    print(f"told after {time.monotonic() - began:.1f} s")
    assert len(found) == COUNT


@pytest.mark.usefixtures("known_to_all")
def test_a_leader_that_has_not_answered_is_not_taken_for_one_that_did(mended: Cluster, topic: str) -> None:
    """The client tells no error for its partitions; taken for an end, its offset would hide every record."""
    fill(mended.bootstrap, topic, [f"v{number}" for number in range(COUNT)])
    admin = AdminClient({"bootstrap.servers": mended.bootstrap, "log_level": 0})
    question = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(3)}  # type: ignore[no-untyped-call]
    ends = [answer.offset for answer in ask_offsets(admin, question, IsolationLevel.READ_UNCOMMITTED).values()]
    assert ends == [COUNT // 3] * 3
    leader = mended.broker(Topics(mended.bootstrap).describe(topic).partitions[0].leader)
    leader.pause()
    try:
        told = admin.list_offsets(question, request_timeout=1.0)
        assert OFFSET_INVALID in [answer.result(5).offset for answer in told.values()], "the client is mended"
        found = ask_offsets(admin, question, IsolationLevel.READ_UNCOMMITTED)
        assert [answer.offset for answer in found.values()] == ends
        bounds = Logs(admin).bounds([LogPlace(topic, number) for number in range(3)])
        assert [each.end for each in bounds.values()] == ends
    finally:
        leader.resume()


class Behind(AdminClient):
    """Asks a leader which does not know yet that it is one; the second time it does."""

    times = 0

    def list_offsets(self, topic_partition_offsets: Any, **how: Any) -> Any:  # type: ignore[override]
        self.times += 1
        if self.times > 1:
            return super().list_offsets(topic_partition_offsets, **how)
        answers: dict[TopicPartition, Future[Any]] = {place: Future() for place in topic_partition_offsets}
        for answer in answers.values():
            answer.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return answers


def test_a_leader_of_a_topic_that_has_just_been_made_is_asked_again(cluster: Cluster, topic: str) -> None:
    admin = Behind({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    question = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(3)}  # type: ignore[no-untyped-call]
    found = ask_offsets(admin, question, IsolationLevel.READ_UNCOMMITTED)
    assert ([answer.offset for answer in found.values()], admin.times) == ([0, 0, 0], 2)


@pytest.mark.usefixtures("known_to_all")
@pytest.mark.parametrize("start", [Start.BEGINNING, datetime.fromtimestamp(0, timezone.utc)], ids=["first", "since"])
def test_a_group_begins_though_leaders_go_just_then(mended: Cluster, topic: str, start: From) -> None:
    """Where to begin is asked inside a rebalance: an error there would end the consumer."""
    fill(mended.bootstrap, topic, [f"v{number}" for number in range(COUNT)])
    consumer = Consumer(mended.bootstrap, topic, group=f"asks-{topic}", guarantee=AtMostOnce(), start=start)
    asked_for = consumer._member.logs._offsets
    leader = mended.broker(Topics(mended.bootstrap).describe(topic).partitions[0].leader)

    def with_its_leader_dead(*question: Any) -> dict[Place, int]:
        leader.kill()
        return asked_for(*question)

    vars(consumer._member.logs)["_offsets"] = with_its_leader_dead
    timer = threading.Timer(60, consumer.stop)
    timer.start()
    with consumer:
        found = list(islice(consumer, COUNT))
    timer.cancel()
    assert len(found) == COUNT


def test_what_no_other_broker_would_know_better_is_told_at_once(cluster: Cluster) -> None:
    sources = Sources({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    with pytest.raises(FixConfiguration, match="the topic is not there"):
        sources.topic_ids(["nobody-made-it"])


def test_when_nobody_answers_it_is_told_when_time_is_up() -> None:
    """And not before: brokers that come back within it are heard."""
    within, nobody = 4.0, choose({"broker": 9091}, avoid=[9091])["broker"]
    admin = AdminClient({"bootstrap.servers": f"{HOST}:{nobody}", "log_level": 0})
    began = time.monotonic()
    with pytest.raises(KafkaException) as told:
        asked(
            admin, lambda step: admin.describe_topics(TopicCollection(["any"]), request_timeout=step), within=within
        )()
    assert time.monotonic() - began >= within
    assert told.value.args[0].code() in ASK_AGAIN
