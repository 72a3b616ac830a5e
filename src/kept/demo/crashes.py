"""The two bad moments to die: between progress and rows, and between rows and progress.

A crash at a random moment rarely meets one of them. So the database is held up for a moment, in the same way under each
guarantee: a lock makes the pipeline's tasks wait just there, and then everything of the driver is killed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg.rows import TupleRow
from psycopg.sql import SQL, Composed, Identifier

from kept.demo.drivers import Driver
from kept.demo.place import PARTITIONS
from kept.demo.watching import Watch
from kept.stores.sql_errors import told_as

ARRIVE_WITHIN = 1.5
"""Once one task waits: how long the others have to come to the same point."""
HOLD_WITHIN = "20s"
FREE_PROGRESS = SQL("SELECT partition FROM kept_progress WHERE pipeline = {} FOR UPDATE SKIP LOCKED")


@dataclass(frozen=True)
class Scene:
    """What a crash happens to."""

    dsn: str
    pipeline: str
    watch: Watch
    driver: Driver


@dataclass(frozen=True)
class Crash:
    """One bad moment: what it is called, and how it is brought about."""

    title: str
    strike: Callable[[Scene], None]


@dataclass(frozen=True)
class Held:
    """A session that stands in the way: its number, and how many rows it holds."""

    pid: int
    rows: int


def before_rows(scene: Scene) -> None:
    """Tasks wait for the table: whoever records progress first has done so, and dies before its rows."""
    with _session(scene.dsn) as session:
        table = _take(session, _table(scene))
        _tasks_wait(scene, table)
        _die(scene, table)


def before_progress(scene: Scene) -> None:
    """Tasks write their rows, then wait for progress that somebody holds: whoever writes rows first dies there.

    Where rows and progress are one transaction, it holds its progress already when it comes to the rows: nobody gets
    in between, and the crash happens as soon as rows are seen.
    """
    with _session(scene.dsn) as second:
        with _session(scene.dsn) as first:
            _tasks_wait(scene, _take(first, _table(scene)))
            before = scene.watch.rows()
            progress = _take(second, FREE_PROGRESS.format(scene.pipeline))
        scene.watch.until(
            lambda: scene.watch.rows() > before and (not progress.rows or scene.watch.waiting_for(progress.pid)),
            "rows were added",
            scene.driver,
        )
        if progress.rows:
            scene.watch.give_time(lambda: len(scene.watch.waiting_for(progress.pid)) == PARTITIONS, ARRIVE_WITHIN)
        _die(scene, progress)


BEFORE_ROWS = Crash("between progress and rows", before_rows)
BEFORE_PROGRESS = Crash("between rows and progress", before_progress)


def moments(records: int, seed: int) -> list[tuple[int, Crash]]:
    """At how many stored rows each crash is prepared; the same for every guarantee."""
    chance = random.Random(f"crashes {seed}")  # noqa: S311 - not a secret
    first, second = chance.uniform(0.15, 0.35), chance.uniform(0.5, 0.7)
    return [(round(records * first), BEFORE_ROWS), (round(records * second), BEFORE_PROGRESS)]


def _table(scene: Scene) -> Composed:
    """Waits for whoever writes now; who comes later waits for this."""
    return SQL("LOCK TABLE {} IN SHARE MODE").format(Identifier(scene.watch.table))


@contextmanager
def _session(dsn: str) -> Iterator[psycopg.Connection[TupleRow]]:
    """A transaction that is rolled back: it only ever holds locks."""
    with told_as("holding up the demo's database"):
        connection = psycopg.connect(dsn)
    try:
        yield connection
    finally:
        connection.close()


def _take(session: psycopg.Connection[TupleRow], lock: Composed) -> Held:
    with told_as("holding up the demo's database"):
        session.execute("SELECT set_config('lock_timeout', %s, false)", (HOLD_WITHIN,))
        taken = session.execute(lock)
    return Held(session.info.backend_pid, max(0, taken.rowcount))


def _tasks_wait(scene: Scene, held: Held) -> None:
    """Until one task waits, and the others had time to."""
    watch = scene.watch
    watch.until(lambda: watch.rows() >= 0 and watch.waiting_for(held.pid), "a task waited for the table", scene.driver)
    watch.give_time(lambda: len(watch.waiting_for(held.pid)) == PARTITIONS, ARRIVE_WITHIN)


def _die(scene: Scene, held: Held) -> None:
    """Everything of the driver, and what it has asked the database for."""
    waiting = scene.watch.waiting_for(held.pid)
    scene.driver.kill()
    scene.watch.end(waiting)
