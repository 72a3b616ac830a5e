"""Questions that change nothing, asked in steps: whoever is asked may just have died, and another one knows as well.

The client sends a question to the broker that it takes for the leader, or for the controller, and waits for that one
even when it is gone. So the first step is short, and each further one twice as long: brokers that are slow are given
the time that they need. Between two steps the client looks who is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Unanswered  # before Python 3.11 not the built-in one
from contextlib import suppress
from typing import TypeVar

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Consumer as Client
from confluent_kafka.admin import AdminClient, TopicMetadata  # type: ignore[attr-defined]
from confluent_kafka.admin._listoffsets import ListOffsetsResultInfo, OffsetSpec

from kept.consumer.faults import reading_error

ANSWER_WITHIN = 30.0
FIRST_STEP = 1.0
GRACE = 1.0
"""So much longer than its own time-out a question may take: the client's own error says more than ours."""
PAUSE = 0.1
KNOWN_WITHIN = 3.0
ASK_AGAIN = {
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_CONTROLLER,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._NOENT,  # librdkafka's word for a partition that has no leader just now
}

_NOT_KNOWN_YET = {KafkaError._UNKNOWN_PARTITION}
"""To this client: a topic that has just grown is not known as such to who has asked about it before."""
_NOT_KNOWN_TO_ITS_LEADER = _NOT_KNOWN_YET | {KafkaError.UNKNOWN_TOPIC_OR_PART}
"""A leader hears that it leads a topic which has just been made later than those who name it as the leader."""
_TOO_LATE = {KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT}

Key = TypeVar("Key")
Answer = TypeVar("Answer")


def ask_offsets(
    admin: AdminClient, question: Mapping[TopicPartition, OffsetSpec], level: IsolationLevel
) -> dict[TopicPartition, ListOffsetsResultInfo]:
    """Where logs begin and end. A leader that has not answered is asked again.

    librdkafka 2.16 tells of a leader that did not answer in time as of one that did: no error, and this offset.
    """

    def ask(within: float) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        return admin.list_offsets(dict(question), isolation_level=level, request_timeout=within)

    return asked(admin, ask, lambda answer: answer.offset != OFFSET_INVALID, not_yet=_NOT_KNOWN_TO_ITS_LEADER)()


def look_for(admin: AdminClient, topic: str) -> TopicMetadata:
    """A topic as any broker knows it, its error too; a broker that goes while it is asked is not the last one."""
    deadline = time.monotonic() + ANSWER_WITHIN
    while True:
        try:
            return admin.list_topics(topic, timeout=ANSWER_WITHIN).topics[topic]
        except KafkaException as failure:
            if failure.args[0].code() not in ASK_AGAIN or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE)


def require(client: Client, topic: str) -> None:
    """A topic that is not there is told; one that has just been made is not known to every broker at once."""
    deadline = time.monotonic() + KNOWN_WITHIN
    while True:
        try:
            error = client.list_topics(topic, timeout=ANSWER_WITHIN).topics[topic].error
        except KafkaException as failure:
            raise reading_error(failure.args[0], topic) from failure
        if error is None:
            return
        if time.monotonic() > deadline:
            raise reading_error(error, topic)
        time.sleep(PAUSE)


def asked(
    admin: AdminClient,
    ask: Callable[[float], Mapping[Key, Future[Answer]]],
    is_answer: Callable[[Answer], bool] = lambda _answer: True,
    within: float = ANSWER_WITHIN,
    not_yet: Collection[int] = _NOT_KNOWN_YET,
) -> Callable[[], dict[Key, Answer]]:
    """Ask now, and go on; what is returned waits for the answers. `ask` gets the seconds of its step.

    `not_yet`: errors of a moment, after which it is known.
    """
    first = ask(FIRST_STEP)

    def answers() -> dict[Key, Answer]:
        begun = time.monotonic()
        deadline = begun + within
        step, asked_for = FIRST_STEP, first
        while True:
            try:
                found = {key: answer.result(step + GRACE) for key, answer in asked_for.items()}
                if all(map(is_answer, found.values())):
                    return found
                raise Unanswered  # noqa: TRY301 - told below, as if the client had told it
            except (KafkaException, Unanswered) as failure:
                error = _error(failure)
                if time.monotonic() > begun + _patience(error, within, not_yet):
                    raise KafkaException(error) from failure
            left = max(deadline - time.monotonic(), FIRST_STEP)
            step = min(2 * step if error.code() in _TOO_LATE else step, left)
            _look_around(admin, step)
            asked_for = ask(step)

    return answers


def _patience(error: KafkaError, within: float, not_yet: Collection[int]) -> float:
    if error.code() in ASK_AGAIN:
        return within
    return KNOWN_WITHIN if error.code() in not_yet else 0.0


def _error(failure: BaseException) -> KafkaError:
    if isinstance(failure, KafkaException):
        found: KafkaError = failure.args[0]
        return found
    return KafkaError(KafkaError._TIMED_OUT, "a broker has not answered in time")


def _look_around(admin: AdminClient, within: float) -> None:
    """Any broker will do: its answer names those that are there."""
    time.sleep(PAUSE)
    with suppress(KafkaException):  # the question itself will tell
        admin.list_topics(timeout=within)
