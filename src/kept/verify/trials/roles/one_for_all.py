"""confluent-kafka's transactions as its documentation shows them: one producer for all of them, retried on an abort.

One whose end is not known is not done again: that would repeat it, whatever the network has done.
With the option `swallows` an error is taken for a nuisance, and the transaction for done; `together`: its records.
"""

from __future__ import annotations

import time

from confluent_kafka import KafkaException
from confluent_kafka import Producer as Client

from kept.errors import OutcomeUnknown, TransactionAborted
from kept.verify.history import Fate
from kept.verify.trials.pacing import chunks
from kept.verify.trials.telling import Notes, say_sent
from kept.verify.trials.things import Task
from kept.verify.workload import Payload, Value

TOGETHER = 50
WITHIN = 60.0


def play(task: Task) -> None:
    notes = Notes(task.history)
    client = _client(task)
    for number, chunk in enumerate(chunks(task, task.options.get("together", TOGETHER))):
        for attempt in range(5):
            name = f"{task.sender}-{task.life}.{number}.{attempt}"
            notes.begin(chunk, name)
            try:
                _transaction(client, task, chunk, name)
            except KafkaException as failure:
                error = failure.args[0]
                certain = error.txn_requires_abort()
                told = (TransactionAborted if certain else OutcomeUnknown)(str(error), way_out="a control has none")
                notes.tell(told)
                client = _recovered(client, task)
                if task.options.get("swallows"):
                    notes.ended(name, Fate.PERSISTED)
                    break
                notes.ended(name, Fate.NOT_PERSISTED if certain else Fate.UNKNOWN)
                if not certain:
                    break
            else:
                notes.ended(name, Fate.PERSISTED)
                break


def _transaction(client: Client, task: Task, chunk: list[Value], name: str) -> None:
    """In two halves, as a program does that computes in between; each has arrived before it thinks about it."""
    client.begin_transaction()
    half = len(chunk) // 2
    for part in (chunk[:half], chunk[half:]):
        for value in part:
            client.produce(task.topic, str(Payload(str(value), name)), value.key)
        client.flush(WITHIN)
        say_sent(part)
        time.sleep(task.options.get("thinks", 0.0) / 2)
    client.commit_transaction(WITHIN)


def _client(task: Task) -> Client:
    client = Client(
        {"bootstrap.servers": task.bootstrap, "log_level": 0, "transactional.id": task.name, **task.settings}
    )
    client.init_transactions(WITHIN)
    return client


def _recovered(client: Client, task: Task) -> Client:
    try:
        client.abort_transaction(WITHIN)
    except KafkaException:
        return _client(task)
    return client
