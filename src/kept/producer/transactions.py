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


def fresh_client(settings: Mapping[str, object]) -> Client:
    """A client with a connection: without one, asking for the coordinator waits half a second for a timer."""
    client = Client({"reconnect.backoff.ms": 1, **settings})
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
            if error.txn_requires_abort():
                abort(client, max(1.0, deadline - time.monotonic()))
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


def abort(client: Client, within: float) -> None:
    """Leave nothing visible; a transaction that cannot be aborted now is aborted by the next fence or by time."""
    try:
        client.abort_transaction(within)
    except KafkaException as failure:
        if failure.args[0].code() in _FENCED:
            raise _fenced(failure.args[0]) from failure


def _fenced(error: KafkaError) -> Fenced:
    return Fenced(
        f"another process has taken over this name: {error.str()}",
        way_out="stop this one; only one process at a time may use the name",
    )


def _before_anything(error: KafkaError) -> KeptError:
    if error.code() in _FENCED:
        return _fenced(error)
    if error.code() in _FORBIDDEN:
        return FixConfiguration(
            f"the transaction was refused: {error.str()}", way_out="ask for the right to use this id"
        )
    return TryAgain(f"no transaction could be opened: {error.str()}", way_out="try again when the brokers are back")
