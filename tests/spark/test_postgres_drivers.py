"""Drivers and tasks of a pipeline into Postgres, without Spark: who goes on, and what a sleeper may write."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import psycopg
import pyarrow as pa
import pytest

import kept
from kept.errors import Fenced, TryAgain
from kept.guarantees import AtLeastOnce, AtMostOnce, Guarantee
from kept.local import Cluster
from kept.progress import Range
from kept.spark import postgres_sink
from kept.spark.postgres_sink import PostgresDriver, PostgresPart
from kept.spark.sinks import Assignment, Done, Part, Rows
from kept.verify.proxy import Command, Direction, Nth, PostgresProxy, Reset, Rule
from tests.brokers.store_things import SOURCE, TOPIC, seeds, span
from tests.conftest import Eventually

OTHER = "refunds"
EXACTLY = kept.ExactlyOnce("ledger")
LATE = """
    CREATE TABLE late (pid int);
    CREATE FUNCTION wait_if_late() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        WHILE EXISTS (SELECT FROM late WHERE pid = pg_backend_pid()) LOOP PERFORM pg_sleep(0.02); END LOOP;
        RETURN NEW;
    END $$;
    CREATE TRIGGER late BEFORE INSERT ON out FOR EACH ROW EXECUTE FUNCTION wait_if_late();
"""


@pytest.fixture
def drivers(dsn: str) -> Iterator[Drivers]:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE out (k int PRIMARY KEY, v text)")
    with ExitStack() as stack:
        yield Drivers(dsn, stack)


class Drivers:
    """Drivers of one pipeline, as if each had been given a frame of two columns."""

    def __init__(self, dsn: str, stack: ExitStack) -> None:
        self._dsn = dsn
        self._stack = stack

    def one(self, guarantee: Guarantee = EXACTLY, *, dsn: str | None = None) -> PostgresDriver:
        opened = kept.PostgresSink(dsn or self._dsn, "out", key="k", upsert=True).open("ledger", guarantee)
        self._stack.callback(opened.close)
        opened._columns = ("k", "v")
        return opened

    def begun(self, guarantee: Guarantee = EXACTLY, *, partitions: int = 3, dsn: str | None = None) -> PostgresDriver:
        """One that has taken over."""
        opened = self.one(guarantee, dsn=dsn)
        opened.seed({TOPIC: seeds(partitions)})
        opened.take_over([(TOPIC, number) for number in range(partitions)])
        return opened


def assigned(wanted: Range) -> Assignment:
    return Assignment(wanted, SOURCE)


def held(dsn: str, query: str = "SELECT k, v FROM out") -> dict[object, object]:
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute(query.encode()).fetchall())


def test_of_drivers_that_start_together_one_has_every_topic(dsn: str, drivers: Drivers) -> None:
    """Who is first with one topic and last with another has fenced, and is fenced: both would end."""
    both = [drivers.one(), drivers.one()]
    both[0].seed({topic: seeds(1) for topic in (TOPIC, OTHER)})
    parts = [(OTHER, 0), (TOPIC, 0)]  # each names them in an order of its own
    start = threading.Barrier(2)

    def take(driver: PostgresDriver, parts: Sequence[Part]) -> None:
        for _ in range(30):
            start.wait(30)
            driver.take_over(parts)
            start.wait(30)
            owners = held(dsn, "SELECT topic, split_part(owner, '@', 1) FROM kept_progress")
            crossed.update(owners.values() if len(set(owners.values())) > 1 else ())

    crossed: set[object] = set()
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(take, both[0], parts), pool.submit(take, both[1], parts[::-1])]:
            future.result(120)
    assert crossed == set()


def test_a_driver_that_was_succeeded_adopts_nothing(drivers: Drivers) -> None:
    """It was idle and did not hear of it; a partition that came since would be taken from its successor."""
    elder = drivers.begun()
    successor = drivers.begun()
    successor.seed({TOPIC: seeds(4)})
    successor.take_over([(TOPIC, 3)])
    elder.seed({TOPIC: seeds(4)})
    with pytest.raises(Fenced):
        elder.take_over([(TOPIC, 3)])
    done = [Done(assigned(span(0, 5, number)), 0) for number in range(4)]
    assert {each.position.next_offset for each in successor.close_ranges(done).values()} == {5}


def test_a_driver_that_was_succeeded_sweeps_nothing(dsn: str, drivers: Drivers) -> None:
    """Rule 9: what its successor has put aside would be gone, or fence its tasks."""
    elder = drivers.begun()
    successor = drivers.begun()
    putting = successor.staging().open(0)
    with pytest.raises(Fenced):
        elder.staging()
    putting.write("9c8b7f4e-6a53-4d5e-9d8e-0a1b2c3d4e5f", 0, table(1, "aside"))
    putting.close()
    drivers.begun().staging()
    assert held(dsn, "SELECT 1, count(*) FROM pg_class WHERE relname LIKE 'kept_staging_%'") == {1: 1}


def table(key: int, value: str) -> pa.Table:
    return pa.table({"k": pa.array([key], pa.int32()), "v": [value]})


def write(part: PostgresPart, offset: int, value: str) -> None:
    part.write(Rows(np.array([offset]), table(7, value)), span(offset, offset + 1))


@pytest.mark.parametrize("guarantee", [AtLeastOnce(), AtMostOnce()], ids=["at-least-once", "at-most-once"])
def test_an_attempt_that_slept_puts_no_old_value_over_a_new_one(
    dsn: str, drivers: Drivers, guarantee: Guarantee, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked at progress, and sleeps; its twin writes the same rows, and those after them."""
    monkeypatch.setattr(postgres_sink, "LOCK_WITHIN", 1.0)
    tasks = drivers.begun(guarantee, partitions=1).for_tasks()
    sleeper, twin = (tasks.open(assigned(span(0, 2))) for _ in range(2))
    pid = sleeper._store._session().info.backend_pid
    with psycopg.connect(dsn, autocommit=True) as person, ThreadPoolExecutor(1) as pool:
        person.execute(LATE.encode())
        person.execute("INSERT INTO late VALUES (%s)", (pid,))
        sleeping = pool.submit(write, sleeper, 0, "old")
        sleeps = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
        eventually(lambda: person.execute(sleeps, (pid,)).fetchone() is not None, "it sleeps")
        write(twin, 0, "old")
        write(twin, 1, "new")
        person.execute("DELETE FROM late")
        try:
            sleeping.result(30)
        except (TryAgain, kept.OutcomeUnknown):
            write(sleeper, 0, "old")  # as a task does that is patient
    sleeper.close()
    twin.close()
    assert held(dsn) == {7: "new"}


@pytest.mark.parametrize("arrived", [True, False], ids=["its reply", "the request"])
def test_a_driver_rides_out_a_lost_commit(cluster: Cluster, dsn: str, drivers: Drivers, arrived: bool) -> None:
    """Which it was is read with the next try, under the lock that the one in doubt held."""
    with PostgresProxy(cluster.layout.listens("postgres")) as proxy:

        def lose() -> None:
            if arrived:
                proxy.swallow_commit_reply()
            else:
                proxy.add(Rule(Command.COMMIT, Direction.REQUEST, Reset(), Nth(1)))

        driver = drivers.begun(partitions=1, dsn=proxy.dsn(dsn))
        assert driver.last_batch() is None  # the tables are made
        lose()
        closed = driver.close_ranges([Done(assigned(span(0, 5)), 0)])
        assert closed[TOPIC, 0].position.next_offset == 5
        assert held(dsn, "SELECT partition, next_offset FROM kept_progress") == {0: 5}
        lose()
        driver.staging().open(0).close()
        lose()
        assert driver.last_batch() is None
        driver.close()
