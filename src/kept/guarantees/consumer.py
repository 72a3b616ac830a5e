"""What a consumer must be set to: librdkafka's names."""

from __future__ import annotations

from kept.guarantees.acceptable import FALSE, TRUE, Between, OneOf, Text
from kept.guarantees.levels import AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee
from kept.guarantees.rows import Row, Settings, Side

_START = {"smallest": "earliest", "beginning": "earliest", "largest": "latest", "end": "latest"}


def consumer_settings(guarantee: Guarantee, group: str) -> Settings:
    """The rows for a consumer of a group under a guarantee."""
    match guarantee:
        case AtMostOnce():
            rows: tuple[Row, ...] = (_at_most_once_reset(), _isolation_at_most_once())
        case AtLeastOnce():
            rows = (_at_least_once_reset(), _isolation_at_least_once(), *_nothing_missed())
        case ExactlyOnce():
            rows = (_exactly_once_reset(), _isolation_exactly_once(), *_nothing_missed())
    return Settings(Side.CONSUMER, guarantee, (_group(group), _cooperative(), *_progress_is_ours(), *rows))


def _group(group: str) -> Row:
    return Row(
        "group.id",
        group,
        Text(group),
        "progress is recorded under the group that was asked for; another group has other progress",
    )


def _cooperative() -> Row:
    return Row(
        "partition.assignment.strategy",
        "cooperative-sticky",
        OneOf(("cooperative-sticky",)),
        "only the partitions that move are given away, after their progress is recorded; eager ones take all from all",
    )


def _progress_is_ours() -> tuple[Row, ...]:
    return (
        Row(
            "enable.auto.commit",
            "false",
            FALSE,
            "a timer would record progress without regard to the effect; the order of the two is the guarantee",
            ("auto.commit.enable",),
        ),
        Row(
            "enable.auto.offset.store",
            "false",
            FALSE,
            "the client would count a record as done before the application has seen it",
        ),
        Row(
            "offset.store.method",
            None,
            OneOf(("broker",)),
            "progress kept in a file, or nowhere, is not found by the next member of the group",
        ),
    )


def _at_most_once_reset() -> Row:
    return _reset(
        "error",
        ("latest", "error"),
        "the start is chosen once, at birth; a position missing later was lost, and reading from the "
        "beginning would repeat every effect",
    )


def _at_least_once_reset() -> Row:
    return _reset(
        "error",
        ("error",),
        "records that were deleted before they were read are told; earliest and latest both go on behind them silently",
    )


def _exactly_once_reset() -> Row:
    return _reset(
        "error",
        ("error",),
        "the start is chosen once, at birth; a position missing later was lost, and both guesses are wrong: "
        "earliest repeats, latest skips",
    )


def _reset(value: str, words: tuple[str, ...], because: str) -> Row:
    return Row("auto.offset.reset", value, OneOf(words, _START), because)


def _isolation_at_most_once() -> Row:
    return _isolation(
        ("read_committed",),
        "a writer that aborts a transaction sends its records again: a reader of both would act twice",
    )


def _isolation_at_least_once() -> Row:
    return _isolation(
        ("read_committed", "read_uncommitted"),
        "nothing is missed either way; read_uncommitted also shows records that were taken back",
    )


def _isolation_exactly_once() -> Row:
    return _isolation(
        ("read_committed",),
        "a record of an aborted transaction never happened, and its second sending would be a repetition",
    )


def _isolation(words: tuple[str, ...], because: str) -> Row:
    return Row("isolation.level", "read_committed", OneOf(words), because)


def _nothing_missed() -> tuple[Row, ...]:
    return (
        Row(
            "check.crcs",
            "true",
            TRUE,
            "a record damaged on disk or on the way would be taken for the one that was sent",
        ),
        Row(
            "allow.auto.create.topics",
            "false",
            FALSE,
            "a topic that was deleted, or mistyped, would come back empty with the broker's defaults "
            "instead of being missed",
        ),
        Row(
            "test.mock.num.brokers",
            None,
            Between(0, 0),
            "it replaces the cluster by one that lives in this process and has none of the records",
        ),
    )
