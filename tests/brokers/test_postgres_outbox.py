"""The outbox in Postgres without its relay: what is enqueued, and in which order it can be read."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import kept
from kept.errors import Fenced, FixConfiguration, SourceChanged, TryAgain
from kept.local.postgres import _program
from kept.outbox.backlog import Entry, Standing
from kept.outbox.postgres import PostgresOutbox
from kept.outbox.postgres_backlog import BY_INDEX, BYTES_AT_ONCE, READ, PostgresBacklog
from kept.outbox.postgres_horizon import Horizon
from kept.outbox.postgres_schema import make_outbox
from kept.stores.sessions import open_session
from tests.brokers import outbox_writers
from tests.brokers.store_things import a_database

OUTBOX = PostgresOutbox()
Connection = psycopg.Connection[Any]


def init(dsn: str) -> bool:
    session = open_session(dsn, "test", 5, 60)
    try:
        return make_outbox(session).new
    finally:
        session.close()


@pytest.fixture
def outbox_dsn(dsn: str) -> str:
    assert init(dsn)
    return dsn


@pytest.fixture
def backlog(outbox_dsn: str) -> Iterator[PostgresBacklog]:
    opened = PostgresBacklog(outbox_dsn)
    yield opened
    opened.close()


def enqueue(dsn: str, *values: str) -> None:
    with psycopg.connect(dsn) as connection:
        for value in values:
            OUTBOX.enqueue(connection, "t", value)


def values(entries: list[Entry]) -> list[str]:
    return [(entry.value or b"").decode() for entry in entries]


def everything(backlog: PostgresBacklog) -> list[str]:
    return values(backlog.read(0, 1000))


# -- enqueueing


def test_a_record_is_kept_with_every_part(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    key = uuid.uuid4()
    with psycopg.connect(outbox_dsn) as connection:
        OUTBOX.enqueue(
            connection, "t", b"\x00\xff", key="k", headers={"a": "b", "none": None}, partition=2, timestamp=9
        )
        OUTBOX.enqueue(connection, "t", None, headers=[("twice", b"1"), ("twice", b"\xff")])
        OUTBOX.enqueue(connection, "t", '{"n":1}', idempotency_key=key)
    first, tombstone, stamped = backlog.read(0, 10)
    assert first[1:-1] == ("t", b"k", b"\x00\xff", [("a", b"b"), ("none", None)], 2, 9)
    assert tombstone[1:-2] == ("t", None, None, [("twice", b"1"), ("twice", b"\xff")], None)
    assert time.time() * 1000 - 60_000 < (tombstone.timestamp or 0) < time.time() * 1000 + 60_000
    assert stamped.headers == [("idempotency_key", str(key).encode())]
    assert stamped.value == f'{{"n":1,"idempotency_key":"{key}"}}'.encode()
    assert first.position < tombstone.position < stamped.position
    assert len({first.tag, tombstone.tag, stamped.tag}) == 3


def test_it_is_the_callers_transaction(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    with psycopg.connect(outbox_dsn) as connection:
        OUTBOX.enqueue(connection, "t", "taken back")
        connection.rollback()
        with connection.transaction():
            OUTBOX.enqueue(connection, "t", "first")
            with connection.transaction(force_rollback=True):
                OUTBOX.enqueue(connection, "t", "taken back by a savepoint")
            OUTBOX.enqueue(connection, "t", "second")
            assert everything(backlog) == []
    assert everything(backlog) == ["first", "second"]


def test_on_an_async_connection_it_is_awaited(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    async def enqueue_two() -> None:
        async with await psycopg.AsyncConnection.connect(outbox_dsn) as connection:
            await OUTBOX.enqueue(connection, "t", "async")
            await kept.PostgresOutbox(stamp="uuid").enqueue(connection, "t", "stamped")

    asyncio.run(enqueue_two())
    found = backlog.read(0, 10)
    assert values(found) == ["async", "stamped"]
    assert [len(entry.headers) for entry in found] == [0, 1]


def test_without_a_transaction_or_an_outbox_it_is_refused(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        with pytest.raises(FixConfiguration, match="committed alone"):
            OUTBOX.enqueue(connection, "t", "x")
        with pytest.raises(FixConfiguration, match="kept outbox init"), connection.transaction():
            OUTBOX.enqueue(connection, "t", "x")
    with pytest.raises(FixConfiguration, match="kept outbox init"):
        PostgresBacklog(dsn)


def test_other_languages_insert_or_call_a_function(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    key = uuid.uuid4()
    with psycopg.connect(outbox_dsn) as connection:
        connection.execute(
            "SELECT kept_enqueue('t', 'é', key => 'k', headers => '{\"trace\": \"1\"}', idempotency_key => %s)", (key,)
        )
        connection.execute(
            "INSERT INTO kept_outbox (topic, value, header_names, header_values) VALUES ('t', '\\x00', '{a}', '{NULL}')"
        )
    function, insert = backlog.read(0, 10)
    assert (function.key, function.value) == (b"k", "é".encode())
    assert function.headers == [("idempotency_key", str(key).encode()), ("trace", b"1")]
    assert (insert.value, insert.headers) == (b"\0", [("a", None)])
    assert all(abs((entry.timestamp or 0) - time.time() * 1000) < 60_000 for entry in (function, insert))


@pytest.mark.parametrize(
    "columns",
    ["topic = 'no/topic'", "topic = ''", "topic = '..'", "partition = -1", "timestamp_ms = 0", "header_names = '{a}'",
     "header_names = '{NULL}', header_values = '{x}'"],
)  # fmt: skip
def test_what_no_broker_takes_is_refused_at_once(outbox_dsn: str, columns: str) -> None:
    named = dict(part.split(" = ") for part in columns.split(", "))
    named.setdefault("topic", "'t'")
    statement = f"INSERT INTO kept_outbox ({', '.join(named)}) VALUES ({', '.join(named.values())})"
    with psycopg.connect(outbox_dsn) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(statement.encode())


def test_a_role_needs_the_right_to_insert_and_no_other(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    role = f"app_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(outbox_dsn) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN; GRANT INSERT ON kept_outbox TO {role}".encode())
    try:
        with psycopg.connect(outbox_dsn, user=role) as connection:
            connection.execute("SET search_path = pg_catalog, public")
            OUTBOX.enqueue(connection, "t", "by the app")
        assert everything(backlog) == ["by the app"]
        with psycopg.connect(outbox_dsn, user=role) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("INSERT INTO kept_outbox_order VALUES (1, 1)")
    finally:
        with psycopg.connect(outbox_dsn) as connection:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


# -- the order in which it can be read


def test_a_transaction_that_stays_open_delays_nobody(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    with psycopg.connect(outbox_dsn) as slow:
        OUTBOX.enqueue(slow, "t", "slow")
        enqueue(outbox_dsn, "quick")
        (quick,) = backlog.read(0, 10)
        assert quick.value == b"quick"
        slow.commit()
    assert values(backlog.read(quick.position, 10)) == ["slow"]


def test_a_position_that_cannot_be_seen_yet_is_waited_for(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    """Here a reader by highest number, without the look at who commits, would lose a record."""
    with psycopg.connect(outbox_dsn) as slow, psycopg.connect(outbox_dsn, autocommit=True) as looking:
        OUTBOX.enqueue(slow, "t", "first")
        slow.execute("SET CONSTRAINTS ALL IMMEDIATE")
        enqueue(outbox_dsn, "second")
        visible = looking.execute("SELECT position FROM kept_outbox_order").fetchall()
        assert everything(backlog) == []
        assert everything(backlog) == []  # and stays so
        slow.commit()
        late = "SELECT count(*) FROM kept_outbox_order WHERE position < %s"
        assert looking.execute(late, visible[-1]).fetchone() == (1,), "the control: it turned up below what was visible"
    assert everything(backlog) == ["first", "second"]


def test_it_says_what_it_waits_for(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    with psycopg.connect(outbox_dsn) as slow:
        OUTBOX.enqueue(slow, "t", "first")
        slow.execute("SET CONSTRAINTS ALL IMMEDIATE")
        deadline = time.monotonic() + 10
        while backlog.held_up is None and time.monotonic() < deadline:
            assert everything(backlog) == []
        assert f"process {slow.info.backend_pid} took positions" in str(backlog.held_up)
    assert everything(backlog) == ["first"]
    assert backlog.held_up is None


def test_the_lock_decides_wherever_the_record_was_enqueued(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    """A number taken when the record is inserted would put `second` first; so would the transactions' numbers."""
    outbox_writers.prepare(outbox_dsn)
    change = "UPDATE accounts SET version = version + 1 WHERE id = 0"
    with psycopg.connect(outbox_dsn) as one, psycopg.connect(outbox_dsn) as other:
        OUTBOX.enqueue(other, "t", "second", key="0")
        one.execute(change)
        OUTBOX.enqueue(one, "t", "first", key="0")
        one.commit()
        other.execute(change)
        other.commit()
    assert everything(backlog) == ["first", "second"]


def test_concurrent_writers_and_the_two_wrong_ways(outbox_dsn: str) -> None:
    outbox_writers.prepare(outbox_dsn)
    readers = [
        outbox_writers.by_watermark(outbox_dsn),
        outbox_writers.by_xmin(outbox_dsn),
        outbox_writers.ours(outbox_dsn),
    ]
    for reader in readers:
        reader.start()
    try:
        for seed in range(3):
            outbox_writers.write(outbox_dsn, seed, writers=6, transactions=40, naive=True)
    finally:
        watermark, xmin, mine = (reader.end() for reader in readers)
    truth = outbox_writers.truth_of(outbox_dsn)
    lost, reordered = watermark.compared_with(truth).lost, xmin.compared_with(truth).reordered
    print(f"{sum(map(len, truth.values()))} records; watermark {watermark.compared_with(truth)}; "
          f"xmin {xmin.compared_with(truth)}; ours {mine.compared_with(truth)}")  # fmt: skip
    assert lost > 0
    assert xmin.compared_with(truth).lost == 0
    assert reordered > 0
    assert mine.compared_with(truth) == outbox_writers.Harm(0, 0, 0)


def test_reading_goes_by_index_whatever_the_planner_believes(outbox_dsn: str) -> None:
    with psycopg.connect(outbox_dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE kept_outbox SET (autovacuum_enabled = off)")
        connection.execute("ANALYZE kept_outbox; ANALYZE kept_outbox_order")  # empty, it says
        connection.execute("INSERT INTO kept_outbox (topic) SELECT 't' FROM generate_series(1, 20000)")
        connection.execute(BY_INDEX)
        plan = connection.execute(f"EXPLAIN {READ}".encode(), (5, 1 << 60, 100, BYTES_AT_ONCE)).fetchall()
    assert not any("Seq Scan" in line for (line,) in plan), plan


def test_rows_that_a_person_deleted_do_not_hide_those_behind(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    enqueue(outbox_dsn, "a", "b", "c", "d")
    with psycopg.connect(outbox_dsn) as connection:
        connection.execute("DELETE FROM kept_outbox WHERE value IN ('a', 'b', 'c')")
    assert values(backlog.read(0, 2)) == ["d"]


def test_large_records_come_in_smaller_parts(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    enqueue(outbox_dsn, *("x" * 6_000_000 for _ in range(5)))
    first = backlog.read(0, 100)
    assert 1 <= len(first) < 5
    assert len(first) + len(backlog.read(first[-1].position, 100)) == 5


# -- what the relay notes


def test_the_standing_follows_its_owner(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    assert (backlog.standing(), backlog.end()) == (Standing(0, 0, 0), 0)
    enqueue(outbox_dsn, "a", "b", "c", "d")
    a, b, c, d = backlog.read(0, 10)
    backlog.own(3)
    backlog.attempt(b.position)
    assert backlog.standing() == Standing(3, 0, b.position)
    backlog.refuse(b, "too large\0")
    backlog.refuse(b, "too large")
    assert everything(backlog) == ["a", "c", "d"]
    backlog.trim(b.position)
    assert backlog.knows(b.position, b.tag)
    assert not backlog.knows(b.position, b.tag + 1)
    backlog.trim(c.position)
    assert everything(backlog) == ["d"]
    assert backlog.lag()[:2] == (1, 1)
    assert (backlog.knows(c.position, c.tag), backlog.knows(c.position, c.tag + 1)) == (True, False)
    assert (backlog.knows(d.position, d.tag), backlog.knows(d.position, d.tag + 1)) == (True, False)
    assert not backlog.knows(a.position, a.tag)
    assert not backlog.knows(d.position + 1, 1)
    assert backlog.end() == d.position
    with psycopg.connect(outbox_dsn) as connection:
        assert connection.execute("SELECT position, value, reason FROM kept_outbox_refused").fetchall() == [
            (b.position, b"b", "too large\\0")
        ]


def test_a_relay_that_was_succeeded_notes_nothing_more(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    enqueue(outbox_dsn, "a")
    (a,) = backlog.read(0, 10)
    backlog.own(1)
    backlog.own(1)
    successor = PostgresBacklog(outbox_dsn)
    with pytest.raises(Fenced):
        successor.own(1)
    successor.own(2)
    with pytest.raises(Fenced):
        backlog.attempt(a.position)
    with pytest.raises(Fenced):
        backlog.trim(a.position)
    with pytest.raises(Fenced):
        backlog.refuse(a, "no")
    with pytest.raises(Fenced):
        backlog.own(1)
    assert everything(successor) == ["a"]
    successor.close()


def test_a_database_that_went_back_under_a_relay_is_found_out(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    enqueue(outbox_dsn, "a", "b")
    a, b = backlog.read(0, 10)
    backlog.own(1)
    backlog.trim(a.position)
    with psycopg.connect(outbox_dsn) as connection:
        connection.execute("UPDATE kept_outbox_standing SET confirmed = 0, attempted = 0")
    with pytest.raises(SourceChanged, match="went back"):
        backlog.attempt(b.position)


def test_a_copy_that_went_its_own_way_is_not_taken_for_the_original(
    outbox_dsn: str, backlog: PostgresBacklog, cluster: Any
) -> None:
    enqueue(outbox_dsn, "a")
    copy = _copied(outbox_dsn, backlog)
    enqueue(outbox_dsn, "b")
    enqueue(copy, "something else")
    b = backlog.read(0, 10)[-1]
    restored = PostgresBacklog(copy)
    assert restored.identity == backlog.identity
    assert restored.end() == b.position
    assert not restored.knows(b.position, b.tag)
    restored.close()


def _copied(dsn: str, backlog: PostgresBacklog) -> str:
    """A backup of the database as it is now; nobody may be connected meanwhile."""
    backlog.close()
    server, _, name = dsn.rpartition("/")
    copy = a_database(f"{server}/postgres")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {copy.rpartition('/')[2]}".encode())
        connection.execute(f"CREATE DATABASE {copy.rpartition('/')[2]} TEMPLATE {name}".encode())
    return copy


def test_a_dump_restored_elsewhere_is_an_outbox_too(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    enqueue(outbox_dsn, "a", "b")
    a, b = backlog.read(0, 10)
    backlog.own(1)
    backlog.trim(a.position)
    server, _, _ = outbox_dsn.rpartition("/")
    copy = a_database(f"{server}/postgres")
    program = _program("pg_dump")[-1]
    dumped = subprocess.run([program, outbox_dsn], check=True, capture_output=True).stdout
    subprocess.run([_program("psql")[-1], "-q", "-v", "ON_ERROR_STOP=1", copy], check=True, input=dumped)
    restored = PostgresBacklog(copy)
    assert restored.identity == backlog.identity
    assert restored.standing() == backlog.standing()
    assert (restored.knows(a.position, a.tag), restored.knows(b.position, b.tag)) == (True, True)
    enqueue(copy, "c")
    assert values(restored.read(a.position, 10)) == ["b", "c"]
    restored.close()


def test_it_cannot_be_emptied_by_hand(outbox_dsn: str) -> None:
    with (
        psycopg.connect(outbox_dsn) as connection,
        pytest.raises(psycopg.errors.RaiseException, match="kept outbox purge"),
    ):
        connection.execute("TRUNCATE kept_outbox RESTART IDENTITY")


def test_a_server_that_ends_the_connection_is_asked_again(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    enqueue(outbox_dsn, "a")
    assert everything(backlog) == ["a"]
    with psycopg.connect(outbox_dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '^kept:'")
    with pytest.raises(TryAgain):
        everything(backlog)
    assert everything(backlog) == ["a"]


def test_trimming_leaves_room_for_what_comes(outbox_dsn: str, backlog: PostgresBacklog) -> None:
    """Deleted in batches and vacuumed, the tables stay as large as the most that waited at once."""
    backlog.own(1)
    sizes = []
    with psycopg.connect(outbox_dsn, autocommit=True) as connection:
        for _ in range(6):
            many = "INSERT INTO kept_outbox (topic, value) SELECT 't', repeat('x', 200)::bytea"
            connection.execute(f"{many} FROM generate_series(1, 6000)".encode())
            backlog.trim(backlog.end())
            connection.execute("VACUUM kept_outbox")
            connection.execute("VACUUM kept_outbox_order")
            size = "SELECT pg_total_relation_size('kept_outbox') + pg_total_relation_size('kept_outbox_order')"
            sizes += [int(row[0]) for row in connection.execute(size.encode())]
    assert backlog.lag().records == 0
    assert sizes[-1] <= 1.2 * max(sizes[:2]), sizes


# -- making it


def test_making_it_twice_or_at_once_makes_it_once(dsn: str) -> None:
    made: list[bool] = []
    threads = [threading.Thread(target=lambda: made.append(init(dsn))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False, False, False, True]
    assert not init(dsn)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DROP TABLE kept_outbox_refused", "kept_outbox_refused is missing"),
        (
            "ALTER TABLE kept_outbox_refused ALTER COLUMN reason TYPE bytea USING ''",
            "kept_outbox_refused.reason should be text, not bytea",
        ),
        ("ALTER SEQUENCE kept_outbox_positions CACHE 10", "has a cache"),
        ("ALTER TABLE kept_outbox DISABLE TRIGGER ALL", "switched off"),
        ("UPDATE kept_outbox_identity SET version = 2", "version 1"),
        ("DELETE FROM kept_outbox_identity", "version 1"),
    ],
)
def test_an_outbox_that_does_not_fit_is_refused(outbox_dsn: str, change: str, told: str) -> None:
    with psycopg.connect(outbox_dsn) as connection:
        connection.execute(change.encode())
    for move in (init, PostgresBacklog):
        with pytest.raises(FixConfiguration, match=told):
            move(outbox_dsn)


def test_a_horizon_only_rises(outbox_dsn: str) -> None:
    session, horizon = open_session(outbox_dsn, "test", 5, 60), Horizon()
    enqueue(outbox_dsn, "a")
    horizon.look(session)
    before = horizon.known
    horizon.look(session)
    assert horizon.known == before > 0
    session.close()
