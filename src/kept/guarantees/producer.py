"""What a producer must be set to: librdkafka's names, by their better known alias."""

from __future__ import annotations

from kept.guarantees.acceptable import FALSE, INT_MAX, TRUE, Anything, AtLeast, Between, NotSet, OneOf, Under
from kept.guarantees.levels import SEPARATOR, AtLeastOnce, AtMostOnce, ExactlyOnce, Guarantee
from kept.guarantees.rows import Row, Settings, Side


def producer_settings(guarantee: Guarantee) -> Settings:
    """The rows for a producer under a guarantee."""
    match guarantee:
        case AtMostOnce():
            rows = _at_most_once()
        case AtLeastOnce():
            rows = _at_least_once()
        case ExactlyOnce():
            rows = _exactly_once(guarantee)
    return Settings(Side.PRODUCER, guarantee, (*rows, *_guarded()))


def _at_most_once() -> tuple[Row, ...]:
    return (
        _acks(
            "1",
            OneOf(("0", "1", "all"), {"-1": "all"}),
            "one copy is enough where a loss is allowed; 0 does not even wait for that one, all waits for more",
        ),
        _retries("0", Between(0, 0), "a record whose acknowledgement was lost would be written a second time"),
        Row(
            "enable.idempotence",
            "false",
            FALSE,
            "idempotence makes it safe to send again, and this guarantee sends once; the client refuses it "
            "without retries. Without it a batch that was refused by a broker which does not lead yet may come "
            "behind the next one: who needs the order chooses at-least-once, or max.in.flight=1 to make that rare",
        ),
        _no_transaction(),
        Row(
            "allow.auto.create.topics",
            "false",
            Anything(),
            "a mistyped topic would come into being, and nobody reads what is sent there; a loss is allowed here, so "
            "who wants topics made on the side may say so",
        ),
    )


def _at_least_once() -> tuple[Row, ...]:
    return (
        _acks_all(),
        _enough_retries("a short outage would use them up, and the record would be given up"),
        Row(
            "delivery.timeout.ms",
            "300000",
            AtLeast(120_000, endless=0),
            "a record is given up when this time is over: it has to outlast the death of a broker and the "
            "election after it",
            ("message.timeout.ms",),
        ),
        Row(
            "enable.idempotence",
            "true",
            OneOf(("true", "false"), {**TRUE.spellings, **FALSE.spellings}),
            "with it a retry neither repeats nor reorders; without it no record is lost, but a retry may do both",
        ),
        _one_at_a_time(),
        _no_transaction(),
        _no_topic_by_accident(),
        _no_pretended_cluster(),
    )


def _exactly_once(guarantee: ExactlyOnce) -> tuple[Row, ...]:
    root = guarantee.transactional_id()
    return (
        Row(
            "transactional.id",
            root,
            Under(root, SEPARATOR),
            "without an id there is no transaction, and under another name's id two strangers fence each "
            "other; the same id from start to start is what shuts out the process before",
        ),
        Row(
            "enable.idempotence",
            "true",
            TRUE,
            "the broker drops a resent batch by its sequence number, which only an idempotent producer sends",
        ),
        _acks_all(),
        _enough_retries("a short outage would use them up, and transactions would be aborted for no reason"),
        _one_at_a_time(),
        Row(
            "transaction.timeout.ms",
            "60000",
            Anything(),
            "a transaction that takes longer is aborted, never half visible; the broker's "
            "transaction.max.timeout.ms is the limit",
        ),
        _no_topic_by_accident(),
        _no_pretended_cluster(),
    )


def _guarded() -> tuple[Row, ...]:
    return (
        Row(
            "delivery.report.only.error",
            None,
            FALSE,
            "success would go unreported, and nobody could tell a record that arrived from one that is under way",
        ),
        Row(
            "queuing.strategy",
            None,
            OneOf(("fifo",)),
            "lifo sends the newest record first, so that records of one partition change their order",
        ),
    )


def _acks(value: str, keeps: OneOf, because: str) -> Row:
    return Row("acks", value, keeps, because, ("request.required.acks",))


def _acks_all() -> Row:
    return _acks(
        "all",
        OneOf(("all",), {"-1": "all"}),
        "an acknowledgement by fewer than all in-sync replicas is worth nothing when the leader dies "
        "before the others have the record",
    )


def _retries(value: str, keeps: Between | AtLeast, because: str) -> Row:
    return Row("retries", value, keeps, because, ("message.send.max.retries",))


def _enough_retries(cost: str) -> Row:
    # The shortest pause between two attempts is 1 ms: 300,000 attempts last about five minutes or longer.
    return _retries(str(INT_MAX), AtLeast(300_000), f"time and not a count may end the attempts: {cost}")


def _one_at_a_time() -> Row:
    return Row(
        "max.in.flight.requests.per.connection",
        "1",
        Between(1, 1),
        "a broker takes any batch for the first one of a producer that it does not know yet: when the true first one "
        "was refused by a leader that was not ready, and the next one, under way beside it, was taken, then the first "
        "comes again, passes for a repeat, and is lost though it counts as written",
        ("max.in.flight",),
    )


def _no_transaction() -> Row:
    return Row(
        "transactional.id",
        None,
        NotSet(),
        "records sent under an id stay invisible until a transaction commits, and this guarantee opens none",
    )


def _no_topic_by_accident() -> Row:
    return Row(
        "allow.auto.create.topics",
        "false",
        FALSE,
        "a topic made on the side has the broker's default number of copies, which may be one; acks=all then "
        "means that one",
    )


def _no_pretended_cluster() -> Row:
    return Row(
        "test.mock.num.brokers",
        None,
        Between(0, 0),
        "it replaces the cluster by one that lives in this process and ends with it",
    )
