"""What a topic must be set to: Kafka's topic settings, and the replication factor chosen at its creation.

Topics of our own that carry progress are set otherwise: whoever makes one, they are known by their names.
"""

from __future__ import annotations

from kept.guarantees.acceptable import JAVA_FALSE, LONG_MAX, Anything, AtLeast, OneOf
from kept.guarantees.levels import AtMostOnce, Guarantee
from kept.guarantees.rows import Row, Settings, Side

DAY_MS = 24 * 60 * 60 * 1000
CARRIER = "kept.progress"
"""The topic of ours that carries births and marks; progress in a source topic is in one under this name and a dot."""
BATCHES = "kept.batches"
"""The topic of ours that carries the records of batches."""
_POLICY = "cleanup.policy"
_RETENTION = (_POLICY, "retention.ms", "retention.bytes")


def topic_settings(guarantee: Guarantee) -> Settings:
    """The rows for a topic that carries records under a guarantee."""
    rows = _loss_allowed() if isinstance(guarantee, AtMostOnce) else _no_loss()
    return Settings(Side.TOPIC, guarantee, rows)


def carries_progress(topic: str) -> bool:
    """Whether a topic of this name is one of ours that carries births or progress."""
    return topic in (CARRIER, BATCHES) or topic.startswith(f"{CARRIER}.")


def carrier_settings(guarantee: Guarantee) -> Settings:
    """The rows for a topic of ours that carries births or progress."""
    rows = (row for row in topic_settings(guarantee) if row.name not in _RETENTION)
    return Settings(Side.TOPIC, guarantee, (*rows, _compacted()))


def _compacted() -> Row:
    return Row(
        _POLICY,
        "compact",
        OneOf(("compact",)),
        "the last record of a key is kept for good; deleted after a while, it would leave a birth or progress unknown, "
        "and whoever has rested so long would silently begin anew",
    )


def _loss_allowed() -> tuple[Row, ...]:
    return (
        Row(
            "replication.factor",
            "3",
            Anything(),
            "how many copies there are decides how much is lost with a broker, and a loss is allowed here",
        ),
    )


def _no_loss() -> tuple[Row, ...]:
    return (
        Row(
            "replication.factor",
            "3",
            AtLeast(3, up_to=2**15 - 1),
            "with three copies one broker can be lost while two still confirm each write; it is chosen "
            "when the topic is created",
        ),
        Row(
            "min.insync.replicas",
            "2",
            AtLeast(2),
            "with 1, acks=all is content with the leader alone, and its disk is the only copy; keep it "
            "below the replication factor, or the loss of one broker stops all writes",
        ),
        Row(
            "unclean.leader.election.enable",
            "false",
            JAVA_FALSE,
            "a replica that lagged behind would become leader, and what it lacks is cut off though it was acknowledged",
        ),
        Row(
            _POLICY,
            "delete",
            OneOf(("delete", "")),
            "compaction removes all but the last record of a key: a reader that is behind never sees the others",
        ),
        Row(
            "retention.ms",
            str(7 * DAY_MS),
            AtLeast(DAY_MS, endless=-1, up_to=LONG_MAX),
            "a record deleted before it was read is lost; under a day, a reader that stops overnight loses some",
        ),
        Row(
            "retention.bytes",
            "-1",
            OneOf(("-1",)),
            "a limit by size deletes the sooner the more is written, and leaves a reader no time to count on",
        ),
    )
