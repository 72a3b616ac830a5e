"""The consumer of the scenes, in a process of its own: processes records under a guarantee until it is killed.

Whoever started it reads what it says: `received M1 M2`, `at M5` (then it waits for its death), `finished`.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from kept.consumer import Consumer, Record, Start
from kept.consumer.policies import AfterBatch
from kept.guarantees import ExactlyOnce
from kept.guarantees.levels import parse
from kept.verify.tied import end_with_parent

TOGETHER = 10
MEMBER = {"group.instance.id": "consumer", "session.timeout.ms": 6_000}
"""A member with a name takes over from its dead self at once, instead of waiting until its session is over."""


@dataclass(frozen=True)
class Task:
    """What to read, under which guarantee, where the effects go, where to die, and after which record to stop."""

    bootstrap: str
    topic: str
    name: str
    guarantee: str
    dsn: str
    table: str
    dies_at: str | None
    last: str

    @property
    def group(self) -> str:
        return ExactlyOnce(self.name).group

    def text(self) -> str:
        return json.dumps(asdict(self))


class Worker:
    """Processes records: a row in the ledger each."""

    def __init__(self, task: Task) -> None:
        self._task = task
        exactly = task.guarantee == ExactlyOnce.word
        self._consumer = Consumer(
            task.bootstrap,
            task.topic,
            guarantee=parse(task.guarantee, task.name if exactly else None),
            group=None if exactly else task.group,
            commit=None if exactly else AfterBatch(TOGETHER),
            start=Start.BEGINNING,
            **MEMBER,
        )

    def run(self) -> None:
        with self._consumer as consumer:
            if isinstance(consumer.guarantee, ExactlyOnce):
                consumer.into_postgres(self._task.dsn, together=self._process)
            else:
                with psycopg.connect(self._task.dsn, autocommit=True) as connection:
                    for batch in consumer.batches(TOGETHER):
                        self._process(connection, batch)
        say("finished")

    def _process(self, connection: psycopg.Connection[Any], records: Sequence[Record]) -> None:
        """The effects; on which connection, and when progress is recorded, is the guarantee's."""
        insert = SQL("INSERT INTO {} (message) VALUES (%s)").format(Identifier(self._task.table))
        names = [(record.value or b"").decode() for record in records]
        say("received", *names)
        for name in names:
            if name == self._task.dies_at:
                say("at", name)
                threading.Event().wait()
            connection.execute(insert, (name,))
            if name == self._task.last:
                self._consumer.stop()


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    end_with_parent()
    Worker(Task(**json.loads(sys.argv[1]))).run()
