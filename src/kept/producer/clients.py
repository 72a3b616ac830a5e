"""Clients of librdkafka for one transaction each: made, connected, and fenced.

Every transaction has a client of its own. librdkafka may silently resend the end of a transaction; a late
copy of it that reaches the broker during the next transaction of the same epoch would end that one halfway.
A fresh client has a fresh epoch, and the broker turns the late copy away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as Client

from kept.errors import FixConfiguration, KeptError, TryAgain

CONNECTS_WITHIN = 10.0
SLICE = 0.1
GRACE = 1.0
"""So much longer than its own time-out a call may take: the client's own error says more than ours."""
QUICK: Mapping[str, object] = {"log_level": 0, "reconnect.backoff.ms": 1}
"""For short-lived clients: the first answer replaces the addresses that a client began with, and it connects again."""
IN_LARGE_PIECES: Mapping[str, object] = {"linger.ms": 50}
"""For transactions of many records. When the last one is handed over nothing lingers: the commit flushes."""
FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
TRANSACTION_IS_OVER = frozenset({KafkaError._STATE, KafkaError._FATAL, KafkaError._FENCED})
"""What `produce` says when the fault is the transaction's and not the record's."""
NOBODY_ANSWERS = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})
_FORBIDDEN = {KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}


def tells_of_a_fence(failure: BaseException | None) -> bool:
    """Whether another instance may be behind it: a client that was fenced says so once, and then only that it is beyond
    repair."""
    return isinstance(failure, KafkaException) and failure.args[0].code() in {*FENCED, KafkaError._FATAL}


def make_client(settings: Mapping[str, object]) -> Client:
    """A client; a setting that it does not understand is told as such."""
    try:
        return Client(dict(settings))
    except (KafkaException, TypeError, ValueError) as failure:
        reason = failure.args[0].str() if isinstance(failure, KafkaException) else failure
        raise FixConfiguration(
            f"the client refuses its settings: {reason}", way_out="correct what it names"
        ) from failure


def fenced_client(settings: Mapping[str, object], within: float, expects: Iterable[str] = ()) -> Client:
    """A client that has fenced every other with its transactional id; what they had open is ended by then.

    `expects`: topics that it is going to write to. Records for a topic that a client does not know yet are put aside,
    and handed out a second time: that takes a third of all its work.
    """
    client = make_client({"reconnect.backoff.ms": 1, **settings})
    try:
        # Without a connection, asking for the coordinator would wait half a second for a timer. The first answer
        # replaces the addresses that the client began with; the second is one more look at a connection that stays.
        for _ in range(2):
            client.list_topics("__transaction_state", timeout=min(CONNECTS_WITHIN, within))
        client.init_transactions(within)
        for topic in expects:
            client.list_topics(topic, timeout=min(CONNECTS_WITHIN, within))
    except KafkaException as failure:
        raise _not_fenced(failure.args[0]) from failure
    return client


def flushed(client: Client, within: float) -> int:
    """Wait until it is reported what became of every record; how many reports are missing when the time is over.

    A client beyond repair, because it was fenced, say, raises that once, by whichever of its calls comes next; what its
    reports tell, and a commit, tells it better. In slices, so that Ctrl-C gets through; and in a longer call the client
    would go on to bring reports in with that error raised, and break with a SystemError.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            left = int(client.flush(min(SLICE, within)))
        except KafkaException:
            left = len(client)
        if not left or time.monotonic() >= deadline:
            return left


def put_offsets(client: Client, offsets: Sequence[TopicPartition], group: object, within: float) -> None:
    """Put offsets into the client's open transaction. `_TIMED_OUT`: the transaction can only be fenced off.

    The client's own call may not return at all. It looks for the group's coordinator three times; when there is none,
    because the brokers are just coming back, it looks again only after a connection has been opened or closed. So the
    call has a thread of its own, which is left behind; whatever it still does is behind the next fence.
    """
    wait_for(beside(lambda: client.send_offsets_to_transaction(list(offsets), group, within)), within)


def beside(call: Callable[[], object]) -> Future[None]:
    """The call in a thread of its own, which a process that ends does not wait for."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as failure:  # noqa: BLE001 - raised where the answer is waited for
            done.set_exception(failure)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="kept-offsets", daemon=True).start()
    return done


def wait_for(put: Future[None], within: float) -> None:
    """Until the offsets are in the transaction, or it is known that they are not, or time is up (`_TIMED_OUT`)."""
    try:
        put.result(within + GRACE)
    except FutureTimeout:
        reason = f"the coordinator of the group was not found within {within:.0f} s"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason)) from None


def _not_fenced(error: KafkaError) -> KeptError:
    code, reason = error.code(), error.str()
    if code in _FORBIDDEN:
        return FixConfiguration(f"the transaction was refused: {reason}", way_out="ask for the right to use this id")
    if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return FixConfiguration(
            f"the transaction was refused: {reason}",
            way_out="lower transaction.timeout.ms, or raise transaction.max.timeout.ms of the brokers",
        )
    if code in NOBODY_ANSWERS:
        return no_broker(error)
    return TryAgain(f"no transaction could be opened: {reason}", way_out="try again when the brokers are back")


def no_broker(error: KafkaError) -> TryAgain:
    return TryAgain(f"no broker answers: {error.str()}", way_out="check the address, and that the brokers run")
