"""confluent-kafka's consumer that commits first, and lets go of what it has in hand when its partitions are gone.

The options: `dsn` and `table`; `thinks`, seconds for each record. Between two it hears the group, to stay in it.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import psycopg
from confluent_kafka import Consumer as Client
from psycopg.sql import SQL, Identifier

from kept.verify.trials.telling import Notes, say_at_work
from kept.verify.trials.things import Task

TOGETHER = 50
LOOKS_AGAIN = 0.2


def play(task: Task) -> None:
    """A member that has lost its partitions joins again as a new one."""
    Notes(task.history)
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    with psycopg.connect(task.options["dsn"], autocommit=True) as connection:
        while not asked_to_end.is_set():
            _as_member(task, connection, asked_to_end)


def _as_member(task: Task, connection: psycopg.Connection[Any], asked_to_end: threading.Event) -> None:
    gone = threading.Event()
    insert = SQL("INSERT INTO {} (message) VALUES (%s)").format(Identifier(task.options["table"]))
    client = Client(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": task.name,
            "session.timeout.ms": 6_000,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **task.settings,
        }
    )
    client.subscribe([task.topic], on_lost=lambda *_: gone.set())
    while not asked_to_end.is_set() and not gone.is_set():
        records = [one for one in client.consume(TOGETHER, LOOKS_AGAIN) if one.error() is None]
        if records:
            client.commit(asynchronous=False)
            say_at_work()
            client.pause(client.assignment())
        for record in records:
            client.poll(0)
            if gone.is_set():
                break
            time.sleep(task.options.get("thinks", 0.0))
            connection.execute(insert, ((record.value() or b"").decode(),))
        client.resume(client.assignment())
    client.close()
