"""Is the cluster ready: every broker registered and unfenced, every internal topic with leaders."""

from __future__ import annotations

import uuid
from concurrent import futures
from contextlib import suppress

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kept.coordinator import ask_coordinator
from kept.guarantees import only_asks

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
QUIET: dict[str, str | int | float] = {"log_level": 0, "broker.address.family": "v4", "reconnect.backoff.max.ms": 250}


def _admin(bootstrap: str) -> AdminClient:
    """A new client every time: one that has seen another cluster at these addresses goes on with its old view."""
    return AdminClient(only_asks({"bootstrap.servers": bootstrap, **QUIET}))


def unfenced(bootstrap: str) -> set[int]:
    """The brokers that serve clients now: a fenced or unregistered one is not in the metadata."""
    try:
        return set(_admin(bootstrap).list_topics(topic="__consumer_offsets", timeout=1.0).brokers)
    except KafkaException:
        return set()


def internal_topics_led(bootstrap: str) -> bool:
    """Does every partition of the internal topics have a leader? Asks for the topics where they are missing."""
    try:
        topics = _admin(bootstrap).list_topics(timeout=2.0).topics
    except KafkaException:
        return False
    missing = [name for name in INTERNAL_TOPICS if name not in topics]
    if missing:
        _call_for(missing, bootstrap)
        return False
    return all(
        partition.leader >= 0 and len(partition.isrs) >= 2
        for name in INTERNAL_TOPICS
        for partition in topics[name].partitions.values()
    )


def _call_for(missing: list[str], bootstrap: str) -> None:
    """The broker makes an internal topic when somebody asks for a coordinator."""
    askers = {"__consumer_offsets": _ask_for_a_group, "__transaction_state": _ask_for_a_transaction}
    with futures.ThreadPoolExecutor(len(missing)) as pool:
        for asked in [pool.submit(askers[name], bootstrap) for name in missing]:
            with suppress(KafkaException):  # not yet; the caller asks again until its deadline
                asked.result()


def _ask_for_a_group(bootstrap: str) -> None:
    ask_coordinator(
        {"bootstrap.servers": bootstrap, **QUIET},
        lambda client, timeout: client.describe_consumer_groups(["kept.ready"], request_timeout=timeout),
        5.0,
    )


def _ask_for_a_transaction(bootstrap: str) -> None:
    name = f"kept.ready.{uuid.uuid4()}"
    client = Producer(only_asks({"bootstrap.servers": bootstrap, "transactional.id": name, **QUIET}))
    client.init_transactions(10)
