"""Clients of librdkafka for one transaction each: made, connected, and fenced.

Every transaction has a client of its own. librdkafka may silently resend the end of a transaction; a late
copy of it that reaches the broker during the next transaction of the same epoch would end that one halfway.
A fresh client has a fresh epoch, and the broker turns the late copy away.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from kept.errors import FixConfiguration, KeptError, TryAgain

CONNECTS_WITHIN = 10.0
FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
NOBODY_ANSWERS = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})
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


def fenced_client(settings: Mapping[str, object], within: float) -> Client:
    """A client that has fenced every other with its transactional id; what they had open is ended by then."""
    client = make_client({"reconnect.backoff.ms": 1, **settings})
    try:
        # Without a connection, asking for the coordinator would wait half a second for a timer. The first answer
        # replaces the addresses that the client began with; the second is one more look at a connection that stays.
        for _ in range(2):
            client.list_topics("__transaction_state", timeout=min(CONNECTS_WITHIN, within))
        client.init_transactions(within)
    except KafkaException as failure:
        raise _not_fenced(failure.args[0]) from failure
    return client


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
