"""Writers of a Postgres outbox that overlap, stall and abort, and readers beside them: ours, and the two wrong ones.

The truth is kept apart from every outbox: each transaction raises the version of the accounts it locked, and writes
down which token belongs to which version.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import psycopg

from kept.outbox.postgres import PostgresOutbox
from kept.outbox.postgres_backlog import PostgresBacklog

ACCOUNTS = 5
TABLES = f"""
    CREATE TABLE accounts (id int PRIMARY KEY, version int NOT NULL DEFAULT 0);
    INSERT INTO accounts SELECT generate_series(0, {ACCOUNTS - 1});
    CREATE TABLE history (account int, version int, token text);
    CREATE TABLE noise (at timestamptz);
    CREATE TABLE naive (id bigserial, writer xid8 DEFAULT pg_current_xact_id(), account int, token text);
"""
Connection = psycopg.Connection[Any]


@dataclass
class Harm:
    """What became of the records, compared with the truth."""

    lost: int
    duplicated: int
    reordered: int


@dataclass
class Seen:
    """What a reader was given: (account, token), in its order."""

    records: list[tuple[int, str]] = field(default_factory=list)

    def compared_with(self, truth: dict[int, list[str]]) -> Harm:
        wanted = {token for tokens in truth.values() for token in tokens}
        tokens = [token for _, token in self.records]
        swapped = 0
        for account, expected in truth.items():
            rank = {token: at for at, token in enumerate(expected)}
            ranks = [rank[token] for number, token in self.records if number == account and token in rank]
            swapped += sum(later < earlier for earlier, later in pairwise(ranks))
        return Harm(len(wanted - set(tokens)), len(tokens) - len(set(tokens)), swapped)


def prepare(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(TABLES.encode())


def truth_of(dsn: str) -> dict[int, list[str]]:
    """The committed tokens of each account, in the order of its versions, which have no gaps."""
    found: dict[int, list[str]] = {account: [] for account in range(ACCOUNTS)}
    with psycopg.connect(dsn) as connection:
        for account, version, token in connection.execute("SELECT * FROM history ORDER BY account, version"):
            found[account].append(token)
            assert version == len(found[account])
    return found


def one_transaction(connection: Connection, luck: random.Random, topic: str, token: str, *, naive: bool) -> None:
    """One or two accounts, in one order; a record each, before or after the lock; slow, and sometimes in vain."""
    outbox = PostgresOutbox()
    accounts = sorted(luck.sample(range(ACCOUNTS), luck.choice((1, 1, 2))))
    with connection.transaction():
        if luck.random() < 0.5:
            connection.execute("INSERT INTO noise VALUES (now())")  # has its number before its locks
            time.sleep(luck.random() * 0.004)
        for account in accounts:
            name = f"{token}.{account}"
            early = luck.random() < 0.5
            if early:
                outbox.enqueue(connection, topic, name, key=str(account))
                time.sleep(luck.random() * 0.002)
            raised = "UPDATE accounts SET version = version + 1 WHERE id = %s RETURNING version"
            (version,) = connection.execute(raised, (account,)).fetchall()[0]
            connection.execute("INSERT INTO history VALUES (%s, %s, %s)", (account, version, name))
            if naive:  # its number is taken after the lock
                connection.execute("INSERT INTO naive (account, token) VALUES (%s, %s)", (account, name))
            if not early:
                outbox.enqueue(connection, topic, name, key=str(account))
        time.sleep(luck.choice((0, 0, luck.random() * 0.005, 0.03)))
        if luck.random() < 0.15:
            raise psycopg.Rollback
        if luck.random() < 0.1:
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # positions are taken now; the commit comes later
            time.sleep(0.02)


def write(dsn: str, seed: int, writers: int, transactions: int, topic: str = "t", *, naive: bool = False) -> None:
    """Writers side by side, each with its own luck; returns when all have ended."""
    failed: list[BaseException] = []

    def writer(number: int) -> None:
        luck = random.Random(f"{seed} {number}")
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                for turn in range(transactions):
                    one_transaction(connection, luck, topic, f"{seed}.{number}.{turn}", naive=naive)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    threads = [threading.Thread(target=writer, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


class Reader(threading.Thread):
    """Calls `step` until told to end and nothing comes any more."""

    def __init__(self, step: Callable[[Seen], bool], close: Callable[[], object]) -> None:
        super().__init__()
        self.seen = Seen()
        self._step = step
        self._close = close
        self._ending = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            while self._step(self.seen) or not self._ending.is_set():
                time.sleep(0.001)
            while self._step(self.seen):
                pass
        except BaseException as error:  # noqa: BLE001 - raised again below
            self._error = error
        finally:
            self._close()

    def end(self) -> Seen:
        self._ending.set()
        self.join(60)
        assert not self.is_alive(), "the reader does not end"
        if self._error is not None:
            raise self._error
        return self.seen


def by_watermark(dsn: str) -> Reader:
    """Wrong: everything above the highest number that was seen."""
    connection, at = psycopg.connect(dsn, autocommit=True), 0

    def step(seen: Seen) -> bool:
        nonlocal at
        rows = connection.execute("SELECT id, account, token FROM naive WHERE id > %s ORDER BY id", (at,)).fetchall()
        seen.records += [(account, token) for _, account, token in rows]
        at = rows[-1][0] if rows else at
        return bool(rows)

    return Reader(step, connection.close)


def by_xmin(dsn: str) -> Reader:
    """Wrong: everything of transactions older than the oldest that is still running, by their numbers."""
    connection, at = psycopg.connect(dsn, autocommit=True), ("0", 0)
    query = """
        SELECT writer::text AS number, id, account, token FROM naive
        WHERE (writer, id) > (%s::text::xid8, %s) AND writer < pg_snapshot_xmin(pg_current_snapshot())
        ORDER BY writer, id
    """

    def step(seen: Seen) -> bool:
        nonlocal at
        rows = connection.execute(query, at).fetchall()
        seen.records += [(account, token) for _, _, account, token in rows]
        at = (rows[-1][0], rows[-1][1]) if rows else at
        return bool(rows)

    return Reader(step, connection.close)


def ours(dsn: str) -> Reader:
    backlog, at = PostgresBacklog(dsn), 0

    def step(seen: Seen) -> bool:
        nonlocal at
        entries = backlog.read(at, 7)
        seen.records += [(int(entry.key or b""), (entry.value or b"").decode()) for entry in entries]
        at = entries[-1].position if entries else at
        return bool(entries)

    return Reader(step, backlog.close)
