"""What a client's error says about a record: certainly not in Kafka, or nobody knows.

librdkafka knows whether a failed record was ever under way, but its Python interface does not tell. So only
an error that rules the record out counts as "not persisted"; everything else is unknown.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from kept.errors import KeptError, NotPersisted, OutcomeUnknown, TransactionAborted

RIGHT_TO_WRITE = "ask for the right to write to the topic that it names"
# What the record itself, or a name in it, brings about: an earlier attempt with the same bytes met the same answer.
_REFUSED = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "create the topic first: `kept topics create NAME`",
    KafkaError._UNKNOWN_TOPIC: "create the topic first: `kept topics create NAME`",
    KafkaError._UNKNOWN_PARTITION: "choose a partition that the topic has: `kept topics describe NAME`",
    KafkaError.TOPIC_EXCEPTION: "use a valid topic name: letters, digits, '.', '_' and '-', up to 249 of them",
}
# What a broker says of a whole batch because of one record in it; librdkafka passes it on to every one of them.
_REFUSED_TOGETHER = {
    KafkaError.MSG_SIZE_TOO_LARGE: "send less, or raise max.message.bytes (topic) and message.max.bytes (producer)",
    KafkaError.RECORD_LIST_TOO_LARGE: "lower batch.size, or raise segment.bytes of the topic",
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


class NoRoom(NotPersisted):
    """Too much waits already: the record was not taken, and may be when some of that has gone."""

    def __init__(self, reason: str, seconds: float, *, way_out: str) -> None:
        super().__init__(f"there was no room for {seconds:.0f} s: {reason}", way_out=way_out, retriable=True)
        self.reason = reason


class RefusedWithItsBatch(NotPersisted):
    """The broker refused a whole batch; which record of it is to blame is not known."""


def error_of(error: KafkaError, topic: str, *, may_have_been_resent: bool) -> KeptError:
    """The error of our tree for a failed record.

    An answer to one attempt says nothing of an earlier attempt whose answer was lost: a client that
    resends cannot be sure that a record is absent because the last copy found too few replicas.
    """
    code, reason = error.code(), error.str()
    if code in _REFUSED:
        return NotPersisted(f"{topic} did not take the record: {reason}", way_out=_REFUSED[code], retriable=False)
    if is_refused_together(error):
        return _with_its_batch(error, topic)
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


def would_end_the_same(aborted: TransactionAborted, refusal: NotPersisted | None) -> NotPersisted | None:
    """The error to tell instead of "run the block again", when it would meet the same record or lack the same right."""
    if refusal is not None and (not refusal.retriable or isinstance(refusal, RefusedWithItsBatch)):
        return refusal
    if is_forbidden(aborted):
        return NotPersisted(aborted.what, way_out=RIGHT_TO_WRITE, retriable=False)
    return None


def is_refused_together(error: KafkaError) -> bool:
    """Whether every record of a batch gets this answer because of one of them."""
    return error.code() in _REFUSED_TOGETHER


def refused_alone(error: KafkaError, topic: str) -> NotPersisted:
    """Refused in a batch, or a transaction, of its own: trying again would not help."""
    advice = _REFUSED_TOGETHER.get(error.code(), RIGHT_TO_WRITE)
    return NotPersisted(f"{topic} did not take the record: {error.str()}", way_out=advice, retriable=False)


def _with_its_batch(error: KafkaError, topic: str) -> NotPersisted:
    """The client's own limit is about this record; a broker's answer is about the batch that it travelled in."""
    alone = refused_alone(error, topic)
    if "Unable to produce" in error.str():
        return alone
    return RefusedWithItsBatch(
        alone.what,
        way_out=f"records of one batch are refused together: send it again by itself; refused alone, {alone.way_out}",
        retriable=True,
    )
