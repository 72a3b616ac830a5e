"""A client that goes back by itself, as librdkafka may at a rebalance: nothing is done twice.

And a founder of a group whose commit was made while its answer was lost: what others did since then stays.
"""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from kept.consumer.membership import Membership
from kept.consumer.outgoing import Outgoing
from kept.consumer.records import Record
from kept.errors import TryAgain
from kept.local import Cluster
from tests.brokers.pipes import copying, fill, new_name, new_topic, pipe, values

VALUES = [f"record-{number}" for number in range(9)]
WANTED = [value.encode() for value in VALUES]


@pytest.fixture
def source(cluster: Cluster) -> str:
    topic = new_topic(cluster.bootstrap)
    fill(cluster.bootstrap, topic, VALUES)
    return topic


@pytest.fixture
def goes_back(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The client itself goes back to the beginning, three times, and nobody asked for it. How often it has."""
    take, times = Membership.take, list[int]()

    def taken(self: Membership, most: int, wait: float) -> list[Record]:
        found = take(self, most, wait)
        for place in {record.place for record in found}:
            if len(times) < 3:
                times.append(len(found))
                self.client.seek(TopicPartition(*place, 0))
        return found

    monkeypatch.setattr(Membership, "take", taken)
    return times


def test_exactly_once_into_kafka(cluster: Cluster, source: str, goes_back: list[int]) -> None:
    sink = new_topic(cluster.bootstrap)
    pipe(cluster.bootstrap, source, new_name(), copying(sink), seconds=2)  # time enough to fetch them again
    assert goes_back
    assert values(cluster.bootstrap, sink) == WANTED


def test_a_lost_answer_to_a_birth(cluster: Cluster, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds are there, and another member is one record further already: it is not set back."""
    record, calls = Outgoing.record, list[int]()

    def lost(self: Outgoing, positions: list[TopicPartition], group: object) -> None:
        calls.append(len(positions))
        for position in positions:
            position.offset = int(position.partition == 0)
        record(self, positions, group)
        raise TryAgain("the answer was lost", way_out="ask again")

    monkeypatch.setattr(Outgoing, "record", lost)
    sink = new_topic(cluster.bootstrap)
    pipe(cluster.bootstrap, source, new_name(), copying(sink))
    assert calls == [3]
    assert len(values(cluster.bootstrap, sink)) == len(WANTED) - 1


def test_exactly_once_makes_no_plain_commit(cluster: Cluster, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of one that the network holds back sets progress back whenever it comes: Kafka has no fence for it."""
    monkeypatch.delattr(Membership, "commit")
    monkeypatch.delattr(Membership, "commit_later")
    sink = new_topic(cluster.bootstrap)
    pipe(cluster.bootstrap, source, new_name(), copying(sink))
    assert values(cluster.bootstrap, sink) == WANTED
