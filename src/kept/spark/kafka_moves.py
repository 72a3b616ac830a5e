"""The shell that carries out the steps of kept.progress.order on a Kafka cluster, for one source partition.

Every fence is a fresh client with the id of this pipeline, topic and partition (rule 1), and serves one transaction: of
records and progress, or of progress alone. A step that fails ends the attempt; nothing is guessed: the next attempt
fences and reads.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from kept.consumer.outgoing import PREPARED_WITHIN, Ended, Refused, Transaction
from kept.errors import KeptError, TryAgain
from kept.producer.clients import fenced_client, tells_of_a_fence
from kept.progress import Identity, Move, Progress, Recorded, Seen, Source, Step, Steps
from kept.spark.kafka_progress import KafkaProgress
from kept.spark.sinks import Part
from kept.spark.tasks import FencedAttempt

LONGEST_PAUSE = 0.5
KNOWN: set[str] = set()
"""Topics that this process has met: each fresh client would ask for them again."""
Apply: TypeAlias = Callable[[int, "Transaction | None"], None]
"""Sends the records at this offset and above: inside the transaction, or by itself."""


class Moves:
    """One source partition's fence, progress and transaction. `source` is as the driver saw it, if it did."""

    def __init__(
        self, settings: Mapping[str, object], progress: KafkaProgress, part: Part, source: Source | None = None
    ) -> None:
        self._settings = settings
        self._progress = progress
        self._part = part
        self._source = source
        self._transaction: Transaction | None = None
        self._begun = False
        self._to_record: Progress | None = None

    def carry_out(self, steps: Steps, apply: Apply = lambda _drop_below, _transaction: None) -> Progress:
        """Every step in its turn; returns what the steps do."""
        answer: Seen | None = None
        try:
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]
                answer = self._carry_out(step, apply)
        except Refused as refused:
            raise refused.refusal from refused
        except Ended as ended:
            raise self._refusal() or _told(ended) from ended
        finally:
            self._give_up()

    def _carry_out(self, step: Step, apply: Apply) -> Seen | None:
        match step.move:
            case Move.FENCE:
                fence = partial(fenced_client, self._settings, PREPARED_WITHIN)
                self._transaction = Transaction(self._settings, KNOWN, fence)
            case Move.READ_PROGRESS:
                topic, partition = self._part
                recorded = self._progress.recorded(topic, [partition])[partition]
                return Seen(recorded, self._source or as_recorded(recorded))
            case Move.BEGIN:
                self._begin()
            case Move.APPLY_EFFECT:
                apply(step.drop_below, self._transaction if self._begun else None)
            case Move.RECORD_PROGRESS:
                self._to_record = step.new
                if not self._begun:  # a transaction of its own
                    self._begin()
                    self._commit()
            case Move.COMMIT:
                self._commit()
        return None

    def _begin(self) -> None:
        self._fenced().begin()
        self._begun = True

    def _commit(self) -> None:
        """The copy, the offset, and the end of the transaction."""
        transaction, new = self._fenced(), self._to_record
        if new is None:
            raise TypeError("there is nothing to record")
        transaction.send(self._progress.copy(new))
        transaction.commit([self._progress.offset(new)], self._progress.group_metadata)
        self._begun = False

    def _fenced(self) -> Transaction:
        if self._transaction is None:
            raise TypeError("no transaction without a fence")
        return self._transaction

    def _refusal(self) -> KeptError | None:
        """A record that the brokers refuse, if it has ended the transaction."""
        return None if self._transaction is None else self._transaction.hear()

    def _give_up(self) -> None:
        """What was begun and not committed leaves nothing visible; the client ends with its last reference."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None and self._begun:
            transaction.abort()
        self._begun = False


def as_recorded(recorded: Recorded) -> Source:
    """For steps that come before the driver looks at the source: it is taken for what it was."""
    if not isinstance(recorded, Progress):
        return Source(Identity("", "", 0), 0, 0, 0)
    upto = recorded.position.next_offset
    return Source(recorded.identity, 0, upto, upto)


def _told(ended: Ended) -> KeptError:
    if tells_of_a_fence(ended.__cause__):
        time.sleep(random.uniform(0, LONGEST_PAUSE))  # noqa: S311 - two that answer at once starve each other
        return FencedAttempt(f"another attempt has fenced this one: {ended}", way_out="the next attempt looks again")
    return TryAgain(f"the transaction has ended: {ended}", way_out="fence, read progress, and go on from there")
