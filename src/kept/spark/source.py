"""Kafka as the source of a pipeline: read committed, nothing skipped, every row with its place in the log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from kept.consumer import Start
from kept.errors import FixConfiguration
from kept.guarantees import Guarantee, merge, spark_source_settings
from kept.guarantees.connection import connection
from kept.producer.clients import QUICK
from kept.progress import Range
from kept.spark.position import ORIGIN, ORIGINAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

CHOSEN_BY = {
    "kafka.bootstrap.servers": "the first argument",
    "subscribe": "topics",
    "subscribepattern": "pattern",
    "assign": "topics",
    "startingoffsets": "start",
    "startingtimestamp": "start",
    "startingoffsetsbytimestamp": "start",
    "maxoffsetspertrigger": "max_per_batch",
}


HEADERS = "includeheaders"  # as Spark compares it: without regard to case
_OF_STREAMS = ("subscribe", "subscribePattern", "maxOffsetsPerTrigger")

# A question may not end before the request that carries it: Kafka's client refuses to start.
_FIT_EACH_OTHER = frozenset({"kafka.request.timeout.ms", "kafka.default.api.timeout.ms"})


class KafkaSource:
    """Topics of a cluster, by name or by a pattern (a regular expression as Java writes it, for the whole name).

    A pattern never finds topics that begin with `kept.`: they are kept's own, some of this very pipeline.

    `start` counts once, at the pipeline's birth; from then on progress says where to go on, whatever becomes of the
    checkpoint. `max_per_batch` bounds a micro-batch. `client` has librdkafka's settings for connections that need
    more than an address; `options` are Spark's, for its own ones.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: str | Sequence[str] = (),
        *,
        pattern: str | None = None,
        start: Start | datetime = Start.BEGINNING,
        max_per_batch: int | None = None,
        client: Mapping[str, object] | None = None,
        **options: object,
    ) -> None:
        self.bootstrap = bootstrap
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self.pattern = (
            None if pattern is None else f"^(?!kept\\.)(?:{pattern})$"
        )  # Spark looks for it anywhere in a name
        self._said = pattern
        self.start = start
        self._max_per_batch = max_per_batch
        self._options = options
        self.client = {**QUICK, **connection(client or {}), "bootstrap.servers": bootstrap}
        self._refuse_contradictions(client or {})

    def __str__(self) -> str:
        return self._said or ", ".join(self.topics)

    def settings(self, guarantee: Guarantee) -> dict[str, str]:
        """The options of Spark's source; those that would weaken the guarantee are refused."""
        merged = merge(spark_source_settings(guarantee), self._options)
        said = {name.lower() for name in self._options} & _FIT_EACH_OTHER
        for name in _FIT_EACH_OTHER - said if said else ():
            merged.pop(name, None)  # Kafka's own value fits what a person says, ours need not
        chosen: dict[str, object] = {"kafka.bootstrap.servers": self.bootstrap}
        if self.pattern is None:
            chosen["subscribe"] = ",".join(self.topics)
        else:
            chosen["subscribePattern"] = self.pattern
        if self._max_per_batch is not None:
            chosen["maxOffsetsPerTrigger"] = self._max_per_batch
        return {name: str(value) for name, value in {**merged, **chosen}.items()}

    def frame(
        self,
        spark: SparkSession,
        guarantee: Guarantee,
        positions: Mapping[str, Mapping[int, int]],
        *,
        whole: bool = False,
    ) -> DataFrame:
        """The rows of the topics, each with its place. `positions` say where to begin where there is no checkpoint.

        `whole`: each also carries the record as it was, for a dead letter.
        """
        return _placed(spark.readStream, self.from_there(guarantee, positions), whole=whole)

    def from_there(self, guarantee: Guarantee, positions: Mapping[str, Mapping[int, int]]) -> dict[str, str]:
        """The options of Spark's source that begins at these positions where there is no checkpoint."""
        return {**self.settings(guarantee), "startingOffsets": json.dumps(positions)}

    def between(self, spark: SparkSession, guarantee: Guarantee, ranges: Sequence[Range]) -> DataFrame:
        """The same rows once more, of these offsets only, and not as a stream; each carries its record."""
        settings = {name: each for name, each in self.settings(guarantee).items() if name not in _OF_STREAMS}
        partitions: dict[str, list[int]] = {}
        starts: dict[str, dict[int, int]] = {}
        ends: dict[str, dict[int, int]] = {}
        for each in ranges:
            partitions.setdefault(each.topic, []).append(each.partition)
            starts.setdefault(each.topic, {})[each.partition] = each.start
            ends.setdefault(each.topic, {})[each.partition] = each.end
        chosen = {"assign": partitions, "startingOffsets": starts, "endingOffsets": ends}
        said = {name: json.dumps(each) for name, each in chosen.items()}
        return _placed(spark.read, {**settings, **said}, whole=True)

    def _refuse_contradictions(self, client: Mapping[str, object]) -> None:
        if bool(self.topics) == (self.pattern is not None) or not all(self.topics):
            raise FixConfiguration(
                "a source is either topics or a pattern", way_out="give the names of topics, or pattern='payments-.*'"
            )
        others = client.keys() - connection(client).keys()
        if others:
            raise FixConfiguration(
                f"{', '.join(sorted(others))} does not say how the cluster is reached: client is for what does",
                way_out="leave it out of client; options of Spark's own clients are given as kafka.<name>",
            )
        for name in self._options:
            if name.lower() in CHOSEN_BY:
                raise FixConfiguration(
                    f"the option {name} is set by kept", way_out=f"use {CHOSEN_BY[name.lower()]} of KafkaSource"
                )
        if self._max_per_batch is not None and self._max_per_batch < 1:
            raise FixConfiguration("max_per_batch must be at least 1", way_out="leave it out to have no limit")


def _placed(reader: DataFrameReader | DataStreamReader, settings: Mapping[str, str], *, whole: bool) -> DataFrame:
    """What a reader gives, each row with its place."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - heavy, and only needed when a pipeline runs

    said = [name for name in settings if name.lower() == HEADERS]
    shown = any(settings[name].lower() == "true" for name in said)
    if whole:
        settings = {name: value for name, value in settings.items() if name not in said} | {HEADERS: "true"}
    rows = reader.format("kafka").options(**settings).load()
    made = [f.col(column).alias(name) for name, column in ORIGIN.items()]
    if whole:
        at = f.unix_millis("timestamp").alias("timestamp")
        made.append(f.struct("key", "value", "headers", at).alias(ORIGINAL))
    # A transform sees the headers only if it asked for them: letters must not change what it comes to.
    names = [name for name in rows.columns if shown or name != "headers"]
    return rows.select(*names, *made)


def with_position(frame: DataFrame) -> DataFrame:
    """The frame that Spark's Kafka source loads, with columns that carry each row's place to a sink of kept.

    Call it right after `load()`, and keep the columns in every select: `frame.select("value", *kept.spark.POSITION)`.
    Columns of its own, since `topic` and `partition` mean the destination where a frame is written to Kafka (rule 12).
    """
    from pyspark.sql.functions import col  # noqa: PLC0415 - heavy, and only needed when a pipeline runs

    missing = [column for column in ORIGIN.values() if column not in frame.columns]
    if missing:
        raise FixConfiguration(
            f"the frame has no {', '.join(missing)}: it does not come straight from Kafka",
            way_out="call kept.spark.with_position(frame) right after load()",
        )
    return frame.select("*", *(col(column).alias(name) for name, column in ORIGIN.items()))
