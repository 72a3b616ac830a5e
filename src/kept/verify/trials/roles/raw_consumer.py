"""confluent-kafka's consumer as tutorials show it: rows, then a plain commit; the earliest when there is none.

The options: `dsn` and `table`; `thinks`, seconds for each record.
"""

from __future__ import annotations

import signal
import threading
import time

import psycopg
from confluent_kafka import Consumer as Client
from psycopg.sql import SQL, Identifier

from kept.verify.trials.telling import Notes
from kept.verify.trials.things import Task

TOGETHER = 50
LOOKS_AGAIN = 0.2


def play(task: Task) -> None:
    Notes(task.history)
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    insert = SQL("INSERT INTO {} (message) VALUES (%s)").format(Identifier(task.options["table"]))
    client = Client(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": task.name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **task.settings,
        }
    )
    client.subscribe([task.topic])
    with psycopg.connect(task.options["dsn"], autocommit=True) as connection:
        while not asked_to_end.is_set():
            records = [one for one in client.consume(TOGETHER, LOOKS_AGAIN) if one.error() is None]
            for record in records:
                time.sleep(task.options.get("thinks", 0.0))
                connection.execute(insert, ((record.value() or b"").decode(),))
            if records:
                client.commit(asynchronous=False)
    client.close()
