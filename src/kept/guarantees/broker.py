"""What a broker must be set to: names and defaults of Kafka 4.3 without ZooKeeper."""

from __future__ import annotations

from kept.guarantees.acceptable import JAVA_FALSE, JAVA_TRUE, AtLeast
from kept.guarantees.levels import AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee
from kept.guarantees.rows import Row, Settings, Side
from kept.guarantees.topic import DAY_MS

_WEEK_MINUTES = 7 * 24 * 60
_SHORT_MAX = 2**15 - 1


def broker_settings(guarantee: Guarantee) -> Settings:
    """The rows for every broker of a cluster on which a guarantee is to hold."""
    match guarantee:
        case AtMostOnce():
            rows = _progress_stays()
        case AtLeastOnce():
            rows = (*_progress_stays(), *_records_stay())
        case ExactlyOnce():
            rows = (*_progress_stays(), *_records_stay(), *_transactions_stay())
    return Settings(Side.BROKER, guarantee, rows)


def _progress_stays() -> tuple[Row, ...]:
    return (
        Row(
            "offsets.topic.replication.factor",
            "3",
            AtLeast(3, up_to=_SHORT_MAX),
            "the progress of every group is in this topic: with a single copy it goes back, or away, with a disk",
        ),
        Row(
            "min.insync.replicas",
            "2",
            AtLeast(2),
            "with 1, a write counts as safe with the leader alone; it holds for the groups' progress and "
            "for every topic that does not say otherwise",
        ),
        Row(
            "unclean.leader.election.enable",
            "false",
            JAVA_FALSE,
            "a replica that lagged behind would become leader and cut off what was acknowledged, records and "
            "progress alike",
        ),
        Row(
            "offsets.retention.minutes",
            str(30 * 24 * 60),
            AtLeast(_WEEK_MINUTES),
            "the progress of a group that stands still is deleted after this time, and the group starts anew",
        ),
    )


def _records_stay() -> tuple[Row, ...]:
    return (
        Row(
            "default.replication.factor",
            "3",
            AtLeast(3, up_to=_SHORT_MAX),
            "a topic created without a number of copies gets this one",
        ),
        Row(
            "auto.create.topics.enable",
            "false",
            JAVA_FALSE,
            "a mistyped or deleted topic would come into being, empty, instead of being reported as missing",
        ),
    )


def _transactions_stay() -> tuple[Row, ...]:
    return (
        Row(
            "transaction.state.log.replication.factor",
            "3",
            AtLeast(3, up_to=_SHORT_MAX),
            "whether a transaction was committed, and who is fenced, is in this topic alone",
        ),
        Row(
            "transaction.state.log.min.isr",
            "2",
            AtLeast(2),
            "with 1, a commit known only to a leader that dies is forgotten",
        ),
        Row(
            "transaction.partition.verification.enable",
            "true",
            JAVA_TRUE,
            "the broker asks whether a transaction is open before it takes a record into it; a late "
            "record would otherwise fall into the next one or block the partition's readers",
        ),
        Row(
            "transactional.id.expiration.ms",
            str(7 * DAY_MS),
            AtLeast(7 * DAY_MS),
            "an unused id is forgotten after this time, and with it which process was fenced",
        ),
        Row(
            "producer.id.expiration.ms",
            str(DAY_MS),
            AtLeast(DAY_MS),
            "the sequence numbers of a silent producer are forgotten after this time, and a resend is "
            "then taken for a new record",
        ),
    )
