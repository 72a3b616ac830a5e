"""Sources and sinks of processors: a topic that holds the workload, a table of effects, and when all is done."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from kept.consumer import Reader, Start
from kept.guarantees import AtLeastOnce
from kept.producer import Producer, Receipt
from kept.stores.sql_errors import told_as
from kept.verify.trials.arena import SOUND, Arena
from kept.verify.trials.auditing import audit_table, audit_topic
from kept.verify.trials.things import Thing
from kept.verify.workload import Value, payload_of

TABLE = "effects"
ANSWERS_WITHIN = 60.0
LOOKS_AGAIN = 0.1
COLUMNS = "(id bigint GENERATED ALWAYS AS IDENTITY, message text, at timestamptz DEFAULT clock_timestamp())"


@dataclass(frozen=True)
class Source:
    """A topic full of records, the last of each partition a mark of its end: who has done all marks has done all."""

    topic: str
    ends: tuple[Value, ...]

    @property
    def marks(self) -> frozenset[str]:
        return frozenset(map(str, self.ends))


def empty_source(arena: Arena, partitions: int = 3) -> Source:
    """A new topic; where its ends will be is known."""
    return Source(arena.topic(partitions), ends_of(partitions))


def ends_of(partitions: int) -> tuple[Value, ...]:
    return tuple(Value("end", f"p{partition}", 0) for partition in range(partitions))


def feed(arena: Arena, partitions: int = 3, *, ends: bool = True) -> Source:
    """Put the workload into a new topic, for sure and in order; its ends are marked now, or by `mark_ends`."""
    source = empty_source(arena, partitions)
    arena.fed(fill(arena, source.topic, arena.values()))
    if ends:
        mark_ends(arena, source)
    return source


def fill(arena: Arena, topic: str, values: list[Value]) -> dict[Value, Receipt]:
    """Where each is now."""
    with Producer(arena.cluster.bootstrap, AtLeastOnce()) as producer:
        sent = {value: producer.send(topic, str(value), key=value.key) for value in values}
        producer.flush()
        return {value: delivery.result() for value, delivery in sent.items()}


def put_marks(arena: Arena, source: Source) -> dict[Value, Receipt]:
    """Where each mark is now: behind all that is in its partition."""
    with Producer(arena.cluster.bootstrap, AtLeastOnce()) as producer:
        sent = {
            mark: producer.send(source.topic, str(mark), key=mark.key, partition=partition)
            for partition, mark in enumerate(source.ends)
        }
        producer.flush()
        return {mark: delivery.result() for mark, delivery in sent.items()}


def mark_ends(arena: Arena, source: Source) -> None:
    """A mark that a fault may lose marks no end: where one may, it is put there when the last fault has struck."""
    arena.fed(put_marks(arena, source))


class TableSink:
    """A table of effects, in a database of the trial's own. Who looks at it outlives a server that is killed."""

    def __init__(self, arena: Arena, source: Source) -> None:
        self._arena = arena
        self.dsn = arena.database()
        self._marks = list(source.marks)
        with told_as("the table of effects cannot be made"):
            self._connection = psycopg.connect(self.dsn, autocommit=True)
            arena.use(closing(self))
            self._connection.execute(SQL("CREATE TABLE {} {}").format(Identifier(TABLE), SQL(COLUMNS)))

    def options(self, dsn: str | None = None) -> dict[str, Any]:
        """What a processor is told of it; by another address where something stands in between."""
        return {"dsn": dsn or self.dsn, "table": TABLE}

    def close(self) -> None:
        self._connection.close()

    def audit(self) -> None:
        audit_table(self._arena, self.dsn, TABLE)

    def complete(self) -> bool:
        return self._count(SQL("SELECT count(DISTINCT message) FROM {} WHERE message = ANY(%s)")) == len(self._marks)

    def how_much(self) -> int:
        return self._count(SQL("SELECT count(*) FROM {} WHERE message <> ALL(%s)"))

    def _count(self, question: SQL) -> int:
        deadline = time.monotonic() + ANSWERS_WITHIN
        with told_as("the effects cannot be read"):
            while True:
                try:
                    if self._connection.closed:
                        self._connection = psycopg.connect(self.dsn, autocommit=True)
                    row = self._connection.execute(question.format(Identifier(TABLE)), (self._marks,)).fetchone()
                except psycopg.OperationalError:
                    self._connection.close()
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(LOOKS_AGAIN)
                else:
                    return 0 if row is None else int(row[0])


class TopicSink:
    """A topic of effects; a reader of its own sees each record once."""

    def __init__(self, arena: Arena, source: Source, **overrides: object) -> None:
        """`overrides`: settings of the topic."""
        self._arena = arena
        self.topic = arena.topic(len(source.ends), SOUND, **overrides)
        self._marks = source.marks
        self._reader = arena.use(Reader(arena.cluster.bootstrap, self.topic, start=Start.BEGINNING))
        self._seen: set[str] = set()

    def options(self) -> dict[str, Any]:
        return {"sink": self.topic}

    def audit(self) -> None:
        audit_topic(self._arena, self.topic)

    def complete(self) -> bool:
        while (record := self._reader.poll(0.05)) is not None:
            self._seen.add(payload_of(record.value).value)
        return self._marks <= self._seen

    def how_much(self) -> int:
        return len(self._seen)


def sink_of(arena: Arena, source: Source, thing: Thing) -> TableSink | TopicSink:
    """Where a processor's effects go: into Kafka by its option `into_kafka`, or else into a table."""
    return TopicSink(arena, source) if thing.options.get("into_kafka") else TableSink(arena, source)
