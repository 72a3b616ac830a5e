"""Exactly once into Postgres: what is written, what is refused, and what stops the loop."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Callable
from typing import Any

import confluent_kafka
import psycopg
import pytest

from kept.admin.topics import Topics
from kept.consumer import Record
from kept.consumer.retrying import Retry
from kept.consumer.sources import Sources
from kept.errors import FixConfiguration, PersonMustLook, ProgressLost, SourceChanged
from kept.guarantees import ExactlyOnce
from kept.local import Cluster
from kept.progress import keys
from kept.stores import DeadLetters
from tests.brokers.into_postgres_things import (
    DONE,
    STAMP,
    Pipeline,
    a_name,
    audit,
    count,
    done,
    each,
    process,
    send,
    together,
)
from tests.conftest import Eventually, Grow

Run = Callable[..., Pipeline]
SOON = Retry(times=2, first=0.05)


@pytest.fixture
def table(dsn: str) -> str:
    with psycopg.connect(dsn) as connection:
        connection.execute(DONE.encode())
    return dsn


@pytest.fixture
def run(cluster: Cluster, topic: str, table: str, eventually: Eventually) -> Run:
    """Run a pipeline until so many rows are in a table, or until it ends by itself."""

    def until(rows: int, name: str, *, within: str = "done", dsn: str = table, **options: Any) -> Pipeline:
        pipeline = Pipeline(cluster.bootstrap, topic, name, dsn, **options).start()
        try:
            eventually(lambda: pipeline.ended() or count(dsn, within) >= rows, f"{rows} rows in {within}", 60)
            shown_at = time.monotonic() + 0.3
            eventually(lambda: pipeline.ended() or time.monotonic() > shown_at, "a moment for what must not follow")
        finally:
            pipeline.stop()
        return pipeline

    return until


def some(number: int, word: str = "v") -> list[bytes]:
    return [f"{word}{each_number}".encode() for each_number in range(number)]


def progress(dsn: str) -> dict[int, int]:
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute("SELECT partition, next_offset FROM kept_progress").fetchall())


def messages(dsn: str) -> list[tuple[uuid.UUID, str | None]]:
    with psycopg.connect(dsn) as connection:
        query = "SELECT idempotency_key, message FROM messages ORDER BY id"
        return [(row[0], row[1]) for row in connection.execute(query)]


def a_copy(server: str, dsn: str) -> str:
    """A backup of the whole database, in a new one."""
    name = f"copy_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {dsn.rpartition('/')[2]}".encode())
    return f"{server.rpartition('/')[0]}/{name}"


def ended_well(pipeline: Pipeline) -> None:
    if pipeline.error is not None:
        raise pipeline.error


# -- the messages table


def test_the_messages_table_is_made_and_stamps_are_its_keys(cluster: Cluster, topic: str, table: str, run: Run) -> None:
    stamps, in_json = [uuid.uuid4() for _ in range(5)], uuid.uuid4()
    document = json.dumps({STAMP: str(in_json), "amount": 7})
    send(cluster.bootstrap, topic, some(5), stamps=stamps, partition=0)
    send(cluster.bootstrap, topic, [document.encode()], partition=1)
    send(cluster.bootstrap, topic, [b"bare", b"bare", None], partition=2)
    ended_well(run(9, a_name(), within="messages"))
    found = messages(table)
    topic_id = str(Sources({"bootstrap.servers": cluster.bootstrap}).topic_ids([topic])[topic])
    by_place = [keys.of_position(topic_id, 2, offset) for offset in range(3)]
    wanted: list[tuple[uuid.UUID, str | None]] = [
        *zip(stamps, ["v0", "v1", "v2", "v3", "v4"], strict=True),
        (in_json, document),
    ]
    wanted += zip(by_place, ["bare", "bare", None], strict=True)
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_a_duplicate_key_is_a_no_op(cluster: Cluster, topic: str, table: str, run: Run) -> None:
    """A producer that was restarted sends the same records with the same stamps, and some more."""
    stamps = [keys.derived("order", str(number)) for number in range(40)]
    send(cluster.bootstrap, topic, some(30), stamps=stamps[:30])
    name = a_name()
    ended_well(run(30, name, within="messages"))
    send(cluster.bootstrap, topic, some(40), stamps=stamps)
    ended_well(run(40, name, within="messages"))
    assert sorted(messages(table)) == sorted((stamps[number], f"v{number}") for number in range(40))
    assert sum(progress(table).values()) == 70


@pytest.mark.parametrize("effect", [{"each": each}, {"together": together}], ids=["each", "together"])
def test_an_effect_of_ones_own(cluster: Cluster, topic: str, table: str, run: Run, effect: dict[str, Any]) -> None:
    send(cluster.bootstrap, topic, some(300))
    ended_well(run(300, a_name(), **effect))
    audit(cluster.bootstrap, topic, table)


def test_two_effects_are_refused(cluster: Cluster, topic: str, dsn: str) -> None:
    pipeline = Pipeline(cluster.bootstrap, topic, a_name(), dsn, each=each, together=together).start()
    pipeline.stop()
    assert isinstance(pipeline.error, FixConfiguration)


def test_partitions_that_are_added_are_read_from_their_beginning(
    cluster: Cluster, topic: str, table: str, eventually: Eventually, grow: Grow
) -> None:
    """An empty topic first: there is nothing to do, and nothing is lost."""
    overrides = {"topic.metadata.refresh.interval.ms": 500}
    with Pipeline(cluster.bootstrap, topic, a_name(), table, each=each, overrides=overrides) as pipeline:
        eventually(lambda: pipeline.fails() or len(pipeline.consumer.partitions) == 3, "it has all partitions", 60)
        grow(topic, 5)
        for partition in range(5):
            send(cluster.bootstrap, topic, some(5, f"{partition}-"), partition=partition)
        eventually(lambda: pipeline.fails() or count(table) >= 25, "all five are read", 60)
    audit(cluster.bootstrap, topic, table)


# -- what stops it


def test_a_topic_made_anew_is_refused(cluster: Cluster, topic: str, table: str, run: Run) -> None:
    name = a_name()
    send(cluster.bootstrap, topic, some(9))
    ended_well(run(9, name, each=each))
    topics = Topics(cluster.bootstrap)
    topics.delete(topic)
    topics.create(topic, 3, ExactlyOnce("tests"))
    send(cluster.bootstrap, topic, some(60, "new"))
    again = run(10, name, each=each)
    assert isinstance(again.error, SourceChanged)
    assert count(table) == 9


def test_progress_that_is_gone_stops_it(
    cluster: Cluster, topic: str, table: str, run: Run, eventually: Eventually
) -> None:
    """While it runs, and when it starts again."""
    name = a_name()
    send(cluster.bootstrap, topic, some(9))
    pipeline = Pipeline(cluster.bootstrap, topic, name, table, each=each).start()
    try:
        eventually(lambda: pipeline.fails() or count(table) == 9, "it has begun", 60)
        with psycopg.connect(table) as connection:
            connection.execute("DELETE FROM kept_progress WHERE partition = 1")
        send(cluster.bootstrap, topic, some(9, "more"), partition=1)
        eventually(pipeline.ended, "it stops")
    finally:
        pipeline.stop()
    assert isinstance(pipeline.error, ProgressLost)
    assert isinstance(run(10, name, each=each).error, ProgressLost)
    assert count(table) == 9


def test_an_emptied_database_is_no_new_beginning(cluster: Cluster, topic: str, table: str, run: Run) -> None:
    """Everything of kept's is gone from it; only the group remembers that there was something."""
    name = a_name()
    send(cluster.bootstrap, topic, some(9))
    ended_well(run(9, name, each=each))
    with psycopg.connect(table) as connection:
        connection.execute("DROP TABLE kept_pipelines, kept_progress, kept_dead_letters")
    again = run(10, name, each=each)
    assert isinstance(again.error, ProgressLost)
    assert count(table) == 9


def test_a_sink_restored_from_a_backup_goes_on_exactly(cluster: Cluster, topic: str, table: str, run: Run) -> None:
    name = a_name()
    send(cluster.bootstrap, topic, some(30))
    ended_well(run(30, name, each=each))
    backup = a_copy(cluster.dsn, table)
    send(cluster.bootstrap, topic, some(30, "more"))
    ended_well(run(60, name, each=each))
    assert count(backup) == 30
    ended_well(run(60, name, dsn=backup, each=each))
    audit(cluster.bootstrap, topic, backup)


def test_a_handler_that_pauses_too_long_for_the_server_is_tried_again(
    cluster: Cluster, topic: str, table: str, run: Run
) -> None:
    """idle_in_transaction_session_timeout ends its session; nothing was written, and the next time it is quicker."""
    pauses = [0.6]

    def pausing(connection: psycopg.Connection[Any], record: Record) -> None:
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = '200ms'")
        if pauses:
            time.sleep(pauses.pop())
        each(connection, record)

    send(cluster.bootstrap, topic, some(9))
    ended_well(run(9, a_name(), each=pausing))
    audit(cluster.bootstrap, topic, table)


def test_a_handler_cannot_end_the_transaction(cluster: Cluster, topic: str, table: str, run: Run) -> None:
    def commits(connection: psycopg.Connection[Any], record: Record) -> None:
        each(connection, record)
        connection.commit()

    send(cluster.bootstrap, topic, some(9))
    assert isinstance(run(1, a_name(), each=commits).error, FixConfiguration)
    assert count(table) == 0
    ended = run(99, a_name(), each=lambda connection, _: connection.execute("COMMIT"))
    assert isinstance(ended.error, PersonMustLook)


# -- poison


def letters(dsn: str, name: str) -> list[tuple[bytes | None, str]]:
    with psycopg.connect(dsn) as connection:
        return [(one.letter.value, one.letter.reason) for one in DeadLetters(ExactlyOnce(name).group).list(connection)]


def test_a_record_that_keeps_raising_is_buried_whole(cluster: Cluster, topic: str, table: str, run: Run) -> None:
    name, tries = a_name(), []

    def picky(connection: psycopg.Connection[Any], record: Record) -> None:
        if record.value == b"v7":
            tries.append(record.offset)
            raise ArithmeticError("seven is too much")
        each(connection, record)

    stamps = [uuid.uuid4() for _ in range(30)]
    send(cluster.bootstrap, topic, some(30), stamps=stamps, partition=1)
    ended_well(run(29, name, each=picky, retry=SOON))
    assert [value for _, _, value in done(table)] == [f"v{number}" for number in range(30) if number != 7]
    assert len(tries) > SOON.times
    with psycopg.connect(table) as connection:
        (buried,) = DeadLetters(ExactlyOnce(name).group).list(connection)
    letter = buried.letter
    assert (letter.topic, letter.partition, letter.offset, letter.value) == (topic, 1, 7, b"v7")
    assert letter.headers == ((STAMP, str(stamps[7]).encode()),)
    assert letter.reason == "ArithmeticError: seven is too much"


def test_an_effect_that_raises_once_is_applied_at_its_next_try(
    cluster: Cluster, topic: str, table: str, run: Run
) -> None:
    name, raised = a_name(), [0]

    def shaky(connection: psycopg.Connection[Any], record: Record) -> None:
        if record.offset == 3 and raised[0] < 2:
            raised[0] += 1
            raise ConnectionError("not now")
        each(connection, record)

    send(cluster.bootstrap, topic, some(600))
    ended_well(run(600, name, each=shaky, retry=Retry(times=3, first=0.6)))
    audit(cluster.bootstrap, topic, table)
    assert letters(table, name) == []


@pytest.mark.parametrize("deferred", ["", "DEFERRABLE INITIALLY DEFERRED"], ids=["at once", "deferred"])
def test_a_record_that_violates_a_constraint_is_buried(
    cluster: Cluster, topic: str, table: str, run: Run, deferred: str
) -> None:
    with psycopg.connect(table) as connection:
        connection.execute(f"ALTER TABLE done ADD UNIQUE (value) {deferred}".encode())
    name = a_name()
    send(cluster.bootstrap, topic, [*some(20), b"v3", *some(5, "after"), b"after1"], partition=0)
    ended_well(run(25, name, together=together))
    assert [value for _, _, value in done(table)] == [value.decode() for value in [*some(20), *some(5, "after")]]
    assert [(value, "23505" in reason) for value, reason in letters(table, name)] == [(b"v3", True), (b"after1", True)]


def test_what_is_no_text_is_buried_and_the_rest_written(cluster: Cluster, topic: str, table: str, run: Run) -> None:
    name = a_name()
    send(cluster.bootstrap, topic, [*some(10), b"nul \0 byte", *some(10, "w"), b"\xff\xfe", "größe".encode()])
    ended_well(run(21, name, within="messages"))
    assert sorted(text for _, text in messages(table) if text) == sorted(
        value.decode() for value in [*some(10), *some(10, "w"), "größe".encode()]
    )
    assert {value for value, _ in letters(table, name)} == {b"nul \0 byte", b"\xff\xfe"}


# -- the copy for lag tools, and the end


def committed(cluster: Cluster, topic: str, name: str) -> dict[int, int]:
    group = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": ExactlyOnce(name).group})
    try:
        asked = [confluent_kafka.TopicPartition(topic, number) for number in range(3)]
        return {one.partition: one.offset for one in group.committed(asked, timeout=30)}
    finally:
        group.close()


def test_the_group_shows_the_progress_and_is_never_read_back(
    cluster: Cluster, topic: str, table: str, run: Run, eventually: Eventually
) -> None:
    name = a_name()
    send(cluster.bootstrap, topic, some(30))
    with Pipeline(cluster.bootstrap, topic, name, table, each=each) as pipeline:
        eventually(lambda: pipeline.fails() or count(table) == 30, "all is applied", 60)
        eventually(lambda: committed(cluster, topic, name) == progress(table), "lag tools see it while it runs")
    stranger = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": ExactlyOnce(name).group})
    moved = [confluent_kafka.TopicPartition(topic, number, number * 5) for number in range(3)]
    stranger.commit(offsets=moved, asynchronous=False)
    stranger.close()
    send(cluster.bootstrap, topic, some(30, "more"))
    ended_well(run(60, name, each=each))
    audit(cluster.bootstrap, topic, table)
    assert committed(cluster, topic, name) == progress(table) == {0: 20, 1: 20, 2: 20}


def test_a_signal_ends_it_after_the_chunk_in_hand(
    cluster: Cluster, topic: str, table: str, eventually: Eventually
) -> None:
    name = a_name()
    send(cluster.bootstrap, topic, some(3000))
    with process(cluster.bootstrap, topic, name, table, "runs", 0) as child:
        eventually(lambda: count(table) > 0, "it has begun", 60)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGTERM)
        child.join(30)
        assert child.exitcode == 0
    assert sum(progress(table).values()) == count(table)
    assert committed(cluster, topic, name) == progress(table)


def test_a_slow_effect_keeps_its_place_in_the_group(cluster: Cluster, topic: str, table: str, run: Run) -> None:
    """All records at once would take longer than the group waits for a member."""

    def slowly(connection: psycopg.Connection[Any], record: Record) -> None:
        time.sleep(0.05)
        each(connection, record)

    send(cluster.bootstrap, topic, some(160))
    ended_well(run(160, a_name(), each=slowly, overrides={"max.poll.interval.ms": 6000}))
    audit(cluster.bootstrap, topic, table)
