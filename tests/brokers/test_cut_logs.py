"""A log that was cut below what a group has read, and filled again: every guarantee stops; an election is no cut.

The brokers know where each leader's records end. A position behind that end, read under that leader, is of a log that
was longer once: here the position is told to be of an older leader, which to the brokers is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer as Client
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from kept.consumer import Consumer, Output, Record
from kept.consumer.policies import AfterEach
from kept.errors import SourceChanged
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee
from kept.local import Cluster
from tests.brokers.groups import fill, make_topic
from tests.brokers.pipes import new_name, new_topic
from tests.conftest import Eventually

Run = Callable[[int], None]
"""Read up to an offset, and end in good order."""


def loop(cluster: Cluster, source: str, guarantee: Guarantee, group: str) -> Run:
    def run(until: int) -> None:
        with Consumer(cluster.bootstrap, source, group=group, guarantee=guarantee, commit=AfterEach()) as consumer:
            for record in consumer:
                if record.offset + 1 >= until:
                    consumer.stop()

    return run


def into_kafka(cluster: Cluster, source: str, name: str) -> Run:
    sink = new_topic(cluster.bootstrap)

    def run(until: int) -> None:
        with Consumer(cluster.bootstrap, source, guarantee=ExactlyOnce(name)) as consumer:
            consumer.into_kafka(lambda record: Output(sink, record.value), seconds=0.1, until={(source, 0): until})

    return run


def into_postgres(cluster: Cluster, source: str, dsn: str) -> Run:
    name = new_name()

    def run(until: int) -> None:
        with Consumer(cluster.bootstrap, source, guarantee=ExactlyOnce(name)) as consumer:

            def effect(connection: psycopg.Connection[Any], record: Record) -> None:
                connection.execute("INSERT INTO effects VALUES (%s, %s)", (record.partition, record.offset))
                if record.offset + 1 >= until:
                    consumer.stop()

            consumer.into_postgres(dsn, each=effect)

    return run


def say_older_leader(cluster: Cluster, source: str, group: str) -> None:
    client = Client({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0})
    (found,) = client.committed([TopicPartition(source, 0)], timeout=30)
    older = TopicPartition(source, 0, found.offset, found.metadata or "", 0)
    client.commit(offsets=[older], asynchronous=False)
    client.close()


def test_a_log_that_was_cut_stops_every_guarantee_and_an_election_does_not(
    mended: Cluster, dsn: str, eventually: Eventually
) -> None:
    source = make_topic(mended.bootstrap, 1)
    fill(mended.bootstrap, source, range(10))
    plain, exact = {each: new_name() for each in (AtLeastOnce(), AtMostOnce())}, new_name()
    by_group = {
        **{group: loop(mended, source, guarantee, group) for guarantee, group in plain.items()},
        ExactlyOnce(exact).group: into_kafka(mended, source, exact),
    }
    every = [*by_group.values(), into_postgres(mended, source, dsn)]
    for run in every:
        run(10)

    admin = AdminClient({"bootstrap.servers": mended.bootstrap, "log_level": 0})

    def leader() -> int:
        return admin.list_topics(source, timeout=30).topics[source].partitions[0].leader

    before = leader()
    mended.broker(before).kill()
    eventually(lambda: leader() not in (before, -1), "another leader", within=60)
    fill(mended.bootstrap, source, range(10, 20))
    for run in every:
        run(15)

    for group in by_group:
        say_older_leader(mended, source, group)
    with psycopg.connect(dsn) as connection:
        assert connection.execute("UPDATE kept_progress SET leader_epoch = 0").rowcount == 1
    for run in every:
        with pytest.raises(SourceChanged, match="the log was cut below what had been read"):
            run(20)
