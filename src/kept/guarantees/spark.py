"""What Spark must be set to: options of its Kafka source, of kept's sinks, and of the session."""

from __future__ import annotations

from kept.guarantees.acceptable import JAVA_FALSE, JAVA_TRUE, Anything, NotSet, OneOf
from kept.guarantees.levels import AtLeastOnce, AtMostOnce, Guarantee
from kept.guarantees.producer import producer_settings
from kept.guarantees.rows import Row, Settings, Side


def spark_source_settings(guarantee: Guarantee) -> Settings:
    """The rows for `readStream.format("kafka")` under a guarantee."""
    rows = (_source_isolation(guarantee), *_one_task_a_partition(), _short_wait(), *_dead_brokers())
    if isinstance(guarantee, AtMostOnce):
        return Settings(Side.SPARK_SOURCE, guarantee, (_start(Anything()), _no_topic_by_accident(Anything()), *rows))
    return Settings(
        Side.SPARK_SOURCE,
        guarantee,
        (_start(OneOf(("earliest",))), *_no_skipping(), _no_topic_by_accident(JAVA_FALSE), *rows),
    )


def spark_sink_settings(guarantee: Guarantee) -> Settings:
    """The rows for kept's sinks; what begins with `kafka.` goes to the producers inside the Kafka sink."""
    producers = (row.prefixed("kafka.") for row in producer_settings(guarantee))
    return Settings(Side.SPARK_SINK, guarantee, (_synchronous_progress(guarantee), *producers))


def spark_session_settings(guarantee: Guarantee) -> Settings:
    """The rows for the session that runs a pipeline under a guarantee."""
    speculation = Row(
        "spark.speculation",
        "false",
        Anything(),
        "two attempts at one task fence each other: the outcome is right, the work is done twice",
    )
    checks = () if isinstance(guarantee, AtMostOnce) else _plans_are_checked()
    return Settings(Side.SPARK_SESSION, guarantee, (speculation, *checks))


def _start(keeps: Anything | OneOf) -> Row:
    return Row(
        "startingOffsets",
        "earliest",
        keeps,
        "it counts whenever the checkpoint is gone: from the earliest on, the sink drops what it has; from "
        "anywhere later, what lies between is skipped",
    )


def _no_skipping() -> tuple[Row, ...]:
    later_start = "it takes precedence over startingOffsets, and without a checkpoint skips what is older"
    return (
        Row("startingTimestamp", None, NotSet(), later_start),
        Row("startingOffsetsByTimestamp", None, NotSet(), later_start),
        Row(
            "failOnDataLoss",
            "true",
            JAVA_TRUE,
            "Spark would go on, with a warning in a log, when records were deleted before it read them",
        ),
        Row(
            "kafka.check.crcs",
            "true",
            JAVA_TRUE,
            "a record damaged on disk or on the way would be taken for the one that was sent",
        ),
    )


def _no_topic_by_accident(keeps: Anything | OneOf) -> Row:
    return Row(
        "kafka.allow.auto.create.topics",
        "false",
        keeps,
        "a topic that was deleted would come back, empty, with other offsets under the same name",
    )


def _source_isolation(guarantee: Guarantee) -> Row:
    if isinstance(guarantee, AtLeastOnce):
        keeps, because = (
            OneOf(("read_committed", "read_uncommitted")),
            "nothing is missed either way; read_uncommitted, Spark's default, also shows records taken back",
        )
    else:
        keeps, because = (
            OneOf(("read_committed",)),
            "Spark's default also reads records of aborted transactions, which their writer sends again",
        )
    return Row("kafka.isolation.level", "read_committed", keeps, because)


def _one_task_a_partition() -> tuple[Row, ...]:
    because = (
        "it splits a source partition over several tasks, and progress by position needs one task that "
        "writes in rising order"
    )
    return (
        Row("minPartitions", None, NotSet(), because),
        Row("maxRecordsPerPartition", None, NotSet(), because),
    )


def _short_wait() -> Row:
    return Row(
        "kafka.fetch.max.wait.ms",
        "20",
        Anything(),
        "at the head of the log each task waits this long for more; Spark's default of 500 only costs time",
    )


def _dead_brokers() -> tuple[Row, ...]:
    """The tries together last as long as Spark's own three of a minute each."""
    because = "Spark's driver asks a broker that has just died until this is over, and only then another one"
    return (
        Row("kafka.default.api.timeout.ms", "10000", Anything(), because),
        Row("kafka.request.timeout.ms", "10000", Anything(), f"{because}; it must not be longer than a question"),
        Row("fetchOffset.numRetries", "18", Anything(), "each try is short, so that a dead broker is left soon"),
    )


def _synchronous_progress(guarantee: Guarantee) -> Row:
    if isinstance(guarantee, AtLeastOnce):
        keeps: Anything | OneOf = Anything()
        because = "written in the background, Spark's own progress lags behind, and more is repeated after a crash"
    else:
        keeps = JAVA_FALSE
        because = "written in the background, Spark's own progress lags behind: batches are cut anew after a crash"
    return Row("asyncProgressTrackingEnabled", "false", keeps, because)


def _plans_are_checked() -> tuple[Row, ...]:
    return (
        Row(
            "spark.sql.streaming.unsupportedOperationCheck",
            "true",
            JAVA_TRUE,
            "it stops plans that a stream cannot compute rightly",
        ),
        Row(
            "spark.sql.streaming.statefulOperator.checkCorrectness.enabled",
            "true",
            JAVA_TRUE,
            "it stops plans in which one operator drops as late what another has just let out",
        ),
    )
