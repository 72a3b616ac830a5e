"""Looks at a table of the demo again and again: its rows over time, and which of the pipeline's sessions wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType

import psycopg
from psycopg.sql import SQL, Identifier

from kept.demo.drivers import Driver
from kept.demo.payments import Payment
from kept.errors import TryAgain
from kept.stores.sessions import everyone_of
from kept.stores.sql_errors import told_as

GLANCE = 0.05
WAITING = """
    SELECT pid FROM pg_stat_activity
    WHERE starts_with(application_name, %s) AND %s = ANY(pg_blocking_pids(pid))
"""
ENDED_WITHIN_MS = 5_000
PATIENCE = 300.0


class Watch:
    """One guarantee's table, pipeline and driver, seen from outside."""

    def __init__(self, dsn: str, table: str, pipeline: str, heard: Callable[[int], None]) -> None:
        self.table = table
        self._sessions = everyone_of(pipeline)
        self._heard = heard
        with told_as("watching the demo's table"):
            self._connection = psycopg.connect(dsn, autocommit=True)
        self._began = time.monotonic()
        self.samples: list[tuple[float, int]] = []

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def rows(self) -> int:
        """How many rows are there now; remembered."""
        with told_as("counting the demo's rows"):
            found = self._connection.execute(SQL("SELECT count(*) FROM {}").format(Identifier(self.table))).fetchall()
        count = int(found[0][0])
        self.samples.append((self.seconds(), count))
        self._heard(count)
        return count

    def stored(self) -> dict[Payment, int]:
        """Every payment that is there, and how often."""
        statement = SQL("SELECT id, account, cents, count(*) FROM {} GROUP BY id, account, cents")
        with told_as("reading the demo's rows"):
            found = self._connection.execute(statement.format(Identifier(self.table))).fetchall()
        return {Payment(*payment): count for *payment, count in found}

    def waiting_for(self, pid: int) -> list[int]:
        """The pipeline's sessions that wait for this one."""
        with told_as("looking who waits"):
            return [one for (one,) in self._connection.execute(WAITING, (self._sessions, pid)).fetchall()]

    def end(self, sessions: Sequence[int]) -> None:
        """A machine that is dead sends nothing more, but the server notices that late: it is told."""
        with told_as("ending the sessions of a dead driver"):
            for pid in sessions:
                self._connection.execute("SELECT pg_terminate_backend(%s, %s)", (pid, ENDED_WITHIN_MS))

    def until(self, condition: Callable[[], object], awaited: str, driver: Driver, within: float = PATIENCE) -> None:
        """Wait until it is so; a driver that ends before is told with its last words."""
        deadline = time.monotonic() + within
        while not condition():
            if driver.ended:
                raise TryAgain(
                    f"the pipeline ended ({driver.kill()}) before {awaited}; it said\n    {driver.last_words()}",
                    way_out="its last words say why; with few --records it may have been too quick: send more",
                )
            if time.monotonic() > deadline:
                raise TryAgain(
                    f"not within {within:.0f} s: {awaited}; the pipeline said\n    {driver.last_words()}",
                    way_out="try it on a machine with less to do",
                )
            time.sleep(GLANCE)

    def give_time(self, condition: Callable[[], object], within: float) -> None:
        """Wait until it is so, or the time is over."""
        deadline = time.monotonic() + within
        while not condition() and time.monotonic() < deadline:
            time.sleep(GLANCE)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
