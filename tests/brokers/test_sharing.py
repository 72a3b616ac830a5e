"""Partitions of which whoever shared them out had not heard: they do not stay nobody's.

That a broker is behind is brought about by the order of things: the group's answer to a member that joins is held until
the topic, which that member has seen, is away from every broker. So it shares out without that topic, which comes back.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kept.admin.topics import Topics
from kept.consumer.consuming import Consumer
from kept.consumer.records import Record
from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.local import Cluster
from kept.verify.proxy import Api, Direction, Hold, KafkaProxy, Rule, beside
from tests.brokers.groups import Watcher, fill, make_topic
from tests.brokers.test_consumer_groups import in_background
from tests.conftest import Eventually

QUICK: dict[str, Any] = {"session.timeout.ms": 6_000, "max.poll.interval.ms": 6_000}
"""Where everything is somebody's it looks again after max.poll.interval.ms."""


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[KafkaProxy]:
    with beside(cluster) as proxy:
        yield proxy


def member(proxy: KafkaProxy, topics: list[str], group: str, name: str) -> Consumer:
    return Consumer(proxy.bootstrap, topics, group=group, guarantee=AtLeastOnce(), **{"client.id": name, **QUICK})


def has_joined(answer: bytes) -> bool:
    """Length, correlation id, throttle time, error code: the first answer only gives a member its id."""
    return answer[12:14] == b"\0\0"


def knows(broker: str, topic: str) -> bool:
    client = AdminClient({"bootstrap.servers": broker, "log_level": 0})
    return client.list_topics(topic, timeout=30).topics[topic].error is None


def asked(proxy: KafkaProxy, client: str, api: Api) -> int:
    return len([line for line in proxy.log if (line.client, line.kind) == (client, api)])


def test_what_was_not_known_when_it_was_shared_out_is_read(
    cluster: Cluster, proxy: KafkaProxy, group: str, eventually: Eventually
) -> None:
    """Without a look at the group this member had nothing for good, and no error."""
    topic = make_topic(cluster.bootstrap, 1)
    joined = proxy.add(Rule(Api.JOIN_GROUP, Direction.RESPONSE, Hold(), client=group, at_most=1, about=has_joined))
    watcher = Watcher(cluster.bootstrap, group, topic)
    consumer, seen = member(proxy, [topic], group, group), list[Record]()
    with in_background(consumer, seen):
        joined.wait_caught()
        Topics(cluster.bootstrap).delete(topic)
        for broker in cluster.bootstrap.split(","):
            eventually(lambda: not knows(broker, topic), "a broker has heard that it is gone")  # noqa: B023
        joined.release()
        eventually(watcher.stable, "shared out")
        Topics(cluster.bootstrap).create(topic, 1, ExactlyOnce("tests"))
        fill(cluster.bootstrap, topic, range(3))
        eventually(lambda: len(seen) == 3, "the records of the topic that was not known", within=60)
        assert consumer.partitions == {(topic, 0)}
    watcher.close()


def test_a_member_that_nothing_is_left_for_stays(
    cluster: Cluster, proxy: KafkaProxy, group: str, eventually: Eventually
) -> None:
    """It looks, sees that everything is somebody's, and disturbs nobody."""
    topic = make_topic(cluster.bootstrap, 1)
    names = [f"{group}-{number}" for number in range(2)]
    members = [member(proxy, [topic], group, name) for name in names]
    with in_background(members[0], []), in_background(members[1], []):
        eventually(lambda: sorted(len(each.partitions) for each in members) == [0, 1], "one has it", within=60)
        idle = next(name for name, each in zip(names, members, strict=True) if not each.partitions)
        eventually(lambda: asked(proxy, idle, Api.DESCRIBE_GROUPS) >= 4, "a second look")
        assert [asked(proxy, name, Api.LEAVE_GROUP) for name in names] == [0, 0]
