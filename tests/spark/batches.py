"""What the tests of batch mode share: transforms that need it, what they must come to, and drivers that die in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import psycopg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import kept
from kept.consumer.dead_letters import DeadLetter
from kept.guarantees import Guarantee
from kept.progress import Batch, Progress
from kept.spark.dead_letters import DeadLetterPlace
from kept.spark.sinks import Assignment, DriverSink, Sink
from kept.spark.staging import Staged
from kept.stores import Part
from tests.spark.things import AroundDriver, read_all

GROUPS = 5
Meets: TypeAlias = Callable[[Sequence[Staged]], None]


def counted(frame: DataFrame) -> DataFrame:
    """How many records each of five groups has: state in every batch."""
    return frame.selectExpr(f"cast(cast(key as string) as int) % {GROUPS} as k").groupBy("k").count()


def counted_records(frame: DataFrame) -> DataFrame:
    """The same, as records for Kafka: every batch lets out each group that has changed."""
    return counted(frame).selectExpr("cast(k as string) as key", "cast(count as string) as value")


def windows(frame: DataFrame) -> DataFrame:
    """A window is ten records long; it comes out when a later one has been seen."""
    at = F.timestamp_seconds(F.col("key").cast("string").cast("long"))
    grouped = frame.select(at.alias("at")).withWatermark("at", "0 seconds").groupBy(F.window("at", "10 seconds"))
    counts = grouped.count().withColumn("k", F.unix_timestamp(F.col("window.start")).cast("int"))
    return counts.select("k", "count")


def window_records(frame: DataFrame) -> DataFrame:
    return windows(frame).selectExpr("cast(k as string) as key", "cast(count as string) as value")


def spread(frame: DataFrame) -> DataFrame:
    """Two rows of each record, dealt anew: no state, and no place to tell rows by."""
    twice = frame.selectExpr("explode(array('a', 'b')) as side", "cast(value as string) as v")
    return twice.selectExpr("concat(side, v) as v").repartition(2)


def spread_records(frame: DataFrame) -> DataFrame:
    return spread(frame).selectExpr("v as value")


def both_sides(count: int) -> Counter[str]:
    return Counter(f"{side}v{number}" for number in range(count) for side in "ab")


def groups(count: int) -> dict[int, int]:
    """What `counted` comes to after so many records."""
    return dict(Counter(number % GROUPS for number in range(count)))


@dataclass(frozen=True)
class Groups:
    """The table that `counted` is upserted into."""

    dsn: str

    @property
    def sink(self) -> kept.PostgresSink:
        return kept.PostgresSink(self.dsn, "groups", key="k", upsert=True)

    def held(self) -> dict[int, int]:
        with psycopg.connect(self.dsn) as connection:
            try:
                return dict(connection.execute("SELECT k, count FROM groups").fetchall())
            except psycopg.errors.UndefinedTable:
                return {}

    def staging(self) -> list[str]:
        """Tables that were left behind."""
        statement = "SELECT relname FROM pg_class WHERE relname LIKE 'kept_staging_%' AND relkind = 'r'"
        with psycopg.connect(self.dsn) as connection:
            return [name for (name,) in connection.execute(statement).fetchall()]


def latest(bootstrap: str, topic: str) -> list[str]:
    """Every record of a topic, as text."""
    return [value.decode() for value in read_all(bootstrap, topic)]


@dataclass(frozen=True)
class Dying:
    """A sink around another: `before` and `after` are called around the move of the batch with this number."""

    inner: Sink
    number: int
    before: Meets = lambda _staged: None
    after: Meets = lambda _staged: None

    @property
    def buries_in(self) -> type[DeadLetterPlace]:
        return self.inner.buries_in

    def open(self, pipeline: str, guarantee: Guarantee, dead_letters: DeadLetterPlace | None = None) -> DriverSink:
        return DyingDriver(self.inner.open(pipeline, guarantee, dead_letters), self)


@dataclass
class DyingDriver(AroundDriver):
    fault: Dying

    def move(
        self,
        batch: Batch,
        assignments: Sequence[Assignment],
        staged: Sequence[Staged],
        letters: Sequence[DeadLetter] = (),
    ) -> Mapping[Part, Progress]:
        if batch.batch_id == self.fault.number:
            self.fault.before(staged)
        moved = self.inner.move(batch, assignments, staged, letters)
        if batch.batch_id == self.fault.number:
            self.fault.after(staged)
        return moved


class PowerCut(Exception):
    """Nothing more is done by this driver."""


def power_cut(_staged: Sequence[Staged]) -> None:
    raise PowerCut


def lose_last_batch(checkpoint: Path) -> None:
    """What a driver leaves that died after the sink wrote: offsets/N without commits/N.

    One that was told to end may have planned another batch by then; with its offsets there Spark would begin with that
    one, and never repeat N.
    """
    last = max(_numbers(checkpoint / "commits"))
    _remove(checkpoint / "commits" / str(last))
    for later in _numbers(checkpoint / "offsets"):
        if later > last:
            _remove(checkpoint / "offsets" / str(later))


def _numbers(notes: Path) -> list[int]:
    return [int(each.name) for each in notes.iterdir() if each.name.isdigit()]


def _remove(note: Path) -> None:
    note.unlink()
    note.with_name(f".{note.name}.crc").unlink()
