"""kept.Outbox with its relay in the same process: a record is safe when `send` returns, and the relay dies with it.

The options: `path` of the journal; `at_least_once`, the relay's guarantee; `lingers`, to stay until it is killed.
"""

from __future__ import annotations

import time

from kept.errors import KeptError
from kept.guarantees import AtLeastOnce
from kept.outbox import Outbox
from kept.verify.trials.pacing import chunks
from kept.verify.trials.telling import Notes
from kept.verify.trials.things import Task

TOGETHER = 10
LOOKS_AGAIN = 0.05


def play(task: Task) -> None:
    notes = Notes(task.history)
    guarantee = AtLeastOnce() if task.options.get("at_least_once") else None
    with Outbox(task.options["path"], relay_to=task.bootstrap, guarantee=guarantee, **dict(task.settings)) as outbox:
        for chunk in chunks(task, TOGETHER):
            notes.begin(chunk)
            for value in chunk:
                try:
                    outbox.send(task.topic, str(value), key=value.key)
                except KeptError as error:
                    notes.not_known_persisted(value, error)
                else:
                    notes.persisted(value)
        while outbox.lag().records:
            time.sleep(LOOKS_AGAIN)
