"""Dead letters of a pipeline: where they go, which rows are given up before a sink sees them, and the record each was.

A letter is buried in the transaction that writes the good rows of its chunk, so it lives where they live: in the
database of a Postgres sink, or in the cluster of a Kafka sink. Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow.compute as pc

from kept.consumer.dead_letters import LONGEST_REASON, DeadLetter, headers_of
from kept.consumer.outgoing import Output
from kept.errors import FixConfiguration
from kept.guarantees import ExactlyOnce, Guarantee
from kept.progress import Range
from kept.spark.position import CARRIED, MISFIT, ORIGINAL, POSITION, REFUSED
from kept.stores import DeadLetter as StoredLetter
from kept.stores import Part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from kept.spark.sinks import Rows
    from kept.spark.source import KafkaSource


@dataclass(frozen=True)
class DeadLetterTable:
    """The table kept_dead_letters in the sink's own database; `kept dead-letters ... --dsn` reads it."""

    def __str__(self) -> str:
        return "the table kept_dead_letters"


@dataclass(frozen=True)
class DeadLetterTopic:
    """A topic in the sink's own cluster; `kept dead-letters ... TOPIC` reads it."""

    topic: str

    def __post_init__(self) -> None:
        if not self.topic:
            raise FixConfiguration("a dead-letter topic has no name", way_out="name one, such as payments.dead")

    def __str__(self) -> str:
        return f"the topic {self.topic}"

    def output(self, letter: DeadLetter) -> Output:
        """The letter as a record of this topic."""
        return Output(self.topic, letter.value, letter.key, headers_of(letter))


DeadLetterPlace: TypeAlias = DeadLetterTable | DeadLetterTopic


@dataclass(frozen=True)
class Letters:
    """Makes letters of the rows of one source partition."""

    part: Part
    pipeline: str

    def letter(self, rows: Rows, number: int, reason: str) -> DeadLetter:
        """The record that this row was, whole, and why it is given up."""
        if rows.origin is None:
            raise TypeError("the rows do not carry their records")
        record = rows.origin.column(ORIGINAL)[number].as_py()
        return _letter(self.pipeline, (*self.part, int(rows.offsets[number])), record, reason)

    def parted(self, rows: Rows) -> tuple[Rows, list[DeadLetter]]:
        """The rows that a sink may see, and letters for those that were given up before: unreadable, or on purpose."""
        given_up = _reasons(rows)
        if given_up is None:
            return rows, []
        mask = pc.is_valid(given_up)
        letters = [self.letter(rows, number, _text(given_up[number])) for number in _true(mask)]
        return (rows.where(pc.invert(mask)) if letters else rows), letters


@dataclass(frozen=True)
class Unreadable:
    """Batch mode: the records of a micro-batch that cannot be read, found before the batch itself is computed.

    After a shuffle no row knows its record, so they are set apart before it: the transform is given the others, and
    these are looked for by reading the same offsets once more. First these, then the batch: a record that compaction
    or retention deletes in between has a letter and no row; the other way round it would have neither.
    """

    pipeline: str
    guarantee: Guarantee
    source: KafkaSource
    spark: SparkSession
    read: Callable[[DataFrame], DataFrame]

    def set_apart(self, frame: DataFrame) -> DataFrame:
        """The rows that could be read, as they come to the transform."""
        from pyspark.sql.functions import col  # noqa: PLC0415 - heavy, and only needed when a pipeline runs

        return self.read(frame).where(col(MISFIT).isNull()).drop(*CARRIED)

    def letters(self, ranges: Sequence[Range]) -> list[DeadLetter]:
        from pyspark.sql.functions import col  # noqa: PLC0415 - heavy, and only needed when a pipeline runs

        if not ranges:
            return []
        rows = self.read(self.source.between(self.spark, self.guarantee, ranges)).where(col(MISFIT).isNotNull())
        return [
            _letter(self.pipeline, tuple(each[name] for name in POSITION), each[ORIGINAL], each[MISFIT])
            for each in rows.select(*POSITION, *CARRIED).toArrow().to_pylist()
        ]


def _letter(pipeline: str, place: tuple[str, int, int], record: Mapping[str, Any], reason: str) -> DeadLetter:
    return DeadLetter(
        *place,
        record["timestamp"],
        reason[:LONGEST_REASON],
        ExactlyOnce(pipeline).group,
        record["key"],
        record["value"],
        tuple((each["key"], each["value"]) for each in record["headers"] or ()),
    )


def stored(letter: DeadLetter) -> StoredLetter:
    """The letter as the table keeps it."""
    where = (letter.topic, letter.partition, letter.offset)
    return StoredLetter(*where, letter.key, letter.value, letter.headers, letter.reason)


def refuse_elsewhere(sink: object, kind: type[DeadLetterPlace], letters: DeadLetterPlace) -> None:
    """A letter in another system than the rows would not be in their transaction."""
    if not isinstance(letters, kind):
        raise FixConfiguration(
            f"rows go to {sink}, dead letters to {letters}: the two would not be one transaction, and a crash between "
            "them would lose a letter, or bury a row that is there",
            way_out="for a Postgres sink use kept.spark.DeadLetterTable(), "
            "for a Kafka sink kept.spark.DeadLetterTopic('payments.dead')",
        )


def refuse_going_round(letters: DeadLetterPlace, read: Sequence[str], written: str | None) -> None:
    """A topic of letters that is also read, or that rows go to, would mix them up, or read them again and again."""
    if isinstance(letters, DeadLetterTopic) and letters.topic in (*read, written):
        does = "reads" if letters.topic in read else "writes"
        raise FixConfiguration(
            f"{letters.topic} cannot hold the dead letters: the pipeline {does} it",
            way_out="give dead letters a topic of their own: `kept topics create payments.dead`",
        )


def refuse_unusable(frame: DataFrame, letters: DeadLetterPlace | None) -> None:
    """Columns of dead letters that nobody would heed, or a reason that is no text."""
    made = [name for name in frame.columns if name in (*CARRIED, REFUSED)]
    if made and letters is None:
        raise FixConfiguration(
            f"the transform makes {', '.join(made)}, and the pipeline keeps no dead letters",
            way_out=f"give dead_letters; or leave rows out with a filter instead of {REFUSED}, and use other names",
        )
    kinds = [each.dataType.simpleString() for each in frame.schema if each.name == REFUSED]
    if kinds and kinds != ["string"]:
        raise FixConfiguration(
            f"{REFUSED} is {' and '.join(kinds)}: it must be one text, the reason, or NULL",
            way_out=f"frame.withColumn({REFUSED!r}, when(col('amount') < 0, lit('a negative amount')))",
        )


def not_in_batch_mode(because: Sequence[str]) -> FixConfiguration:
    """There rows do not know the record they came from: a letter could name neither its place nor its bytes."""
    return FixConfiguration(
        f"dead letters are kept where each row comes from one record; after {', '.join(because)} it does not, and only "
        "records that do not fit source.schema of a file could be set apart before",
        way_out="parse and check in a pipeline of its own, with dead letters, into a topic; aggregate from there; "
        "or leave dead_letters out: what is refused then stops the pipeline",
    )


def _reasons(rows: Rows) -> pa.ChunkedArray | None:
    """Of each row why it is given up, or NULL; None: nothing could say so."""
    if rows.origin is None:
        return None
    told = [rows.origin.column(name) for name in (MISFIT, REFUSED) if name in rows.origin.column_names]
    return pc.coalesce(*told) if told else None


def _text(reason: pa.StringScalar) -> str:
    """A transform that quotes a value may bring bytes that are no text."""
    return bytes(reason.as_buffer()).decode(errors="replace")


def _true(mask: pa.ChunkedArray) -> list[int]:
    """The numbers of the rows for which a mask is true."""
    return [int(number) for number in pc.indices_nonzero(mask).to_pylist()]
