"""kafka-python's producer as articles show it: acks='all', and the rest as it comes."""

from __future__ import annotations

from typing import Any

from kept.errors import FixMachine, OutcomeUnknown
from kept.producer import Receipt
from kept.verify.trials.pacing import chunks
from kept.verify.trials.telling import Notes
from kept.verify.trials.things import Task
from kept.verify.workload import Value

TOGETHER = 50
FLUSHED_WITHIN = 120.0


def library() -> Any:
    """kafka-python, which nothing else here needs."""
    try:
        import kafka  # type: ignore[import-untyped]  # noqa: PLC0415 - a peer may be missing
    except ModuleNotFoundError as error:
        raise FixMachine("kafka-python cannot be imported", way_out="pip install 'kept[bench]'") from error
    return kafka


def play(task: Task) -> None:
    notes = Notes(task.history)
    name = task.settings.get("client.id", task.name)  # by which a fault knows its victim; its other settings are ours
    client = library().KafkaProducer(bootstrap_servers=task.bootstrap.split(","), client_id=name, acks="all")
    for chunk in chunks(task, TOGETHER):
        notes.begin(chunk)
        for value in chunk:
            _send(client, task.topic, notes, value)
    client.flush(FLUSHED_WITHIN)


def _send(client: Any, topic: str, notes: Notes, value: Value) -> None:
    def failed(error: BaseException) -> None:
        notes.not_known_persisted(value, OutcomeUnknown(str(error), way_out="a peer has none"))

    def told(found: Any) -> None:
        notes.persisted(value, Receipt(found.topic, found.partition, found.offset, found.timestamp))

    try:
        client.send(topic, str(value).encode(), value.key.encode()).add_callback(told).add_errback(failed)
    except Exception as error:  # noqa: BLE001 - whatever the peer raises is what its user would see
        failed(error)
