"""What a client's error says about a consumer: it passes, it is not ours any more, or a person must look."""

from __future__ import annotations

from confluent_kafka import KafkaError

from kept.errors import Fenced, FixConfiguration, Gap, KeptError, SourceChanged, TryAgain

_NOT_OURS = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError._FENCED,
}
_FORBIDDEN = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "ask for the right to read this topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "ask for the right to use this group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "ask for the right to use this cluster",
}
_PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._PARTITION_EOF,
    KafkaError._RESOLVE,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
}
_LOOK = "`kept groups describe` shows where the group stands; `kept groups reset` sets its position by hand"
_NO_TOPIC = (
    FixConfiguration,
    "the topic is not there",
    "`kept topics list` shows the topics there are; `kept topics create NAME` makes one",
)
_GONE = (Gap, "records are gone before they were read, or the log was cut", _LOOK)
_STOPPED: dict[int, tuple[type[KeptError], str, str]] = {
    KafkaError._MAX_POLL_EXCEEDED: (
        Fenced,
        "this member took longer than max.poll.interval.ms over its records, and the group went on without it",
        "do less between two records, or raise max.poll.interval.ms; then start it again",
    ),
    KafkaError.UNKNOWN_TOPIC_OR_PART: _NO_TOPIC,
    KafkaError._UNKNOWN_TOPIC: _NO_TOPIC,
    KafkaError._UNKNOWN_PARTITION: _NO_TOPIC,
    KafkaError._LOG_TRUNCATION: (
        SourceChanged,
        "the log was cut below what had been read",
        f"compare the effects with the source; {_LOOK}",
    ),
    KafkaError._AUTO_OFFSET_RESET: _GONE,
    KafkaError.OFFSET_OUT_OF_RANGE: _GONE,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: (
        FixConfiguration,
        "the group is in use by consumers of another kind",
        "choose another group, or stop the other members first",
    ),
    **{code: (FixConfiguration, "it is forbidden", way_out) for code, way_out in _FORBIDDEN.items()},
    **dict.fromkeys(_NOT_OURS, (Fenced, "the group went on without this member", "start it again")),
}


def is_passing(error: KafkaError) -> bool:
    """Whether the client mends it by itself."""
    return not error.fatal() and (error.retriable() or error.code() in _PASSING)


def is_cut(error: KafkaError) -> bool:
    """Whether the log was cut below what had been read. librdkafka tells it as a reset that is not allowed."""
    reset = error.code() == KafkaError._AUTO_OFFSET_RESET
    return error.code() == KafkaError._LOG_TRUNCATION or (reset and "truncation" in error.str())


def is_out_of_range(error: KafkaError) -> bool:
    """Whether the log does not have the offset that was asked for, or not any more."""
    return error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def deleted(place: tuple[str, int], wanted: int, first: int, without_them: str) -> Gap:
    """Retention, or somebody's DeleteRecords, was quicker than this group. `without_them` is a command for a person."""
    topic, partition = place
    return Gap(
        f"records of {topic}[{partition}] were deleted before they were read: offsets {wanted} to {first - 1}, "
        f"{first - wanted} at most; the log begins at {first} now",
        way_out=f"restore them from elsewhere; or go on without them: `{without_them}`",
    )


def group_reset(group: str, place: tuple[str, int], _first: int) -> str:
    """The command that moves a group, which has no members then, to where a log begins."""
    sure = " --break-exactly-once" if group.startswith("kept.") else ""
    topic, partition = place
    return f"kept groups reset {group} --topic {topic} --partition {partition} --to beginning --yes{sure}"


def set_position(group: str, topic: str, partition: int | None = None) -> str:
    """The command by which a person records where a group goes on; without --yes it only shows what it would do."""
    sure = " --break-exactly-once" if group.startswith("kept.") else ""
    which = "" if partition is None else f" --partition {partition}"
    return f"kept groups reset {group} --topic {topic}{which} --to WHERE{sure} --yes"


def reading_error(error: KafkaError, topic: str) -> KeptError:
    """The error of our tree for what stopped the reading."""
    code = KafkaError._LOG_TRUNCATION if is_cut(error) else error.code()
    kind, what, way_out = _STOPPED.get(code, (TryAgain, "not now", "check the address, and that the brokers run"))
    return kind(f"{topic} cannot be read: {what} ({error.str()})", way_out=way_out)


def commit_error(error: KafkaError) -> KeptError:
    """`Fenced`: not ours any more. `TryAgain`: not recorded now, or nobody knows; recording it again does no harm."""
    code, reason = error.code(), error.str()
    if code in _NOT_OURS:
        return Fenced(
            f"the group went on without this member: {reason}",
            way_out="nothing to repair: the new owner goes on from what was recorded",
        )
    if code in _FORBIDDEN:
        return FixConfiguration(f"progress cannot be recorded: {reason}", way_out=_FORBIDDEN[code])
    if code == KafkaError.OFFSET_METADATA_TOO_LARGE:
        return FixConfiguration(
            f"progress cannot be recorded: {reason}", way_out="raise offset.metadata.max.bytes of the brokers"
        )
    return TryAgain(f"progress could not be recorded: {reason}", way_out="see that the brokers run, and start it again")
