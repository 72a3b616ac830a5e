"""A program with effect and progress in two transactions: it tries a batch again when no reply to COMMIT comes."""

from __future__ import annotations

import time

import psycopg
from psycopg.sql import SQL, Identifier

from kept.consumer import Consumer, Start
from kept.guarantees import AtLeastOnce
from kept.verify.trials.telling import Notes
from kept.verify.trials.things import Task

TOGETHER = 50


def play(task: Task) -> None:
    Notes(task.history)
    dsn, table = task.options["dsn"], task.options["table"]
    insert = SQL("INSERT INTO {} (message) VALUES (%s)").format(Identifier(table))
    consumer = Consumer(
        task.bootstrap,
        task.topic,
        guarantee=AtLeastOnce(),
        group=task.name,
        start=Start.BEGINNING,
        **dict(task.settings),
    )
    with consumer, consumer.stopped_by_signals():
        for batch in consumer.batches(TOGETHER):
            rows = [((record.value or b"").decode(),) for record in batch]
            while True:
                try:
                    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
                        cursor.executemany(insert, rows)
                    break
                except psycopg.OperationalError:
                    time.sleep(0.1)
