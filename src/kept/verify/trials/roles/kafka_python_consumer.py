"""kafka-python's consumer as articles show it: a row, then the commit; the earliest record when there is none.

The options: `dsn` and `table`; `thinks`, seconds for each record; `dies_at`, the number of the row before which it
kills itself. One row at a time either way.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import psycopg
from psycopg.sql import SQL, Identifier

from kept.verify.trials.roles.kafka_python_producer import library
from kept.verify.trials.telling import Notes, say_at_work
from kept.verify.trials.things import Task

LOOKS_AGAIN_MS = 200
TOGETHER = 50


def play(task: Task) -> None:
    Notes(task.history)
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    insert = SQL("INSERT INTO {} (message) VALUES (%s)").format(Identifier(task.options["table"]))
    left: int | None = task.options.get("dies_at")
    at_work = False
    client = library().KafkaConsumer(
        task.topic,
        bootstrap_servers=task.bootstrap.split(","),
        client_id=task.settings.get("client.id", task.name),  # by which a scenario knows it; other settings are ours
        group_id=task.name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=6_000,
    )
    with psycopg.connect(task.options["dsn"], autocommit=True) as connection:
        while not asked_to_end.is_set():
            taken = client.poll(timeout_ms=LOOKS_AGAIN_MS, max_records=TOGETHER)
            if taken and not at_work:
                at_work = True
                say_at_work()
            for record in (record for records in taken.values() for record in records):
                if left is not None:
                    left -= 1
                    if left <= 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(task.options.get("thinks", 0.0))
                connection.execute(insert, (record.value.decode(),))
            if taken:
                client.commit()
    client.close()
