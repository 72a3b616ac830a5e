"""confluent-kafka as it comes, with the settings that a control asks for."""

from __future__ import annotations

from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as Client

from kept.errors import OutcomeUnknown
from kept.producer import Receipt
from kept.verify.trials.pacing import chunks
from kept.verify.trials.telling import Notes
from kept.verify.trials.things import Task
from kept.verify.workload import Value

TOGETHER = 50
FLUSHED_WITHIN = 120.0


def play(task: Task) -> None:
    """With the option `believes`, a record counts as persisted once the client has taken it: many programs do.

    With `retries`, one that is not known to be persisted is sent again. `together`: how many are handed over at once.
    """
    notes = Notes(task.history)
    client = Client({"bootstrap.servers": task.bootstrap, "log_level": 0, **task.settings})
    for chunk in chunks(task, task.options.get("together", TOGETHER)):
        notes.begin(chunk)
        for value in chunk:
            _send(client, task, notes, value)
        client.poll(0)
    client.flush(FLUSHED_WITHIN)


def _send(client: Client, task: Task, notes: Notes, value: Value) -> None:
    def hear_and_retry(error: KafkaError | None, message: Message) -> None:
        hear(notes, value, error, message)
        if error is not None and task.options.get("retries"):
            notes.begin([value])
            _send(client, task, notes, value)

    if task.options.get("believes"):
        client.produce(task.topic, str(value), value.key)
        notes.persisted(value)
    else:
        client.produce(task.topic, str(value), value.key, on_delivery=hear_and_retry)


def hear(notes: Notes, value: Value, error: KafkaError | None, message: Message) -> None:
    if error is not None:
        notes.not_known_persisted(value, OutcomeUnknown(str(error), way_out="a control has none"))
        return
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        notes.persisted(value)
    else:
        notes.persisted(value, Receipt(topic, partition, offset, message.timestamp()[1]))
