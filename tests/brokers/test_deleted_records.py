"""Records that were deleted before a group read them: every guarantee stops, says which, and the way out works."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from kept.consumer import Consumer, Output, Record
from kept.consumer.policies import AfterEach
from kept.errors import Gap
from kept.guarantees import AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee
from kept.local import Cluster
from tests.brokers.groups import fill, make_topic
from tests.brokers.pipes import new_name, new_topic, read
from tests.brokers.store_things import effects
from tests.conftest import Kept


@pytest.fixture
def source(cluster: Cluster) -> str:
    """Ten records in one partition: 0 to 9."""
    name = make_topic(cluster.bootstrap, 1)
    fill(cluster.bootstrap, name, range(10))
    return name


def delete_below(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for deleted in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        deleted.result(30)


def command_in(error: Gap) -> list[str]:
    """The command that the way out names, without its first word."""
    found = re.search(r"`kept (.*)`", error.way_out)
    assert found is not None, error.way_out
    return found[1].split()


@pytest.mark.parametrize("guarantee", [AtLeastOnce(), AtMostOnce()], ids=lambda each: each.word)
def test_a_loop_stops_and_goes_on_when_a_person_says_so(
    cluster: Cluster, source: str, guarantee: Guarantee, on_cluster: Kept
) -> None:
    group = new_name()

    def values_up_to(last: str) -> list[str]:
        found = []
        with Consumer(cluster.bootstrap, source, group=group, guarantee=guarantee, commit=AfterEach()) as consumer:
            for record in consumer:
                found.append((record.value or b"").decode())
                if found[-1] == last:
                    consumer.stop()
        return found

    assert values_up_to("2") == ["0", "1", "2"]
    delete_below(cluster.bootstrap, source, 6)
    with pytest.raises(Gap, match="offsets 3 to 5, 3 at most; the log begins at 6") as caught:
        values_up_to("9")
    with pytest.raises(Gap):  # it stays so, however often it is started
        values_up_to("9")
    done = on_cluster(*command_in(caught.value))
    assert done.returncode == 0, done.stderr
    assert values_up_to("9") == ["6", "7", "8", "9"]


def test_exactly_once_into_kafka(cluster: Cluster, source: str, on_cluster: Kept) -> None:
    name, sink = new_name(), new_topic(cluster.bootstrap)

    def transform(record: Record) -> Output:
        return Output(sink, record.value)

    def run(until: int) -> None:
        with Consumer(cluster.bootstrap, source, guarantee=ExactlyOnce(name)) as consumer:
            consumer.into_kafka(transform, seconds=0.1, until={(source, 0): until})

    run(3)
    delete_below(cluster.bootstrap, source, 6)
    with pytest.raises(Gap, match="offsets 3 to 5") as caught:
        run(10)
    assert "--break-exactly-once" in caught.value.way_out
    done = on_cluster(*command_in(caught.value))
    assert done.returncode == 0, done.stderr
    run(10)
    assert sorted(record.value or b"" for record in read(cluster.bootstrap, sink)) == [
        str(number).encode() for number in (0, 1, 2, 6, 7, 8, 9)
    ]


def test_exactly_once_into_postgres(cluster: Cluster, source: str, dsn: str) -> None:
    name = new_name()

    def run(last: bytes) -> None:
        with Consumer(cluster.bootstrap, source, guarantee=ExactlyOnce(name)) as consumer:

            def effect(connection: psycopg.Connection[Any], record: Record) -> None:
                connection.execute("INSERT INTO effects VALUES (%s, %s)", (record.partition, record.offset))
                if record.value == last:
                    consumer.stop()

            consumer.into_postgres(dsn, each=effect)

    run(b"9")
    fill(cluster.bootstrap, source, range(10, 20))
    delete_below(cluster.bootstrap, source, 15)
    with pytest.raises(Gap, match="offsets 10 to 14") as caught:
        run(b"19")
    with psycopg.connect(dsn) as connection:
        statement = caught.value.way_out.split("`")[1]
        assert connection.execute(statement.encode()).rowcount == 1
    run(b"19")
    assert [at for _, at in effects(dsn)] == [*range(10), *range(15, 20)]
