"""kept.Consumer under a guarantee: each record of the source becomes a row, or a record of the sink.

The options: `sink` (a topic) or `dsn` and `table`; `dies_at`, the number of the effect before which it kills itself;
`seconds` of a transaction and `producer`, settings of the sender into Kafka; `thinks`, seconds for each record;
`one_by_one`, rows that are not sent together; `in_transactions`, rows of a batch that a program without exactly-once
commits together; `poison`, values that it cannot digest, or `too_large`, values of which
it makes too much for the sink, and `dead_letters`, the topic where they are buried; `swallows`, to pass over what it
cannot digest, or the table does not take, without a word; `dated`, to begin at a time, which is long ago, instead of at
the beginning: at-least-once writes down its birth then.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import datetime, timezone
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from kept.consumer import Consumer, Output, Record, Retry, Start
from kept.consumer.policies import AfterBatch
from kept.errors import KeptError
from kept.guarantees import AtMostOnce, ExactlyOnce
from kept.guarantees.levels import parse
from kept.producer import Producer
from kept.producer.fates import RefusedWithItsBatch
from kept.verify.trials.telling import Notes, say_at_work
from kept.verify.trials.things import Task

TOGETHER = 50
EVER = datetime.fromtimestamp(0, timezone.utc)
MEMBER = {"session.timeout.ms": 6_000}
ONCE = Retry(times=1, first=0.05)
KNOWN_WITHIN = 180.0
LARGE = b" " + bytes(200_000)


class Processor:
    """One life of a processor."""

    def __init__(self, task: Task, notes: Notes) -> None:
        self._task = task
        self._notes = notes
        self._options = task.options
        self._left: int | None = task.options.get("dies_at")
        self._at_work = False
        exactly = task.guarantee == ExactlyOnce.word
        self._consumer = Consumer(
            task.bootstrap,
            task.topic,
            guarantee=parse(task.guarantee, task.name if exactly else None),
            group=None if exactly else task.name,
            commit=None if exactly else AfterBatch(TOGETHER),
            start=EVER if task.options.get("dated") else Start.BEGINNING,
            **{**MEMBER, **task.settings},
        )

    def run(self) -> None:
        """Until it is asked to end."""
        with self._consumer as consumer:
            if not isinstance(consumer.guarantee, ExactlyOnce):
                with consumer.stopped_by_signals():
                    (self._carrying if "sink" in self._options else self._storing)(consumer)
            elif "sink" in self._options:
                self._into_kafka(consumer)
            else:
                consumer.into_postgres(self._options["dsn"], together=self._rows)

    def _storing(self, consumer: Consumer) -> None:
        with psycopg.connect(self._options["dsn"], autocommit=True) as connection:

            def store(records: Sequence[Record]) -> None:
                with connection.transaction() if self._options.get("in_transactions") else nullcontext():
                    self._rows(connection, records)

            self._loop(consumer, store)

    def _carrying(self, consumer: Consumer) -> None:
        with Producer(self._task.bootstrap, consumer.guarantee, **self._options.get("producer", {})) as producer:
            self._loop(consumer, lambda records: self._sent(producer, records))

    def _loop(self, consumer: Consumer, effect: Callable[[Sequence[Record]], None]) -> None:
        """The body of a plain loop; one by one where what cannot be done is buried."""
        if "dead_letters" not in self._options:
            for batch in consumer.batches(TOGETHER):
                effect(batch)
            return
        again = None if isinstance(consumer.guarantee, AtMostOnce) else ONCE
        consumer.run(lambda record: effect([record]), retry=again, dead_letters=self._options["dead_letters"])

    def _sent(self, producer: Producer, records: Sequence[Record]) -> None:
        """Sent, and waited for. An error of delivery ends the loop: that it is the record's own, its program has to
        say, and it may where the record was the only one of its batch.
        """
        under_way = [
            producer.send(made.topic, made.value, key=made.key)
            for record in records
            if (made := self._carried(record)) is not None
        ]
        for delivery in under_way:
            try:
                delivery.result(KNOWN_WITHIN)
            except RefusedWithItsBatch as refused:
                if len(under_way) > 1:
                    raise
                raise ValueError(refused.what) from refused

    def _into_kafka(self, consumer: Consumer) -> None:
        consumer.into_kafka(
            self._carried,
            seconds=self._options.get("seconds", 0.3),
            retry=ONCE,
            dead_letters=self._options.get("dead_letters"),
            **self._options.get("producer", {}),
        )

    def _carried(self, record: Record) -> Output | None:
        self._passing()
        value, too_large = (record.value or b"").decode(), self._options.get("too_large", ())
        if self._options.get("swallows") and value in (*self._options.get("poison", ()), *too_large):
            self._pass_over(value)
            return None
        if value in self._options.get("poison", ()):
            raise ValueError("it cannot be digested")
        time.sleep(self._options.get("thinks", 0.0))
        return Output(self._options["sink"], (record.value or b"") + LARGE * (value in too_large), record.key)

    def _pass_over(self, value: str) -> None:
        self._notes.struck(f"{value} could not be digested, and was passed over")

    def _rows(self, connection: psycopg.Connection[Any], records: Sequence[Record]) -> None:
        """A row for each record; on which connection, and when progress is recorded, is the guarantee's."""
        insert = SQL("INSERT INTO {} (message) VALUES (%s)").format(Identifier(self._options["table"]))
        rows = [((record.value or b"").decode(),) for record in records]
        thinks = self._options.get("thinks", 0.0)
        if self._left is None and not self._options.get("one_by_one"):
            time.sleep(thinks * len(rows))
            with connection.cursor() as cursor:
                cursor.executemany(insert, rows)
            return
        for row in rows:
            self._passing()
            time.sleep(thinks)
            try:
                connection.execute(insert, row)
            except psycopg.IntegrityError:
                if not self._options.get("swallows"):
                    raise
                self._pass_over(*row)

    def _passing(self) -> None:
        """The named crash point: before an effect, in the middle of a batch, by SIGKILL."""
        if not self._at_work:
            self._at_work = True
            say_at_work()
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


def play(task: Task) -> None:
    notes = Notes(task.history)
    try:
        Processor(task, notes).run()
    except KeptError as error:
        notes.stop(error)
        raise
