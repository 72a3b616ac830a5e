"""Exactly once into Postgres when processes, Postgres and the network do their worst: nothing lost, nothing twice."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from functools import partial

import psycopg
import pytest

from kept.consumer.retrying import Retry
from kept.errors import TryAgain
from kept.local import Cluster
from kept.verify.proxy import Command, Direction, Nth, PostgresProxy, Reset, Rule
from tests.brokers.into_postgres_things import (
    DONE,
    KILLED,
    Pipeline,
    a_name,
    audit,
    count,
    done,
    each,
    log_of,
    process,
    send,
    together,
)
from tests.brokers.seeds import SEEDS
from tests.conftest import Eventually


@pytest.fixture
def table(dsn: str) -> str:
    with psycopg.connect(dsn) as connection:
        connection.execute(DONE.encode())
    return dsn


def some(number: int, word: str = "v") -> list[bytes]:
    return [f"{word}{each_number}".encode() for each_number in range(number)]


def reached(dsn: str, rows: int) -> bool:
    return count(dsn) >= rows


def run_until_all_is_done(cluster: Cluster, topic: str, name: str, dsn: str, eventually: Eventually) -> None:
    """A last run that nobody harms."""
    wanted = len(log_of(cluster.bootstrap, topic))
    with process(cluster.bootstrap, topic, name, dsn, "runs", 0) as last:
        eventually(lambda: count(dsn) >= wanted, "all records are applied", 60)
        assert last.pid is not None
        os.kill(last.pid, signal.SIGTERM)
        last.join(30)
        assert last.exitcode == 0


def test_killed_at_named_points_nothing_is_lost_or_doubled(
    cluster: Cluster, topic: str, table: str, eventually: Eventually
) -> None:
    name = a_name()
    for seed in SEEDS:
        choice = random.Random(seed)
        point, nth = KILLED[seed % len(KILLED)], choice.randint(1, 2)
        nth = choice.randint(1, 40) if point == "in the effect" else nth
        print(f"seed {seed}: {point}, time {nth}")
        send(cluster.bootstrap, topic, some(60, f"{seed}-"))
        with process(cluster.bootstrap, topic, name, table, point, nth) as child:
            child.join(60)
            assert child.exitcode == -signal.SIGKILL
    run_until_all_is_done(cluster, topic, name, table, eventually)
    audit(cluster.bootstrap, topic, table)
    assert count(table) == 60 * len(SEEDS)


def test_control_effects_in_a_transaction_of_their_own_are_doubled(
    cluster: Cluster, topic: str, table: str, eventually: Eventually
) -> None:
    """The same death, with the effects apart from the progress."""
    name = a_name()
    send(cluster.bootstrap, topic, some(30))
    with process(cluster.bootstrap, topic, name, table, "outside, before COMMIT", 1) as child:
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
    already = count(table)
    with process(cluster.bootstrap, topic, name, table, "runs", 0) as last:
        eventually(lambda: count(table) >= already + 30, "all records are applied again", 60)
        assert last.pid is not None
        os.kill(last.pid, signal.SIGTERM)
        last.join(30)
    assert already > 0
    assert len(Counter(done(table)) - Counter(log_of(cluster.bootstrap, topic))) == already


def test_a_sleeper_is_ended_by_its_successor_and_writes_nothing(
    cluster: Cluster, topic: str, table: str, eventually: Eventually
) -> None:
    """SIGSTOP inside the effect, with the row lock held, for longer than the session lasts."""
    name = a_name()
    send(cluster.bootstrap, topic, some(60))
    told, tells = multiprocessing.Pipe(duplex=False)
    with process(cluster.bootstrap, topic, name, table, "sleeps", 25, tells) as sleeper:
        assert told.recv() == "sleeping"
        before = count(table)
        with Pipeline(cluster.bootstrap, topic, name, table, each=each):
            eventually(lambda: count(table) == 60, "the successor does all of it", 60)
            assert sleeper.pid is not None
            os.kill(sleeper.pid, signal.SIGCONT)
            assert told.poll(30)
            assert told.recv() in ("TryAgain", "OutcomeUnknown", "Fenced")
            send(cluster.bootstrap, topic, some(30, "later"))
            eventually(lambda: count(table) >= 90, "what comes later is done too", 60)
            os.kill(sleeper.pid, signal.SIGTERM)
            sleeper.join(30)
    assert before < 60
    audit(cluster.bootstrap, topic, table)


def test_a_lost_commit_is_done_once(cluster: Cluster, topic: str, table: str, eventually: Eventually) -> None:
    """Sometimes its reply is lost, sometimes COMMIT itself; a new connection first, where the proxy reads its text."""
    send(cluster.bootstrap, topic, some(30))
    with (
        PostgresProxy(cluster.layout.listens("postgres")) as proxy,
        Pipeline(cluster.bootstrap, topic, a_name(), proxy.dsn(table), together=together) as pipeline,
    ):
        eventually(lambda: pipeline.fails() or count(table) >= 30, "it has begun", 60)
        replies = [proxy.swallow_commit_reply(n) for n in (1, 4)]
        requests = [proxy.add(Rule(Command.COMMIT, Direction.REQUEST, Reset(), Nth(n))) for n in (2, 5)]
        send(cluster.bootstrap, topic, some(600, "more"))
        eventually(lambda: pipeline.fails() or count(table) >= 630, "all records are applied", 60)
        send(cluster.bootstrap, topic, some(30, "later"))
        eventually(lambda: pipeline.fails() or count(table) >= 660, "what comes later is applied", 60)
        assert [one.caught for one in replies] == [1, 1]
        assert sum(one.caught for one in requests) > 0
    audit(cluster.bootstrap, topic, table)


def test_postgres_killed_and_restarted_is_ridden_out(
    mended: Cluster, topic: str, table: str, eventually: Eventually
) -> None:
    send(mended.bootstrap, topic, some(1500))
    with Pipeline(mended.bootstrap, topic, a_name(), table, each=each):
        eventually(lambda: count(table) >= 50, "it has begun")
        mended.postgres.kill()
        time.sleep(1.5)
        mended.up()
        eventually(lambda: count(table) >= 1500, "all records are applied", 60)
    audit(mended.bootstrap, topic, table)


def test_an_assignment_waits_for_a_postgres_that_is_away(
    mended: Cluster, topic: str, table: str, eventually: Eventually
) -> None:
    """The partitions of a member that joined come when the database is gone."""
    send(mended.bootstrap, topic, some(90))
    name = a_name()
    with Pipeline(mended.bootstrap, topic, name, table, each=each) as first:
        eventually(lambda: count(table) >= 90, "it has begun")
        second = Pipeline(mended.bootstrap, topic, name, table, each=each)
        with second:
            eventually(lambda: second.consumer._loop is not None, "the second has reached the database")
            mended.postgres.kill()
            first.stop()
            time.sleep(2)
            mended.up()
            send(mended.bootstrap, topic, some(30, "later"))
            eventually(lambda: count(table) >= 120, "the second does all of it", 60)
    audit(mended.bootstrap, topic, table)


def test_members_come_and_go(cluster: Cluster, topic: str, table: str, eventually: Eventually) -> None:
    """Up to three members; slow enough that partitions move between a read and its commit."""
    name = a_name()

    def slowly(connection: psycopg.Connection[tuple[object, ...]], record: object) -> None:
        time.sleep(0.002)
        each(connection, record)  # type: ignore[arg-type]

    def member() -> Pipeline:
        return Pipeline(cluster.bootstrap, topic, name, table, each=slowly).start()

    members = [member()]
    try:
        for number, joins in enumerate((True, True, False, True, False)):
            send(cluster.bootstrap, topic, some(300, f"{number}-"))
            enough = number * 300 + 50
            if joins:
                members.append(member())
                eventually(lambda: members[-1].consumer.partitions, "the new member has partitions")
            else:
                members.pop(0).stop()
            eventually(partial(reached, table, enough), "it goes on", 60)
        eventually(lambda: count(table) >= 1500, "all records are applied", 60)
    finally:
        for each_member in members:
            each_member.stop()
    assert [each_member.error for each_member in members] == [None] * len(members)
    audit(cluster.bootstrap, topic, table)


def test_an_effect_that_raises_is_tried_again_after_its_partition_moved(
    cluster: Cluster, topic: str, table: str, eventually: Eventually
) -> None:
    """While one member waits to try again, another joins and takes some of the records it waits with."""
    name, fail = a_name(), [True]

    def stubborn(connection: psycopg.Connection[tuple[object, ...]], record: object) -> None:
        if fail:
            raise RuntimeError("not yet")
        each(connection, record)  # type: ignore[arg-type]

    send(cluster.bootstrap, topic, some(300))
    retry = Retry(times=1000, first=0.2, longest=0.2)
    with Pipeline(cluster.bootstrap, topic, name, table, each=stubborn, retry=retry) as first:
        eventually(lambda: len(first.consumer.partitions) == 3, "the first has all partitions")
        with Pipeline(cluster.bootstrap, topic, name, table, each=stubborn, retry=retry) as second:
            eventually(lambda: second.consumer.partitions, "the second has partitions")
            fail.clear()
            eventually(lambda: count(table) >= 300, "all records are applied", 60)
        send(cluster.bootstrap, topic, some(60, "later"))
        eventually(lambda: first.fails() or count(table) >= 360, "what went while it was paused came back", 60)
    audit(cluster.bootstrap, topic, table)


def test_a_handler_that_closes_the_connection_is_told(
    cluster: Cluster, topic: str, table: str, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kept.consumer.into_postgres.GIVEN_UP_AFTER", 1.0)
    send(cluster.bootstrap, topic, some(3))
    pipeline = Pipeline(
        cluster.bootstrap, topic, a_name(), table, each=lambda connection, _: connection.close()
    ).start()
    eventually(pipeline.ended, "it gives up", 60)
    assert isinstance(pipeline.error, TryAgain)
    assert count(table) == 0
