"""What a client's error says about a record: certainly not in Kafka, or nobody knows.

librdkafka knows whether a failed record was ever under way, but its Python interface does not tell. So only
an error that rules the record out counts as "not persisted"; everything else is unknown.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from kept.errors import KeptError, NotPersisted, OutcomeUnknown

RIGHT_TO_WRITE = "ask for the right to write to the topic that it names"
# What the record itself, or a name in it, brings about: an earlier attempt with the same bytes met the same answer.
_REFUSED = {
    KafkaError.RECORD_LIST_TOO_LARGE: "lower batch.size, or raise segment.bytes of the topic",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "create the topic first: `kept topics create NAME`",
    KafkaError._UNKNOWN_TOPIC: "create the topic first: `kept topics create NAME`",
    KafkaError._UNKNOWN_PARTITION: "choose a partition that the topic has: `kept topics describe NAME`",
    KafkaError.TOPIC_EXCEPTION: "use a valid topic name: letters, digits, '.', '_' and '-', up to 249 of them",
    KafkaError.INVALID_TIMESTAMP: "use a timestamp within the topic's message.timestamp.*.max.ms",
    KafkaError.INVALID_RECORD: "send what the topic accepts (a compacted topic wants a key)",
}
# What may have changed since an earlier attempt whose answer was lost.
_REFUSED_NOW = {
    KafkaError.NOT_ENOUGH_REPLICAS: "send it again when the brokers are back; `kept topics describe` shows the copies",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: RIGHT_TO_WRITE,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "ask for the right to write to this cluster",
    KafkaError.POLICY_VIOLATION: "send what the cluster's policy allows",
}
_MAY_PASS = {KafkaError.NOT_ENOUGH_REPLICAS}
# The leader has the record, and too few others said so in time.
_WITHOUT_COPIES = {
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
}
_LOOK_FIRST = "look for it before you send it again, or use exactly-once, where the question does not arise"
_NEVER_SENT = {KafkaError._QUEUE_FULL, KafkaError._PURGE_QUEUE}


def error_of(error: KafkaError, topic: str, *, may_have_been_resent: bool) -> KeptError:
    """The error of our tree for a failed record.

    An answer to one attempt says nothing of an earlier attempt whose answer was lost: a client that
    resends cannot be sure that a record is absent because the last copy found too few replicas.
    """
    code, reason = error.code(), error.str()
    if code in _REFUSED:
        return NotPersisted(f"{topic} did not take the record: {reason}", way_out=_REFUSED[code], retriable=False)
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return _too_large(topic, reason)
    if code == KafkaError._INVALID_DIFFERENT_RECORD:
        return NotPersisted(
            f"{topic} did not take the record: another one of its batch was refused",
            way_out="send it again; the refused one has its own error",
            retriable=True,
        )
    if code in _NEVER_SENT:
        return NotPersisted(f"the record was never sent: {reason}", way_out="send it again later", retriable=True)
    if code in _REFUSED_NOW and not may_have_been_resent:
        return NotPersisted(
            f"{topic} did not take the record: {reason}", way_out=_REFUSED_NOW[code], retriable=code in _MAY_PASS
        )
    first = _REFUSED_NOW.get(code)
    if code in _WITHOUT_COPIES:
        first = "`kept topics describe` shows which copies are missing"
    return OutcomeUnknown(
        f"whether {topic} has the record is not known: {reason}",
        way_out=_LOOK_FIRST if first is None else f"{first}; then {_LOOK_FIRST}",
    )


def is_forbidden(failure: BaseException) -> bool:
    """Whether a right is missing: the same again would end the same."""
    cause = failure.__cause__
    code = cause.args[0].code() if isinstance(cause, KafkaException) else None
    return code == KafkaError.TOPIC_AUTHORIZATION_FAILED


def _too_large(topic: str, reason: str) -> NotPersisted:
    """The client's own limit is about this record; a broker's limit is about the batch that it travelled in."""
    alone = "Unable to produce" in reason
    advice = "send less, or raise max.message.bytes (topic) and message.max.bytes (producer)"
    together = f"records of one batch are refused together: send it again by itself; refused alone, {advice}"
    return NotPersisted(
        f"{topic} did not take the record: {reason}", way_out=advice if alone else together, retriable=not alone
    )
