"""Batch mode in Kafka: rows put aside in a topic of the pipeline's own, then sent with the batch's record and progress.

exactly once     rows, record and progress in one transaction
at least once    rows, all acknowledged, then a transaction of record and progress
at most once     a transaction of record and progress, then rows, sent once

Only drivers use the id of these transactions. A driver takes over every partition before it fences this id (rule 7), so
one that is fenced here by a successor finds its generation beside progress, and ends. Where there is none, the broker
has ended a transaction that took too long: the attempt is made again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from kept.consumer.dead_letters import DeadLetter
from kept.consumer.outgoing import PREPARED_WITHIN, Ended, Output, Refused, Transaction
from kept.errors import FixConfiguration, KeptError, TryAgain
from kept.guarantees import BATCHES, AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee
from kept.producer.carrier import make_carrier
from kept.producer.clients import fenced_client, tells_of_a_fence
from kept.progress import (
    Accept,
    Batch,
    BatchRecord,
    Owner,
    Progress,
    Recorded,
    Stop,
    Verdict,
    advance,
    check,
    check_move,
)
from kept.progress.positions import not_succeeded
from kept.spark.dead_letters import DeadLetterTopic
from kept.spark.kafka_moves import KNOWN
from kept.spark.kafka_progress import KafkaProgress
from kept.spark.kafka_records import Shape, sent_apart
from kept.spark.kafka_staging import PARTITIONS, TOPIC_SETTINGS, KafkaStaging, read_staged, staging_topic
from kept.spark.sinks import Assignment, Part
from kept.spark.staging import Staged, at_most_once, tell_lost
from kept.spark.tasks import FencedAttempt

log = logging.getLogger("kept.spark")
SLOWEST = 5_000
"""Rows a second that a transaction is given time for."""
LONGEST = 900
"""Seconds: transaction.max.timeout.ms of brokers that nobody has changed."""


@dataclass(frozen=True)
class Means:
    """What a driver has to move batches with. `settings` are those of progress, `producer` those of the records."""

    pipeline: str
    guarantee: Guarantee
    shape: Shape
    dead_letters: DeadLetterTopic | None
    settings: Mapping[str, object] = field(repr=False)
    producer: Mapping[str, object] = field(repr=False)
    client: Mapping[str, object] = field(repr=False)

    @property
    def transactional_id(self) -> str:
        return batch_id_of(self.pipeline)

    def transactions(self, rows: int) -> dict[str, object]:
        """The settings of a transaction of so many rows; what no transaction can hold is refused before it starts."""
        exactly = isinstance(self.guarantee, ExactlyOnce)
        settings = {**(self.producer if exactly else self.settings), "transactional.id": self.transactional_id}
        settings["delivery.report.only.error"] = True
        if exactly:
            settings["transaction.timeout.ms"] = _long_enough(rows, int(str(settings["transaction.timeout.ms"])))
        return settings


class KafkaBatches:
    """The driver's part of batch mode."""

    def __init__(self, means: Means, progress: KafkaProgress, admin: AdminClient) -> None:
        self._means = means
        self._progress = progress
        self._admin = admin
        self._topic = staging_topic(means.pipeline)
        self._made = False
        make_carrier(admin, BATCHES)

    def last(self) -> BatchRecord | None:
        return self._progress.last_batch()

    def staging(self) -> KafkaStaging:
        if not self._made:
            make_carrier(self._admin, self._topic, PARTITIONS, TOPIC_SETTINGS)
            self._made = True
        return KafkaStaging(self._topic, self._means.client)

    def move(
        self,
        batch: Batch,
        assignments: Sequence[Assignment],
        staged: Sequence[Staged],
        letters: Sequence[DeadLetter],
        owner: Owner,
    ) -> Mapping[Part, Progress]:
        """The staged rows, letters, the batch's record and progress, in the guarantee's order.

        To be called again after an outcome that is not known: a batch that is recorded moves nothing.
        """
        attempt = _Attempt(self._means, sum(each.rows for each in staged) + len(letters))
        try:
            standing = {part: each for topic in _topics(assignments) for part, each in self._read(topic, assignments)}
            accepted = _accepted(assignments, standing, owner)
            new = {part: _advanced(each, accepted[part], owner) for part, each in _by_part(assignments).items()}
            verdict = check_move(
                batch, self._progress.last_batch(), {part: each.drop_below for part, each in accepted.items()}
            )
            if isinstance(verdict, Stop):
                raise verdict.error()
            if verdict is Verdict.WRITE:
                outputs = self._outputs(staged, letters)
                attempt.carry_out(outputs, self._positions(batch, new), self._copies(batch, new), self._progress)
            elif isinstance(self._means.guarantee, AtMostOnce):
                tell_lost(batch, staged)
        except Refused as refused:
            raise refused.refusal from refused
        except Ended as ended:
            raise attempt.refusal() or self._told(ended, assignments, owner) from ended
        finally:
            attempt.give_up()
        self._delete(staged)
        return new

    def _read(self, topic: str, assignments: Sequence[Assignment]) -> list[tuple[Part, Recorded]]:
        numbers = [each.range.partition for each in assignments if each.range.topic == topic]
        return [((topic, number), each) for number, each in self._progress.recorded(topic, numbers).items()]

    def _told(self, ended: Ended, assignments: Sequence[Assignment], owner: Owner) -> KeptError:
        """Who was fenced looks for a successor before it fences again: that one would be disturbed."""
        if not tells_of_a_fence(ended.__cause__):
            return TryAgain(f"the transaction has ended: {ended}", way_out="fence, read progress, and go on from there")
        for topic in _topics(assignments):
            for _, recorded in self._read(topic, assignments):
                stop = not_succeeded(recorded, owner) if isinstance(recorded, Progress) else None
                if stop is not None:
                    return stop.error()
        return FencedAttempt(
            f"the broker has ended the transaction, and no other driver has taken over: {ended}",
            way_out="the next attempt looks again; if this comes back, raise transaction.timeout.ms, or bound the "
            "batch: KafkaSource(max_per_batch=...)",
        )

    def _outputs(self, staged: Sequence[Staged], letters: Sequence[DeadLetter]) -> Iterator[list[Output]]:
        """What is sent, a part at a time."""
        for table in read_staged(self._means.client, self._topic, staged):
            yield list(self._means.shape.records(table))
        if self._means.dead_letters is not None:
            yield [self._means.dead_letters.output(each) for each in letters]

    def _positions(self, batch: Batch, new: Mapping[Part, Progress]) -> list[TopicPartition]:
        return [*map(self._progress.offset, new.values()), self._progress.batch_offset(batch.record)]

    def _copies(self, batch: Batch, new: Mapping[Part, Progress]) -> list[Output]:
        return [*map(self._progress.copy, new.values()), self._progress.batch_copy(batch.record)]

    def _delete(self, staged: Sequence[Staged]) -> None:
        """Nobody waits for it, and what stays ends with the topic's retention."""
        ends: dict[int, int] = {}
        for each in staged:
            if each.rows:
                ends[each.place.partition] = max(each.place.last + 1, ends.get(each.place.partition, 0))
        if ends:
            self._admin.delete_records([TopicPartition(self._topic, *place) for place in ends.items()])


class _Attempt:
    """One try at moving a batch, behind a fence of its own."""

    def __init__(self, means: Means, rows: int) -> None:
        self._means = means
        self._rows = rows
        settings = means.transactions(rows)
        self._transaction = Transaction(settings, KNOWN, partial(fenced_client, settings, PREPARED_WITHIN))
        self._begun = False

    def carry_out(
        self,
        outputs: Iterable[Sequence[Output]],
        positions: list[TopicPartition],
        copies: Sequence[Output],
        progress: KafkaProgress,
    ) -> None:
        """The two moves in their order."""
        guarantee = self._means.guarantee
        if isinstance(guarantee, AtLeastOnce):
            self._send_apart(outputs)
        self._transaction.begin()
        self._begun = True
        if isinstance(guarantee, ExactlyOnce):
            for some in outputs:
                self._transaction.send_all(some, one_by_one=False)
        for copy in copies:
            self._transaction.send(copy)
        self._transaction.commit(positions, progress.group_metadata)
        self._begun = False
        if isinstance(guarantee, AtMostOnce):
            with at_most_once(self._rows):
                self._send_apart(outputs)

    def refusal(self) -> KeptError | None:
        """A record that the brokers refuse, if it has ended the transaction."""
        return self._transaction.hear()

    def give_up(self) -> None:
        if self._begun:
            self._transaction.abort()

    def _send_apart(self, outputs: Iterable[Sequence[Output]]) -> None:
        for some in outputs:
            sent_apart(self._means.producer, self._means.guarantee, some)


def batch_id_of(pipeline: str) -> str:
    """The transactional id of batch mode; those of partitions have a topic and a number."""
    return ExactlyOnce(pipeline).transactional_id("batch")


def _topics(assignments: Sequence[Assignment]) -> list[str]:
    return list(dict.fromkeys(each.range.topic for each in assignments))


def _by_part(assignments: Sequence[Assignment]) -> dict[Part, Assignment]:
    return {(each.range.topic, each.range.partition): each for each in assignments}


def _accepted(assignments: Sequence[Assignment], standing: Mapping[Part, Recorded], owner: Owner) -> dict[Part, Accept]:
    """Whether each range may be written from where its partition stands; or the reason to stop."""
    accepted = {}
    for part, each in _by_part(assignments).items():
        answer = check(each.range, standing[part], each.source, owner)
        if isinstance(answer, Stop):
            raise answer.error()
        accepted[part] = answer
    return accepted


def _advanced(given: Assignment, accepted: Accept, owner: Owner) -> Progress:
    end = max(given.range.end, accepted.drop_below)
    return advance(accepted.progress, end, given.range.leader_epoch, owner)


def _long_enough(rows: int, configured: int) -> int:
    """Milliseconds. Rule 10: what would not fit is refused before it starts."""
    needed = rows / SLOWEST
    if needed > LONGEST:
        raise FixConfiguration(
            f"a batch of {rows} rows may not fit into one transaction: brokers end one after {LONGEST} s",
            way_out=f"bound the batch: KafkaSource(max_per_batch=...), so that no more than {LONGEST * SLOWEST} rows "
            "come out of it",
        )
    return max(configured, round(needed * 1000))
