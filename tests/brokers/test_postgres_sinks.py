"""Effects in a real Postgres: the messages table, duplicates, poison of every kind, and where it is buried."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import psycopg
import pytest
from psycopg.rows import TupleRow

from kept.errors import FixConfiguration, Refused, TryAgain
from kept.stores import DeadLetter, DeadLetters, Messages, PostgresProgress, isolated
from tests.brokers.store_things import SOURCES, TOPIC, pipeline, recorded, span

Connection = psycopg.Connection[TupleRow]
Pairs = list[tuple[uuid.UUID, bytes | None]]


@pytest.fixture
def store(dsn: str) -> Iterator[PostgresProgress]:
    with pipeline(dsn) as one:
        yield one


@pytest.fixture
def messages(store: PostgresProgress) -> Messages:
    sink = Messages()
    store.prepare(sink)
    return sink


@pytest.fixture
def letters(store: PostgresProgress) -> DeadLetters:
    dead = DeadLetters("ledger")
    store.prepare(dead)
    return dead


def some(count: int) -> Pairs:
    return [(uuid.uuid4(), f"message {number} ✓".encode()) for number in range(count)]


def written(dsn: str) -> list[tuple[uuid.UUID, bytes | None]]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT idempotency_key, message FROM messages ORDER BY id").fetchall()
    return [(key, None if text is None else text.encode()) for key, text in rows]


def query(dsn: str, statement: str) -> list[TupleRow]:
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def write(store: PostgresProgress, messages: Messages, start: int, pairs: Pairs) -> int:
    with store.chunk([span(start, start + len(pairs))], SOURCES) as chunk:
        return messages.write(chunk.connection, pairs)


# -- messages


def test_messages_are_written_in_their_order_with_progress(
    dsn: str, store: PostgresProgress, messages: Messages
) -> None:
    pairs: Pairs = [*some(4500), (uuid.uuid4(), None), (uuid.uuid4(), b""), *some(3)]
    assert write(store, messages, 0, pairs) == len(pairs)
    assert write(store, messages, len(pairs), []) == 0
    assert written(dsn) == pairs
    assert recorded(dsn) == {0: len(pairs)}


def test_a_key_that_is_there_is_a_no_op(dsn: str, store: PostgresProgress, messages: Messages) -> None:
    first, second, third = some(10), some(10), some(10)
    twice = [*second[:5], first[3], *second[5:], second[2], (second[4][0], b"another text")]
    assert write(store, messages, 0, first) == 10
    assert write(store, messages, 10, twice) == 10
    assert write(store, messages, 23, [*third[:5], first[0]]) == 5  # asks first which are there, and finds some
    assert write(store, messages, 29, third[5:]) == 5  # asks first, and finds none
    assert write(store, messages, 34, [first[1]]) == 0  # does not ask
    assert written(dsn) == [*first, *second, *third]


def test_a_key_that_comes_in_between_is_a_no_op_too(
    dsn: str, store: PostgresProgress, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pipeline commits a key after we asked which are there, and before we copy."""
    pairs = some(10)
    ask = messages._new

    def ask_and_be_overtaken(connection: Connection, asked: Sequence[tuple[uuid.UUID, bytes | None]]) -> Pairs:
        answer = ask(connection, asked)
        with psycopg.connect(dsn) as other:
            other.execute("INSERT INTO messages (idempotency_key, message) VALUES (%s, 'theirs')", (pairs[7][0],))
        return answer

    monkeypatch.setattr(messages, "_new", ask_and_be_overtaken)
    messages._duplicates_lately = True
    assert write(store, messages, 0, pairs) == 9
    assert sorted(key for key, _ in written(dsn)) == sorted(key for key, _ in pairs)


@pytest.mark.parametrize(
    "columns",
    [
        "id serial PRIMARY KEY, idempotency_key text, message text",  # the article's own
        "id serial PRIMARY KEY, idempotency_key uuid NOT NULL, message text",
        "id serial PRIMARY KEY, idempotency_key uuid NOT NULL UNIQUE DEFERRABLE, message text",
        "id serial PRIMARY KEY, idempotency_key uuid NOT NULL UNIQUE, message jsonb",
        "id serial PRIMARY KEY, idempotency_key uuid NOT NULL UNIQUE",
    ],
)
def test_a_table_that_does_not_fit_is_refused(dsn: str, store: PostgresProgress, columns: str) -> None:
    query(dsn, f"CREATE TABLE messages ({columns})")
    with pytest.raises(FixConfiguration, match="lacks the columns"):
        store.prepare(Messages())


def test_a_table_of_another_name_and_schema(dsn: str, store: PostgresProgress) -> None:
    query(dsn, "CREATE SCHEMA app")
    sink = Messages("app.Inbox Of Mine")
    store.prepare(sink)
    write(store, sink, 0, some(3))
    assert query(dsn, 'SELECT count(*) FROM app."Inbox Of Mine"') == [(3,)]


# -- poison

BAD_TEXT = {"a NUL": b"a\0b", "no UTF-8": b"\xff\xfe", "half a surrogate": b"\xed\xa0\x80"}


@pytest.mark.parametrize("value", BAD_TEXT.values(), ids=BAD_TEXT)
@pytest.mark.parametrize("duplicates", [False, True])
def test_a_message_that_is_no_text_is_found_alone(
    dsn: str, store: PostgresProgress, messages: Messages, value: bytes, duplicates: bool
) -> None:
    good = some(21)
    pairs: Pairs = [*good[:7], (uuid.uuid4(), value), *good[7:20], (uuid.uuid4(), value), good[20]]
    if duplicates:
        pairs += good[:2]
    with pytest.raises(Refused):
        write(store, messages, 0, pairs)
    with store.chunk([span(0, len(pairs))], SOURCES) as chunk:
        poison = isolated(chunk.connection, pairs, messages.write)
    assert [one.record for one in poison] == [pairs[7], pairs[21]]
    assert all("22021" in one.reason for one in poison)
    assert written(dsn) == good
    assert recorded(dsn) == {0: len(pairs)}


ACCOUNTS = """
    CREATE TABLE accounts (name text PRIMARY KEY);
    CREATE TABLE entries (
        at bigint PRIMARY KEY,
        amount int NOT NULL CHECK (amount > 0),
        account text NOT NULL REFERENCES accounts DEFERRABLE INITIALLY DEFERRED)
"""


def book(connection: Connection, records: Sequence[tuple[int, object, str]]) -> None:
    """A user's handler: the entry first, its account after it, which only a deferred constraint allows."""
    for at, amount, account in records:
        connection.execute("INSERT INTO entries VALUES (%s, %s, %s)", (at, amount, account))
        if not account.startswith("nobody"):
            connection.execute("INSERT INTO accounts VALUES (%s) ON CONFLICT DO NOTHING", (account,))


@pytest.mark.parametrize(
    ("bad", "state"),
    [
        ((5, -1, "a"), "23514"),
        ((5, None, "a"), "23502"),
        ((0, 1, "a"), "23505"),
        ((5, 10**12, "a"), "22003"),
        ((5, "ten", "a"), "22P02"),
        ((5, 1, "nobody"), "23503"),  # deferred: without a look it would fail at COMMIT
        ((5, 1, "a\0b"), "NUL"),  # refused before it is sent
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_users_handler_loses_only_the_poison(
    dsn: str, store: PostgresProgress, bad: tuple[int, object, str], state: str
) -> None:
    query(dsn, ACCOUNTS)
    records: list[tuple[int, object, str]] = [(at, at + 1, f"account {at}") for at in range(10)]
    records[5] = bad
    with store.chunk([span(0, 10)], SOURCES) as chunk:
        poison = isolated(chunk.connection, records, book)
    assert [one.record for one in poison] == [bad]
    assert state in poison[0].reason
    assert query(dsn, "SELECT at FROM entries ORDER BY at") == [(at,) for at in range(10) if at != 5]
    assert recorded(dsn) == {0: 10}


def test_a_handler_may_refuse_a_record_and_its_other_errors_pass_through(dsn: str, store: PostgresProgress) -> None:
    def picky(connection: Connection, records: Sequence[int]) -> None:
        for at in records:
            connection.execute("INSERT INTO effects VALUES (0, %s)", (at,))
            if at == 3:
                raise Refused("three is no good", way_out="none")

    with store.chunk([span(0, 6)], SOURCES) as chunk:
        poison = isolated(chunk.connection, range(6), picky)
    assert [(one.record, one.reason) for one in poison] == [(3, "three is no good")]
    assert query(dsn, "SELECT at FROM effects ORDER BY at") == [(0,), (1,), (2,), (4,), (5,)]

    def broken(connection: Connection, records: Sequence[int]) -> None:
        raise KeyError(len(records))

    with pytest.raises(KeyError), store.chunk([span(6, 9)], SOURCES) as chunk:
        isolated(chunk.connection, range(3), broken)
    assert recorded(dsn) == {0: 6}


@pytest.mark.parametrize(
    ("state", "kind"), [("40P01", TryAgain), ("53100", TryAgain), ("42P01", FixConfiguration)], ids=str
)
def test_an_error_that_is_not_about_a_record_makes_no_poison(store: PostgresProgress, state: str, kind: type) -> None:
    calls = []

    def fail(connection: Connection, records: Sequence[int]) -> None:
        calls.append(len(records))
        connection.execute(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$".encode())

    with pytest.raises(kind), store.chunk([span(0, 9)], SOURCES) as chunk:
        isolated(chunk.connection, range(9), fail)
    assert calls == [9]


# -- dead letters

HEADERS = (("plain", b"text"), ("bytes", b"\xff\0"), ("nul\0", None), ("plain", b""))


def letter(record: tuple[uuid.UUID, bytes | None], reason: str) -> DeadLetter:
    return DeadLetter(TOPIC, 0, 7, b"key\0", record[1], HEADERS, reason)


def test_poison_is_buried_whole_with_the_progress_that_passes_it(
    dsn: str, store: PostgresProgress, messages: Messages, letters: DeadLetters
) -> None:
    pairs: Pairs = [*some(7), (uuid.uuid4(), b"a\0b"), *some(2)]
    with pytest.raises(ZeroDivisionError), store.chunk([span(0, 10)], SOURCES) as chunk:
        letters.apply_or_bury(chunk.connection, pairs, messages.write, letter)
        raise ZeroDivisionError
    with psycopg.connect(dsn) as connection:
        assert letters.list(connection) == []
    with store.chunk([span(0, 10)], SOURCES) as chunk:
        buried = letters.apply_or_bury(chunk.connection, pairs, messages.write, letter)
    assert written(dsn) == [*pairs[:7], *pairs[8:]]
    with psycopg.connect(dsn) as connection:
        (found,) = letters.list(connection)
        assert [found.letter] == buried
        assert (found.letter.value, found.letter.headers, found.redriven_at) == (b"a\0b", HEADERS, None)
        assert letters.show(connection, found.id) == found


def test_another_record_at_the_same_place_is_another_letter(dsn: str, letters: DeadLetters) -> None:
    """A topic that was made again begins at offset 0 once more: what died there before is still to be had."""
    first = letter((uuid.uuid4(), b"before"), "because")
    with psycopg.connect(dsn) as connection:
        letters.add(connection, [first, replace(first, value=b"after"), replace(first, value=b"after", key=b"other")])
        letters.add(connection, [replace(first, reason="still")])
        found = [(one.letter.key, one.letter.value, one.letter.reason) for one in letters.list(connection)]
    assert found == [
        (first.key, b"before", "still"),
        (first.key, b"after", "because"),
        (b"other", b"after", "because"),
    ]


def test_a_dead_letter_is_redriven_dies_again_and_is_deleted(dsn: str, letters: DeadLetters) -> None:
    dead = letter((uuid.uuid4(), b"x"), "because\0")
    with psycopg.connect(dsn) as connection:
        letters.add(connection, [dead])
        (found,) = letters.list(connection)
        letters.mark_redriven(connection, found.id)
        assert letters.list(connection) == []
        assert len(letters.list(connection, redriven_too=True)) == 1
        letters.add(connection, [dead])
        assert [one.id for one in letters.list(connection)] == [found.id]
        for other in (letters.show, letters.mark_redriven, letters.delete):
            with pytest.raises(FixConfiguration):
                other(connection, found.id + 1000)
        with pytest.raises(FixConfiguration):
            DeadLetters("another").delete(connection, found.id)
        letters.delete(connection, found.id)
        assert letters.list(connection, redriven_too=True) == []
