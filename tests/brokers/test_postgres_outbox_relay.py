"""The Postgres outbox carried into Kafka: exactly once and in commit order, whatever happens to the relay."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from kept.errors import Fenced, SourceChanged
from kept.local import Cluster
from kept.outbox.postgres_backlog import PostgresBacklog
from kept.outbox.relay import Relay
from tests.brokers.outbox_writers import Harm
from tests.brokers.pipes import new_topic, read
from tests.brokers.postgres_outbox_proof import an_outbox, prove, relay_process
from tests.brokers.test_postgres_outbox import OUTBOX, _copied
from tests.conftest import Eventually


def enqueue(dsn: str, topic: str, *values: str, **options: Any) -> None:
    with psycopg.connect(dsn) as connection:
        for value in values:
            OUTBOX.enqueue(connection, topic, value, **options)


def relay_all(dsn: str, bootstrap: str, **options: object) -> Relay:
    backlog = PostgresBacklog(dsn)
    relay = Relay(backlog, bootstrap, **options)  # type: ignore[arg-type]
    try:
        relay.run(until_empty=True)
    finally:
        backlog.close()
    return relay


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_nothing_is_lost_twice_or_out_of_order(cluster: Cluster, seed: int) -> None:
    assert prove(cluster, seed) == Harm(0, 0, 0)


def test_every_part_of_a_record_arrives(cluster: Cluster) -> None:
    dsn, topic = an_outbox(cluster.dsn), new_topic(cluster.bootstrap)
    headers = [("a", b"\xff"), ("none", None)]
    enqueue(dsn, topic, "value", key="key", headers=headers, partition=2, timestamp=1_700_000_000_000)
    assert relay_all(dsn, cluster.bootstrap).relayed == 1
    (record,) = read(cluster.bootstrap, topic)
    assert (record.key, record.value, list(record.headers)) == (b"key", b"value", headers)
    assert (record.partition, record.timestamp) == (2, 1_700_000_000_000)
    assert relay_all(dsn, cluster.bootstrap).relayed == 0


def test_what_no_broker_takes_is_set_aside_and_the_rest_goes_on(cluster: Cluster) -> None:
    dsn, topic = an_outbox(cluster.dsn), new_topic(cluster.bootstrap, max_message_bytes=20_000)
    enqueue(dsn, topic, "before", "x" * 200_000, "after", partition=0)
    enqueue(dsn, f"{topic}-missing", "nowhere")
    relay = relay_all(dsn, cluster.bootstrap, patience=0.5)
    assert (relay.relayed, relay.refused) == (2, 2)
    assert [record.value for record in read(cluster.bootstrap, topic)] == [b"before", b"after"]
    with psycopg.connect(dsn) as connection:
        refused = connection.execute("SELECT topic, octet_length(value) FROM kept_outbox_refused ORDER BY position")
        assert refused.fetchall() == [(topic, 200_000), (f"{topic}-missing", 7)]
        assert connection.execute("SELECT count(*) FROM kept_outbox").fetchone() == (0,)


def test_a_second_relay_ends_the_first_for_good(cluster: Cluster, eventually: Eventually) -> None:
    dsn, topic = an_outbox(cluster.dsn), new_topic(cluster.bootstrap)
    first = relay_process(dsn, cluster.bootstrap)
    try:
        enqueue(dsn, topic, "1")
        eventually(lambda: len(read(cluster.bootstrap, topic)) == 1, "the first relay works")
        relay_all(dsn, cluster.bootstrap)
        enqueue(dsn, topic, "2")
        assert first.wait(60) == 1
        said, _ = first.communicate()
        assert said.startswith("Fenced")
    finally:
        first.kill()
        first.wait()
    relay_all(dsn, cluster.bootstrap)
    assert sorted(record.value or b"" for record in read(cluster.bootstrap, topic)) == [b"1", b"2"]


def test_a_restored_copy_that_was_written_to_stops_the_relay(cluster: Cluster) -> None:
    dsn, topic = an_outbox(cluster.dsn), new_topic(cluster.bootstrap)
    enqueue(dsn, topic, "1")
    relay_all(dsn, cluster.bootstrap)
    copy = _copied(dsn, PostgresBacklog(dsn))
    enqueue(dsn, topic, "2", "3")
    relay_all(dsn, cluster.bootstrap)
    with pytest.raises(SourceChanged, match="ends at"):  # nothing was written to it yet
        relay_all(copy, cluster.bootstrap)
    enqueue(copy, topic, "new 2", "new 3", "new 4")
    with pytest.raises(SourceChanged, match="restored"):
        relay_all(copy, cluster.bootstrap)
    assert len(read(cluster.bootstrap, topic)) == 3


def test_a_relay_that_was_succeeded_is_told_so(cluster: Cluster) -> None:
    dsn = an_outbox(cluster.dsn)
    backlog, successor = PostgresBacklog(dsn), PostgresBacklog(dsn)
    backlog.own(1)
    successor.own(2)
    with pytest.raises(Fenced):
        backlog.trim(1)
    backlog.close()
    successor.close()
