"""The audit on a real topic: all that is committed, nothing that is not, and never an early end."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer as Client

from kept.errors import TryAgain
from kept.local import Cluster
from kept.verify.trials.plain_reading import bounds_of, everything_in


def in_transaction(cluster: Cluster, name: str) -> Client:
    client = Client({"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "log_level": 0})
    client.init_transactions(30)
    client.begin_transaction()
    return client


def test_it_waits_for_an_open_transaction_and_reads_on_behind_it(cluster: Cluster, topic: str) -> None:
    """The last thing in the log is the mark of a transaction, which is no record."""
    client = in_transaction(cluster, f"{topic}-kept")
    for number in range(3):
        client.produce(topic, f"whole {number}", "k", partition=number)
    client.flush(30)
    with pytest.raises(TryAgain, match=r"partitions \[0, 1, 2\] are not at their end"):
        list(everything_in(cluster.bootstrap, topic, comes_within=1.0))
    assert len(list(everything_in(cluster.bootstrap, topic, committed=False))) == 3
    commit = threading.Timer(1.5, client.commit_transaction)
    commit.start()
    found = list(everything_in(cluster.bootstrap, topic))
    commit.join()
    assert sorted((each.partition, each.offset, each.key, each.value) for each in found) == [
        (number, 0, b"k", f"whole {number}".encode()) for number in range(3)
    ]
    assert bounds_of(cluster.bootstrap, topic) == dict.fromkeys(range(3), (0, 2))


def test_what_was_aborted_is_not_there_and_does_not_hold_it_up(cluster: Cluster, topic: str) -> None:
    client = in_transaction(cluster, f"{topic}-aborted")
    client.produce(topic, "never", partition=0)
    client.flush(30)
    client.abort_transaction(30)
    assert list(everything_in(cluster.bootstrap, topic)) == []
    assert [each.value for each in everything_in(cluster.bootstrap, topic, committed=False)] == [b"never"]


def test_a_topic_that_is_not_there_is_told(cluster: Cluster) -> None:
    with pytest.raises(TryAgain, match="cannot be read"):
        bounds_of(cluster.bootstrap, "no-such-topic", within=0.5)
