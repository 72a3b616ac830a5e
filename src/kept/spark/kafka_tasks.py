"""The tasks of a Kafka sink in partition mode: chunks of one source partition as records, with progress behind a fence.

Where dead letters are kept, a chunk that Kafka refuses is halved, each half a transaction of its own with its own
progress (a transaction that met a refusal can only be aborted), until the row is found that is refused alone, in a
batch of its own (rule 14). Its letter then moves progress past it, in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TypeAlias

from kept.consumer.outgoing import Output, Refused, Transaction
from kept.errors import KeptError, NotPersisted
from kept.guarantees import ExactlyOnce, Guarantee
from kept.progress import Chunk, Fate, Owner, Range, isolate, one_chunk
from kept.spark.dead_letters import DeadLetterTopic, Letters
from kept.spark.kafka_moves import Moves
from kept.spark.kafka_progress import KafkaProgress
from kept.spark.kafka_records import Shape, refused_apart, sent_and_judged, sent_apart, sent_inside
from kept.spark.sinks import Assignment, Part, Rows, Written

Effect: TypeAlias = "Callable[[Rows, Transaction | None], int]"
"""Sends rows, inside the transaction or by themselves; says how many of them were buried instead."""


def identified(settings: Mapping[str, object], pipeline: str, part: Part) -> dict[str, object]:
    """The settings of a transaction on one source partition: everybody who works on it has the same id."""
    return {**settings, "transactional.id": ExactlyOnce(pipeline).transactional_id(part[0], str(part[1]))}


@dataclass(frozen=True)
class KafkaTasks:
    """What travels to the tasks."""

    owner: Owner
    guarantee: Guarantee
    shape: Shape
    dead_letters: DeadLetterTopic | None
    settings: Mapping[str, object] = field(repr=False)
    producer: Mapping[str, object] = field(repr=False)
    client: Mapping[str, object] = field(repr=False)

    @property
    def pipeline(self) -> str:
        return self.owner.fingerprint

    def open(self, assignment: Assignment) -> KafkaPart:
        return KafkaPart(self, assignment)

    def transactions(self) -> Mapping[str, object]:
        """The settings of transactions: the producers' own where these carry the records."""
        settings = self.producer if isinstance(self.guarantee, ExactlyOnce) else self.settings
        return {**settings, "delivery.report.only.error": True}

    def plainly(self, rows: Rows, transaction: Transaction | None) -> int:
        """A record that Kafka refuses ends the attempt."""
        if transaction is not None:
            sent_inside(transaction, self.shape, rows.table)
        else:
            sent_apart(self.producer, self.guarantee, self.shape.records(rows.table))
        return 0


class KafkaPart:
    """Writes the chunks of one source partition."""

    def __init__(self, tasks: KafkaTasks, assignment: Assignment) -> None:
        self._tasks = tasks
        self._part = (assignment.range.topic, assignment.range.partition)
        self._source = assignment.source
        self._progress = _progress_of(tuple(tasks.client.items()), tasks.pipeline)

    def write(self, rows: Rows, wanted: Range) -> Written:
        tasks = self._tasks
        if tasks.dead_letters is None:
            return self._carried(rows, wanted, tasks.plainly)
        burying = _Burying(tasks, tasks.dead_letters, Letters(self._part, tasks.pipeline))
        return halving(rows, wanted, partial(self._tried, burying))

    def close(self) -> None:
        pass

    def _tried(self, burying: _Burying, rows: Rows, wanted: Range) -> Written | None:
        """Written, or a single row buried; None: several were refused together, and are to be halved."""
        try:
            return self._carried(rows, wanted, burying.good_ones)
        except KeptError as error:
            if not isinstance(error.__cause__, Refused):
                raise
            if len(rows) > 1:
                return None
            reason = error.what
        try:
            return self._carried(rows, wanted, partial(burying.all_of, reason))
        except KeptError as error:
            if not isinstance(error.__cause__, Refused):
                raise
            raise self._not_even_buried(int(rows.offsets[0]), error) from error

    def _not_even_buried(self, offset: int, error: KeptError) -> NotPersisted:
        topic, partition = self._part
        return NotPersisted(
            f"the dead letter of {topic}[{partition}]@{offset} was refused as well: {error.what}",
            way_out="a letter is a little larger than its record: raise max.message.bytes of its topic, and "
            "message.max.bytes of the producer",
            retriable=False,
        )

    def _carried(self, rows: Rows, wanted: Range, effect: Effect) -> Written:
        """One chunk, in the order that the guarantee is."""
        tasks = self._tasks
        new = buried = 0

        def apply(drop_below: int, transaction: Transaction | None) -> None:
            nonlocal new, buried
            left = rows.at_or_above(drop_below)
            new, buried = len(left), effect(left, transaction)

        steps = one_chunk(tasks.guarantee, Chunk(wanted, tuple(rows.offsets.tolist())), tasks.owner)
        settings = identified(tasks.transactions(), tasks.pipeline, self._part)
        moves = Moves(settings, self._progress, self._part, self._source)
        reached = moves.carry_out(steps, apply).position.next_offset
        return Written(reached, new - buried, len(rows) - new, buried)


@dataclass(frozen=True)
class _Burying:
    """What is sent of a chunk where dead letters are kept."""

    tasks: KafkaTasks
    place: DeadLetterTopic
    letters: Letters

    def good_ones(self, rows: Rows, transaction: Transaction | None) -> int:
        """Rows that nobody has given up as records, the others as letters."""
        tasks = self.tasks
        good, given_up = self.letters.parted(rows)
        records = list(tasks.shape.records(good.table))
        if transaction is None:
            refused = refused_apart(tasks.producer, tasks.guarantee, records)
            given_up += [self.letters.letter(good, number, error.what) for number, error in refused]
            records = []
        self._send([*records, *map(self.place.output, given_up)], transaction)
        return len(given_up)

    def all_of(self, reason: str, rows: Rows, transaction: Transaction | None) -> int:
        """Nothing but letters."""
        letters = [self.letters.letter(rows, number, reason) for number in range(len(rows))]
        self._send([self.place.output(each) for each in letters], transaction)
        return len(rows)

    def _send(self, outputs: Sequence[Output], transaction: Transaction | None) -> None:
        if transaction is None:
            sent_apart(self.tasks.producer, self.tasks.guarantee, outputs)
        else:
            sent_and_judged(transaction, outputs)


def halving(rows: Rows, wanted: Range, tried: Callable[[Rows, Range], Written | None]) -> Written:
    """All rows in their order, as many at a time as go together. `tried` says None when several were refused together.

    A row that is refused alone is buried by `tried`, before any row behind it: progress never passes one whose letter
    is not there.
    """
    done = Written(wanted.start, 0, 0)
    search = isolate(range(len(rows)))
    try:
        numbers = next(search)
        while True:
            written = tried(rows.some(numbers), share(rows, wanted, numbers))
            if written is None and len(numbers) == 1:
                raise TypeError("a single row is written, or buried")
            done = done if written is None else done + written
            numbers = search.send(Fate.REFUSED if written is None else Fate.WRITTEN)
    except StopIteration:
        return done


def share(rows: Rows, wanted: Range, numbers: Sequence[int]) -> Range:
    """The part of a range that these rows are: from behind the row before them, to behind their last."""
    first, last = numbers[0], numbers[-1]
    start = wanted.start if first == 0 else int(rows.offsets[first - 1]) + 1
    return replace(wanted, start=start, end=int(rows.offsets[last]) + 1)


@lru_cache(maxsize=4)
def _progress_of(client: tuple[tuple[str, object], ...], pipeline: str) -> KafkaProgress:
    """One reader for all tasks of a worker: it keeps nothing, and to connect takes longer than to ask."""
    return KafkaProgress(dict(client), pipeline)
