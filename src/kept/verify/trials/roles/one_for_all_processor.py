"""Consume, transform, produce as confluent-kafka's documentation shows it: one producer for all transactions.

The options: `sink`, a topic; `thinks`, seconds for each batch.
"""

from __future__ import annotations

import signal
import threading
import time

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import Producer as Client

from kept.verify.trials.telling import Notes, say_at_work
from kept.verify.trials.things import Task

TOGETHER = 50
LOOKS_AGAIN = 0.2
WITHIN = 60.0
MEMBER = {"session.timeout.ms": 6_000, "auto.offset.reset": "earliest", "enable.auto.commit": False}


def play(task: Task) -> None:
    Notes(task.history)
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    where = {"bootstrap.servers": task.bootstrap, "log_level": 0}
    consumer = Consumer({**where, **MEMBER, "group.id": task.name, **task.settings})
    producer = Client({**where, "transactional.id": task.name})
    producer.init_transactions(WITHIN)
    consumer.subscribe([task.topic])
    say_at_work()
    while not asked_to_end.is_set():
        records = [one for one in consumer.consume(TOGETHER, LOOKS_AGAIN) if one.error() is None]
        if records:
            _transaction(producer, consumer, task, records)
    consumer.close()


def _transaction(producer: Client, consumer: Consumer, task: Task, records: list[Message]) -> None:
    """Aborted and done again for as long as that is what the client asks for."""
    behind = {(one.topic(), one.partition()): one.offset() for one in records}
    positions = [TopicPartition(str(topic), part or 0, 1 + (at or 0)) for (topic, part), at in behind.items()]
    while True:
        producer.begin_transaction()
        try:
            for one in records:
                producer.produce(task.options["sink"], one.value(), one.key())
            producer.flush(WITHIN)
            time.sleep(task.options.get("thinks", 0.0))
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WITHIN)
            producer.commit_transaction(WITHIN)
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(WITHIN)
        else:
            return
