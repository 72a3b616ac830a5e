"""What the tests of `into_postgres` share: a pipeline in a thread or in a process that dies, and an auditor."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from multiprocessing.context import ForkServerProcess
from types import TracebackType
from typing import Any

import confluent_kafka
import psycopg

from kept.consumer import Consumer, Record
from kept.guarantees import ExactlyOnce
from kept.stores import PostgresProgress, Session, rows

QUICK: dict[str, Any] = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
DONE = "CREATE TABLE IF NOT EXISTS done (id bigint GENERATED ALWAYS AS IDENTITY, partition int, at bigint, value text)"
STAMP = "idempotency_key"


def a_name() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


def each(connection: psycopg.Connection[Any], record: Record) -> None:
    """The effect of most tests: a row, without a key that would hide a second one."""
    value = (record.value or b"").decode()
    statement = "INSERT INTO done (partition, at, value) VALUES (%s, %s, %s)"
    connection.execute(statement, (record.partition, record.offset, value))


def together(connection: psycopg.Connection[Any], records: Sequence[Record]) -> None:
    with connection.cursor().copy("COPY done (partition, at, value) FROM STDIN") as copy:
        for record in records:
            copy.write_row((record.partition, record.offset, (record.value or b"").decode()))


class Pipeline:
    """A member in a thread; `error` is what it ended with."""

    def __init__(self, bootstrap: str, topic: str, name: str, dsn: str, **options: Any) -> None:
        overrides = options.pop("overrides", {})
        self.consumer = Consumer(bootstrap, topic, guarantee=ExactlyOnce(name), **{**QUICK, **overrides})
        self.error: BaseException | None = None
        self._dsn, self._options = dsn, options
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with self.consumer:
                self.consumer.into_postgres(self._dsn, **self._options)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def start(self) -> Pipeline:
        self._thread.start()
        return self

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def fails(self) -> bool:
        """False while it is well; what it ended with is raised."""
        if self.error is not None:
            raise self.error
        return False

    def stop(self) -> None:
        self.consumer.stop()
        self._thread.join(60)
        assert self.ended(), "the pipeline does not stop"

    def __enter__(self) -> Pipeline:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        if kind is None and self.error is not None:
            raise self.error


def send(
    bootstrap: str,
    topic: str,
    values: Sequence[bytes | None],
    *,
    stamps: Sequence[uuid.UUID] | None = None,
    partition: int | None = None,
) -> None:
    """Spread over three partitions unless told; a stamp goes into the header."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    failed: list[object] = []
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            partition=number % 3 if partition is None else partition,
            headers=[] if stamps is None else [(STAMP, str(stamps[number]))],
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed


def log_of(bootstrap: str, topic: str) -> list[tuple[int, int, str]]:
    """The whole topic, by a reader that shares nothing with what is tested: partition, offset, value."""
    reader = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": a_name(), "log_level": 0})
    found: list[tuple[int, int, str]] = []
    try:
        numbers = sorted(reader.list_topics(topic, 30).topics[topic].partitions)
        ends = {
            number: reader.get_watermark_offsets(confluent_kafka.TopicPartition(topic, number)) for number in numbers
        }
        reader.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in numbers])
        left = sum(end for _, end in ends.values())
        while left > 0:
            message = reader.poll(30)
            assert message is not None
            assert message.error() is None
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            found.append((partition, offset, (message.value() or b"").decode()))
            left -= 1
    finally:
        reader.close()
    return found


def done(dsn: str) -> list[tuple[int, int, str]]:
    """The effects, in the order in which they were applied."""
    with psycopg.connect(dsn) as connection:
        return [
            (row[0], row[1], row[2]) for row in connection.execute("SELECT partition, at, value FROM done ORDER BY id")
        ]


def count(dsn: str, table: str = "done") -> int:
    """How many rows; none when there is no such table yet."""
    with psycopg.connect(dsn) as connection:
        try:
            row = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        except psycopg.errors.UndefinedTable:
            return 0
    assert row is not None
    return int(row[0])


def audit(bootstrap: str, topic: str, dsn: str) -> None:
    """Every record of the topic once, and the records of each partition in their order."""
    wanted, found = Counter(log_of(bootstrap, topic)), Counter(done(dsn))
    lost, too_many = wanted - found, found - wanted
    assert (sum(lost.values()), sum(too_many.values())) == (0, 0), f"lost {lost}, duplicated {too_many}"
    at: dict[int, int] = {}
    for partition, offset, _ in done(dsn):
        assert offset > at.get(partition, -1), f"{partition}@{offset} was applied after {at[partition]}"
        at[partition] = offset


# -- processes that die at a named point

KILLED = ("in the effect", "before COMMIT", "after COMMIT", "inside take_over")


@contextmanager
def process(*arguments: object) -> Iterator[ForkServerProcess]:
    """A pipeline in a process of its own; forked from one that has imported everything, for speed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    child = context.Process(target=_child, args=arguments)
    child.start()
    try:
        yield child
    finally:
        if child.is_alive() and child.pid is not None:
            os.kill(child.pid, signal.SIGKILL)
        child.join(30)


def _child(bootstrap: str, topic: str, name: str, dsn: str, how: str, nth: int, pipe: Pipe | None = None) -> None:
    """`how`: one of KILLED, at its n-th time; or "sleeps": stops itself inside the n-th effect; or "runs"."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    effect: Callable[..., object] = each
    if how == "in the effect":
        effect = _before_nth(nth, _die, each)
    elif how == "before COMMIT":
        PostgresProgress._record_and_commit = _before_nth(nth, _die, PostgresProgress._record_and_commit)  # type: ignore[method-assign]
    elif how == "after COMMIT":
        PostgresProgress._record_and_commit = _after_nth(nth, _die, PostgresProgress._record_and_commit)  # type: ignore[method-assign]
    elif how == "inside take_over":
        _die_after_claim()
    elif how == "sleeps":
        assert pipe is not None
        effect = _before_nth(nth, lambda: _sleep(pipe), each)
        PostgresProgress.chunk = _telling(pipe, PostgresProgress.chunk)  # type: ignore[method-assign]
    elif how == "outside, before COMMIT":  # the control: effects in a transaction of their own
        other = psycopg.connect(dsn, autocommit=True)
        effect = lambda _, record: each(other, record)  # noqa: E731
        PostgresProgress._record_and_commit = _before_nth(nth, _die, PostgresProgress._record_and_commit)  # type: ignore[method-assign]
    overrides = QUICK if how == "sleeps" else {**QUICK, "group.instance.id": "the only one"}
    with Consumer(bootstrap, topic, guarantee=ExactlyOnce(name), **overrides) as consumer:
        consumer.into_postgres(dsn, each=effect)
    if pipe is not None:
        pipe.send("ended")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _sleep(pipe: Pipe) -> None:
    pipe.send("sleeping")
    os.kill(os.getpid(), signal.SIGSTOP)


def _before_nth(nth: int, act: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    calls = iter(range(1, 1_000_000_000))

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if next(calls) == nth:
            act()
        return call(*arguments, **named)

    return wrapped


def _after_nth(nth: int, act: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    calls = iter(range(1, 1_000_000_000))

    def wrapped(*arguments: Any, **named: Any) -> Any:
        answer = call(*arguments, **named)
        if next(calls) == nth:
            act()
        return answer

    return wrapped


def _die_after_claim() -> None:
    execute = Session.execute

    def wrapped(session: Any, statement: Any, *arguments: Any, **named: Any) -> Any:
        answer = execute(session, statement, *arguments, **named)
        if statement == rows.CLAIM:
            _die()
        return answer

    Session.execute = wrapped  # type: ignore[method-assign, assignment]


def _telling(pipe: Pipe, chunk: Callable[..., Any]) -> Any:
    """Tell the parent what each chunk ended with."""

    @contextmanager
    def wrapped(*arguments: Any, **named: Any) -> Iterator[Any]:
        try:
            with chunk(*arguments, **named) as opened:
                yield opened
        except BaseException as error:
            pipe.send(type(error).__name__)
            raise

    return wrapped
