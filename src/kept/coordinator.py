"""Questions to the coordinator of a group, each by a client of its own that is gone before it would give up.

librdkafka aborts the whole process when it has given such a question up, and the coordinator is found only afterwards:
it answers for the question twice, the second time with memory that it has freed (its issue 4605, open; seen with
2.16). So who waits gives up first, and takes the client away; a question that is under way then is ended in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Unanswered  # before Python 3.11 not the built-in one
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kept.guarantees import only_asks

LONGER = 60.0
"""So much later than we do the client would give up: for a client that is gone by then, never."""

Key = TypeVar("Key")
Answer = TypeVar("Answer")


def ask_coordinator(
    reached_by: Mapping[str, object], ask: Callable[[AdminClient, float], Mapping[Key, Future[Answer]]], within: float
) -> dict[Key, Answer]:
    """The answers, by what was asked about. `ask` gets the client, and the time-out that it is to be told."""
    client = AdminClient(only_asks(reached_by))
    deadline = time.monotonic() + within
    answers = ask(client, within + LONGER)
    try:
        return {key: answer.result(max(0.0, deadline - time.monotonic())) for key, answer in answers.items()}
    except Unanswered:
        late = KafkaError(KafkaError._TIMED_OUT, f"the coordinator has not answered within {within:g} s")
        raise KafkaException(late) from None
    finally:
        del client  # an error keeps this function's names alive
