"""One transaction of a producer: begun behind a fence, then committed or aborted, its outcome never guessed.

Every transaction has a client of its own. librdkafka may silently resend the end of a transaction; a late
copy of it that reaches the broker during the next transaction of the same epoch would end that one halfway.
A fresh client has a fresh epoch, and the broker turns the late copy away.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from kept.errors import Fenced, FixConfiguration, KeptError, OutcomeUnknown, TransactionAborted, TryAgain

CONNECTS_WITHIN = 10.0
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_FORBIDDEN = {KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}


def make_client(settings: Mapping[str, object]) -> Client:
    """A client; a setting that it does not understand is told as such."""
    try:
        return Client(dict(settings))
    except (KafkaException, TypeError, ValueError) as failure:
        reason = failure.args[0].str() if isinstance(failure, KafkaException) else failure
        raise FixConfiguration(
            f"the client refuses its settings: {reason}", way_out="correct what it names"
        ) from failure


def fresh_client(settings: Mapping[str, object]) -> Client:
    """A client with a connection: without one, asking for the coordinator waits half a second for a timer."""
    client = make_client({"reconnect.backoff.ms": 1, **settings})
    try:
        client.list_topics("__transaction_state", timeout=CONNECTS_WITHIN)
    except KafkaException as failure:
        raise TryAgain(
            f"no broker answers: {failure.args[0].str()}",
            way_out="check the address, and that the brokers run",
        ) from failure
    return client


def begin(client: Client, within: float) -> Client:
    """Fence every predecessor with the same id, and open the transaction."""
    try:
        client.init_transactions(within)
        client.begin_transaction()
    except KafkaException as failure:
        raise _before_anything(failure.args[0]) from failure
    return client


def commit(client: Client, within: float) -> None:
    """Make the transaction visible; an error says whether it is absent or unknown."""
    deadline = time.monotonic() + within
    while True:
        try:
            client.commit_transaction(max(0.1, deadline - time.monotonic()))
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() in _FENCED:
                raise _fenced(error) from failure
            if error.txn_requires_abort() and abort(client, max(1.0, deadline - time.monotonic())):
                raise TransactionAborted(
                    f"the transaction was aborted: {error.str()}",
                    way_out="run the block again: nothing of it is visible",
                ) from failure
            if not error.retriable() or time.monotonic() > deadline:
                raise OutcomeUnknown(
                    f"whether the transaction was committed is not known: {error.str()}",
                    way_out="read what is there before you do it again",
                ) from failure
        else:
            return


def abort(client: Client, within: float) -> bool:
    """Leave nothing visible. False: not now; the next fence, or time, aborts it."""
    try:
        client.abort_transaction(within)
    except KafkaException:
        return False
    return True


def _fenced(error: KafkaError) -> Fenced:
    return Fenced(
        "the transaction was fenced: another process has taken over this name, or it was open longer than "
        f"transaction.timeout.ms; whether it was committed is not known ({error.str()})",
        way_out="stop, and read what is there; only one process at a time may use the name",
    )


def _before_anything(error: KafkaError) -> KeptError:
    if error.code() in _FENCED:
        return _fenced(error)
    if error.code() in _FORBIDDEN:
        return FixConfiguration(
            f"the transaction was refused: {error.str()}", way_out="ask for the right to use this id"
        )
    if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return FixConfiguration(
            f"the transaction was refused: {error.str()}",
            way_out="lower transaction.timeout.ms, or raise transaction.max.timeout.ms of the brokers",
        )
    return TryAgain(f"no transaction could be opened: {error.str()}", way_out="try again when the brokers are back")
