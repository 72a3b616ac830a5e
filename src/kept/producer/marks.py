"""The mark of an exactly-once name: who owns it, which of its transactions was committed last, and what that reached.

Every transaction carries the next mark among its offsets, so that it is committed with the records or not at
all. When an answer was lost, a fence and a look at the mark tell what happened; and a process that was
succeeded while it slept finds a higher generation there, and stops for good. A relay's mark also says how far it
came in its source: its position, in the same transaction as the records.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kept.coordinator import ask_coordinator
from kept.errors import Fenced, FixConfiguration, ProgressMoved, TryAgain
from kept.guarantees import CARRIER, connection, only_asks
from kept.producer.carrier import make_carrier

_TEXT = re.compile(
    r"kept mark 1 (?P<owner>[0-9a-f-]{36}) (?P<generation>\d+) (?P<sequence>\d+) (?P<before>\d+)"
    r"(?: at (?P<identity>[0-9a-f-]{36}) (?P<position>\d+) (?P<tag>-?\d+))?"
)
_ANSWER_WITHIN = 30.0
_ASKED_AGAIN_AFTER = 10
"""Milliseconds: a mark whose transaction has just ended stands within a few."""
COORDINATOR_MOVES = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
}
FORBIDDEN = {
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}


@dataclass(frozen=True)
class Reached:
    """How far a relay came: which source, the position of the last record that is done, and that record's tag."""

    identity: str
    position: int
    tag: int

    def __str__(self) -> str:
        return f"{self.identity} {self.position} {self.tag}"


@dataclass(frozen=True)
class Mark:
    """The owner's generation, its last committed transaction, the last one of the generation before, and a position."""

    owner: str
    generation: int
    sequence: int
    before: int
    reached: Reached | None = None

    def numbered(self, sequence: int, reached: Reached | None = None) -> Mark:
        return replace(self, sequence=sequence, reached=reached or self.reached)

    def __str__(self) -> str:
        at = "" if self.reached is None else f" at {self.reached}"
        return f"kept mark 1 {self.owner} {self.generation} {self.sequence} {self.before}{at}"


def read_mark(text: str) -> Mark:
    """What a mark says; anything else under our name was written by a stranger."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ProgressMoved(
            f"a stranger wrote {text!r} where the mark of this name should be",
            way_out="find who uses this group; delete the group's offsets for the topic kept.progress to start anew",
        )
    at = match["identity"]
    reached = None if at is None else Reached(at, int(match["position"]), int(match["tag"]))
    return Mark(match["owner"], int(match["generation"]), int(match["sequence"]), int(match["before"]), reached)


def claimed_by(
    owner: str, found: Mark | None, now: int, at_least: int | None = None, birth: Reached | None = None
) -> Mark:
    """The mark with which a new owner begins: one generation on, remembering where the last one stood.

    A mark expires when its name rests for a week. Then the generation is `now`, in seconds since 1970: above that of
    whoever began earlier and sleeps, for nobody is succeeded once a second for a week. `at_least` is a generation that
    a relay's backlog is known to have had, which says the same better; `birth` where a relay begins.
    """
    if found is None:
        return Mark(owner, now if at_least is None else at_least, 0, 0, birth)
    reached = _further(found.reached, birth)
    return Mark(owner, max(found.generation + 1, at_least or 0), 0, found.sequence, reached)


def _further(found: Reached | None, birth: Reached | None) -> Reached | None:
    """Somebody who leaves no mark may have been here since (a purge): a relay that has nothing to do must not leave
    the older position behind, which its successor would take for a cluster that was set back."""
    if found is None or birth is None:
        return found or birth
    return birth if birth.position > found.position else found


def refuse_if_succeeded(found: Mark | None, mine: Mark) -> None:
    """Only a higher generation ends an owner; a mark that has expired, or is not yet replaced by ours, says nothing."""
    if found is None or found.generation < mine.generation:
        return
    if found.generation > mine.generation or found.owner != mine.owner:
        raise Fenced(
            f"another process has taken over this name: it is generation {found.generation}, this is {mine.generation}",
            way_out="stop this one; only one process at a time may use the name",
        )


def was_committed(found: Mark | None, attempted: Mark) -> bool | None:
    """Did the transaction that carried this mark take place? None: the mark cannot tell any more."""
    if found is None:
        return None
    if found.generation == attempted.generation:
        return found.sequence == attempted.sequence
    if found.generation == attempted.generation + 1:
        return found.before == attempted.sequence
    return None


class Marks:
    """Where the mark of one name is kept: an offset of its group, on a topic of ours."""

    def __init__(self, reached_by: Mapping[str, object], group: str) -> None:
        self.group = group
        self._reached_by = connection(reached_by)
        self._admin = AdminClient(only_asks(self._reached_by))
        settings = {
            **only_asks(self._reached_by),
            "group.id": group,
            "enable.auto.commit": False,
            "retry.backoff.ms": _ASKED_AGAIN_AFTER,
        }
        self._waiting = _Reader({**settings, "isolation.level": "read_committed"})
        self._glancing = _Reader({**settings, "isolation.level": "read_uncommitted"})
        self.group_metadata = self._waiting.client.consumer_group_metadata()

    def close(self) -> None:
        self._waiting.close()
        self._glancing.close()

    def forget(self) -> None:
        """Remove the mark of a name that is never used again."""
        with suppress(KafkaException):
            ask_coordinator(
                self._reached_by,
                lambda client, timeout: client.delete_consumer_groups([self.group], request_timeout=timeout),
                _ANSWER_WITHIN,
            )

    def read(self, within: float = _ANSWER_WITHIN) -> Mark | None:
        """The mark that was committed last; one in an open transaction is waited for. To be asked behind a fence."""
        return self._waiting.ask(within)

    def glance(self, within: float = _ANSWER_WITHIN) -> Mark | None:
        """The mark that was committed last, whatever is under way: good enough to see a successor."""
        return self._glancing.ask(within)

    @staticmethod
    def position(mark: Mark) -> TopicPartition:
        """The offset that carries a mark; the number is for people who look with other tools."""
        return TopicPartition(CARRIER, 0, mark.generation, str(mark))

    def make_carrier(self) -> None:
        make_carrier(self._admin)


class _Reader:
    """Asks what is committed, one question at a time."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.client = Consumer(dict(settings))
        self._group = str(settings["group.id"])
        self._one_at_a_time = threading.Lock()

    def close(self) -> None:
        with self._one_at_a_time:  # a question that is under way has its answer first
            self.client.close()

    def ask(self, within: float) -> Mark | None:
        """The committed mark; a coordinator that has just moved is asked for again."""
        deadline = time.monotonic() + within
        while True:
            try:
                with self._one_at_a_time:
                    (found,) = self.client.committed([TopicPartition(CARRIER, 0)], timeout=max(0.1, within))
                if found.error is not None:
                    raise KafkaException(found.error)  # noqa: TRY301 - told below, as if the whole call had failed
            except KafkaException as failure:
                error = failure.args[0]
                if error.code() in FORBIDDEN:
                    raise forbidden(error, self._group) from failure
                if error.code() not in COORDINATOR_MOVES or time.monotonic() > deadline:
                    raise _no_answer(error) from failure
                time.sleep(0.1)
            else:
                return None if found.offset < 0 else read_mark(found.metadata or "")


def forbidden(error: KafkaError, group: str) -> FixConfiguration:
    return FixConfiguration(
        f"the mark of this name is out of reach: {error.str()}",
        way_out=f"ask for the rights to describe and read the group {group} and the topic {CARRIER}",
    )


def _no_answer(error: KafkaError) -> TryAgain:
    return TryAgain(
        f"no broker answers, and the mark of this name cannot be read: {error.str()}",
        way_out="check the address, and try again when the brokers are back",
    )
