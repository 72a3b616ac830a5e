"""A topic that was deleted and made again under a group at least or at most once: nobody goes on in it by mistake."""

from __future__ import annotations

import re
import threading
import time
import uuid

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from kept.admin.topics import Topics
from kept.consumer import identities
from kept.consumer.consuming import Consumer
from kept.consumer.identities import Identities
from kept.consumer.sources import Sources
from kept.errors import FixConfiguration, KeptError, SourceChanged
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee
from kept.local import Cluster
from tests.brokers.groups import Watcher, fill, make_topic
from tests.conftest import Eventually, Kept


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


class Running:
    """A member in a thread of its own: what it was given, and what ended it."""

    def __init__(self, bootstrap: str, topic: str, group: str, guarantee: Guarantee) -> None:
        self.seen: list[int] = []
        self.ended: BaseException | None = None
        self.consumer = Consumer(bootstrap, topic, group=group, guarantee=guarantee)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self.consumer:
                for record in self.consumer:
                    self.seen.append(int(record.value or b""))
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.ended = error

    def stop(self) -> None:
        self.consumer.stop()
        self._thread.join(60)


def make_again(bootstrap: str, topic: str) -> None:
    topics = Topics(bootstrap)
    topics.delete(topic)
    deadline = time.monotonic() + 30
    while True:
        try:
            topics.create(topic, 1, ExactlyOnce("tests"))
        except KeptError:
            assert time.monotonic() < deadline, "the topic cannot be made again"
            time.sleep(0.05)
        else:
            return


@pytest.mark.parametrize("guarantee", [AtLeastOnce(), AtMostOnce()])
def test_a_running_member_does_not_skip_what_the_new_topic_begins_with(
    cluster: Cluster, group: str, guarantee: Guarantee, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "LOOKED_AT_EVERY", 0.2)
    topic = make_topic(cluster.bootstrap, 1)
    fill(cluster.bootstrap, topic, range(5))
    member = Running(cluster.bootstrap, topic, group, guarantee)
    try:
        eventually(lambda: len(member.seen) == 5, "five records")
        make_again(cluster.bootstrap, topic)
        fill(cluster.bootstrap, topic, range(100, 120))
        eventually(lambda: member.ended or 119 in member.seen, "it stops, or begins with the new one", within=60)
    finally:
        member.stop()
    print(f"{guarantee.word}: {member.seen}, {member.ended!r}")
    # Where the client noticed that the topic was away, it says that; or it begins anew, with a new assignment.
    assert isinstance(member.ended, (SourceChanged, FixConfiguration)) or set(range(100, 120)) <= {*member.seen}


def test_a_look_that_waits_for_nobody_finds_another_id(
    cluster: Cluster, group: str, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "LOOKED_AT_EVERY", 0.05)
    topic = make_topic(cluster.bootstrap, 1)
    watched = Identities(Sources({"bootstrap.servers": cluster.bootstrap, "log_level": 0}), group)
    watched.came([(topic, 0)], [])

    def is_known() -> bool:
        watched.look()  # the broker that was asked first may not have heard of a topic that is so new
        return watched.note((topic, 0)).startswith("kept 1 ")

    eventually(is_known, "its id is known")
    before = watched.note((topic, 0))
    make_again(cluster.bootstrap, topic)

    told: list[SourceChanged] = []

    def is_found() -> bool:
        try:
            watched.look()
        except SourceChanged as changed:
            told.append(changed)
        return bool(told)

    eventually(is_found, "the new id is seen")
    assert f"kept groups reset {group} --topic {topic}" in told[0].way_out
    assert watched.note((topic, 0)) == before, "what is recorded still belongs to the topic before"


@pytest.mark.parametrize("guarantee", [AtLeastOnce(), AtMostOnce()])
def test_progress_of_a_topic_before_is_nobodys_and_is_moved_by_hand(
    cluster: Cluster, on_cluster: Kept, group: str, guarantee: Guarantee, eventually: Eventually
) -> None:
    """A member that had read the topic before recorded its progress after the new one was there."""
    topic = make_topic(cluster.bootstrap, 1)
    fill(cluster.bootstrap, topic, range(10))
    watcher = Watcher(cluster.bootstrap, group, topic)
    late = TopicPartition(topic, 0, 5, "kept 1 AAAAAAAAAAAAAAAAAAAAAQ")
    watcher.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [late])])[group].result(30)
    member = Running(cluster.bootstrap, topic, group, guarantee)
    eventually(lambda: member.ended, "it does not begin", within=60)
    member.stop()
    assert isinstance(member.ended, SourceChanged)
    command = re.search("`kept ([^`]+)`", member.ended.way_out)
    assert command
    assert on_cluster(*command[1].replace("WHERE", "5").split()).returncode == 0
    again = Running(cluster.bootstrap, topic, group, guarantee)
    eventually(lambda: len(again.seen) == 5, "it goes on where it was told to", within=60)
    again.stop()
    assert (again.seen, again.ended) == ([5, 6, 7, 8, 9], None)
    (recorded,) = watcher._client.committed([TopicPartition(topic, 0)], timeout=30)
    assert (recorded.offset, (recorded.metadata or "").startswith("kept 1 ")) == (10, True)
    watcher.close()
