"""Asking the brokers until they answer: who moves is asked again, and what is wrong is told with the way out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from kept.errors import FixConfiguration, KeptError, TryAgain

ANSWER_WITHIN = 30.0
COORDINATOR_MOVES = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
}
NO_ANSWER = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE,
}
_LEADER_MOVES = {
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._NOENT,  # librdkafka's word for a partition that has no leader just now
}
_AGAIN = COORDINATOR_MOVES | NO_ANSWER | _LEADER_MOVES
_WAYS_OUT = {
    KafkaError.GROUP_AUTHORIZATION_FAILED: "ask for the right to do this",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "ask for the right to do this",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "ask for the right to do this",
    KafkaError.INVALID_GROUP_ID: "name a group; `kept groups list` shows those there are",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "`kept topics list` shows the topics there are",
}

Answer = TypeVar("Answer")


def answered(ask: Callable[[float], Answer], what: str, within: float = ANSWER_WITHIN) -> Answer:
    """The answer to a question that changes nothing; `ask` gets the seconds that are left.

    A coordinator or a leader that has just moved is asked for again.
    """
    deadline = time.monotonic() + within
    while True:
        left = deadline - time.monotonic()
        try:
            return ask(max(left, 1.0))
        except KafkaException as failure:
            if failure.args[0].code() not in _AGAIN or time.monotonic() > deadline:
                raise told(failure.args[0], what) from failure
            time.sleep(0.1)


def told(error: KafkaError, what: str) -> KeptError:
    """The error of our tree for a question that changes nothing."""
    if error.code() in _AGAIN:
        return TryAgain(
            f"{what}: no broker answers ({error.str()})", way_out="check the address, and that the brokers run"
        )
    way_out = _WAYS_OUT.get(error.code(), "correct what it names")
    return FixConfiguration(f"{what}: {error.str() or error.name()}", way_out=way_out)
