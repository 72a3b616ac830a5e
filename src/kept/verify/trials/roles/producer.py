"""kept.Producer under a guarantee: plain sends, or under exactly-once transactions that are done again when aborted.

The options: `thinks`, seconds inside each transaction; `retries`, to send again what is not known to be persisted;
`window`, how many may be under way before it begins more; `together`, records of a transaction.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial

from kept.errors import KeptError, TransactionAborted, TryAgain
from kept.guarantees import ExactlyOnce
from kept.guarantees.levels import parse
from kept.producer import Delivery, Producer
from kept.verify.history import Fate
from kept.verify.trials.pacing import chunks
from kept.verify.trials.telling import Notes, fate_of, say_sent
from kept.verify.trials.things import Task
from kept.verify.workload import Payload, Value

TOGETHER = 50
SETTLED_WITHIN = 120.0
KNOWN_WITHIN = 180.0
"""Longer than the delivery time-out of any trial: the client says by itself what became of a record."""


def play(task: Task) -> None:
    exactly = task.guarantee == ExactlyOnce.word
    guarantee = parse(task.guarantee, task.name if exactly else None)
    notes = Notes(task.history)
    with Producer(task.bootstrap, guarantee, **dict(task.settings)) as producer:
        (in_transactions if exactly else plainly)(producer, task, notes)


def plainly(producer: Producer, task: Task, notes: Notes) -> None:
    """Fates are written down as they come in, in the order in which the records were sent."""
    under_way: deque[tuple[Value, Delivery]] = deque()
    most = task.options.get("window", task.records)
    for chunk in chunks(task, TOGETHER):
        notes.begin(chunk)
        for value in chunk:
            under_way.append((value, producer.send(task.topic, str(value), key=value.key)))
        while under_way and (under_way[0][1].done() or len(under_way) > most):
            _settle(producer, task, notes, under_way)
    while under_way:
        _settle(producer, task, notes, under_way)


def _settle(producer: Producer, task: Task, notes: Notes, under_way: deque[tuple[Value, Delivery]]) -> None:
    """Write down the fate of the oldest; a program that retries sends it again behind all others."""
    value, delivery = under_way.popleft()
    persisted = notes.fate(value, partial(delivery.result, KNOWN_WITHIN))
    if not persisted and task.options.get("retries"):
        notes.begin([value])
        under_way.append((value, producer.send(task.topic, str(value), key=value.key)))


def in_transactions(producer: Producer, task: Task, notes: Notes) -> None:
    """A chunk is a transaction; one that was certainly aborted is done again, one in doubt is not."""
    for number, chunk in enumerate(chunks(task, task.options.get("together", TOGETHER))):
        deadline = time.monotonic() + SETTLED_WITHIN
        attempt = 0
        while True:
            name = f"{task.sender}-{task.life}.{number}.{attempt}"
            notes.begin(chunk, name)
            try:
                with producer.transaction():
                    _send(producer, task, chunk, name)
            except KeptError as error:
                notes.ended(name, fate_of(error))
                notes.tell(error)
                if not isinstance(error, (TransactionAborted, TryAgain)):
                    raise
                if time.monotonic() > deadline:
                    raise
                attempt += 1
            else:
                notes.ended(name, Fate.PERSISTED)
                break


def _send(producer: Producer, task: Task, chunk: list[Value], transaction: str) -> None:
    """With the option `thinks`, in two halves: each has arrived before the program thinks about it."""
    half = len(chunk) // 2
    for part in (chunk[:half], chunk[half:]):
        for value in part:
            producer.send(task.topic, str(Payload(str(value), transaction)), key=value.key)
        if thinks := task.options.get("thinks"):
            producer.flush()
            say_sent(part)
            time.sleep(thinks / 2)
