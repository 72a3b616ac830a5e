"""A program without an outbox: an idempotent producer, and a file that says how far its source was sent.

After a restart it goes on from the file, as at-least-once programs do: what was sent since is sent again.
The option `noted_every`: chunks between two notes in the file.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from confluent_kafka import Producer as Client

from kept.verify.trials.pacing import chunks
from kept.verify.trials.roles.raw_producer import FLUSHED_WITHIN, hear
from kept.verify.trials.telling import Notes
from kept.verify.trials.things import Task

TOGETHER = 50
NOTED_EVERY = 16
"""Chunks: who is killed has, almost always, sent something since."""


def play(task: Task) -> None:
    notes = Notes(task.history)
    position = Path(task.options["position"])
    first = int(position.read_text()) if position.exists() else 0
    client = Client(
        {
            "bootstrap.servers": task.bootstrap,
            "log_level": 0,
            "enable.idempotence": True,
            "acks": "all",
            **task.settings,
        }
    )
    every = task.options.get("noted_every", NOTED_EVERY)
    for number, chunk in enumerate(chunks(task, TOGETHER), start=1):
        sent = [value for value in chunk if value.number >= first]
        notes.begin(sent)
        for value in sent:
            client.produce(task.topic, str(value), value.key, on_delivery=partial(hear, notes, value))
        if number % every == 0 and client.flush(FLUSHED_WITHIN) == 0 and sent:
            part = position.with_suffix(".part")
            part.write_text(str(chunk[-1].number + 1))
            part.replace(position)
    client.flush(FLUSHED_WITHIN)
