"""Topics: created with the settings that a guarantee needs, listed, described, deleted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._metadata import TopicMetadata
from confluent_kafka.cimpl import NewTopic

from kept.errors import FixConfiguration, KeptError, OutcomeUnknown, TryAgain
from kept.guarantees import Guarantee, carrier_settings, carries_progress, merge, only_asks, topic_settings

ANSWER_WITHIN = 30.0
_WITHIN = {"operation_timeout": ANSWER_WITHIN, "request_timeout": ANSWER_WITHIN}
_COPIES = "replication.factor"
_NO_ANSWER = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
}
_WAYS_OUT = {
    KafkaError.TOPIC_ALREADY_EXISTS: "use it, or choose another name; `kept topics describe` shows it",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "`kept topics list` shows the topics there are",
    KafkaError.INVALID_REPLICATION_FACTOR: "start more brokers; with fewer than three only at-most-once can be kept",
    KafkaError.INVALID_PARTITIONS: "ask for at least one partition",
    KafkaError.TOPIC_EXCEPTION: "use letters, digits, '.', '_' and '-', up to 249 of them",
    KafkaError.INVALID_CONFIG: "correct the setting that it names",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "ask for the right to do this",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "ask for the right to do this",
    KafkaError.POLICY_VIOLATION: "ask for what the cluster's policy allows",
}


@dataclass(frozen=True)
class Partition:
    """One partition and who has it."""

    number: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True)
class Topic:
    """A topic as the cluster's metadata shows it."""

    name: str
    partitions: tuple[Partition, ...]

    @property
    def replication_factor(self) -> int:
        return min((len(each.replicas) for each in self.partitions), default=0)


class Topics:
    """The topics of one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient(only_asks({"bootstrap.servers": bootstrap}))

    def create(
        self, name: str, partitions: int, guarantee: Guarantee, overrides: Mapping[str, object] | None = None
    ) -> Topic:
        """Create a topic on which the guarantee can be kept, and wait until every partition has a leader.

        One of ours that carries progress, known by its name, is compacted instead.
        """
        rows = carrier_settings(guarantee) if carries_progress(name) else topic_settings(guarantee)
        settings = merge(rows, overrides or {})
        copies = settings.pop(_COPIES)
        config = {key: str(value) for key, value in settings.items()}
        request = NewTopic(name, num_partitions=partitions, replication_factor=_whole(copies), config=config)
        try:
            self._admin.create_topics([request], **_WITHIN)[name].result()
        except KafkaException as failure:
            raise _error(failure.args[0], f"topic {name} was not created", changes=True) from failure
        except (TypeError, ValueError) as error:
            raise FixConfiguration(
                f"topic {name} was not created: {error}", way_out="correct the value it names"
            ) from error
        return self._led(name, partitions)

    def list(self, *, internal: bool = False) -> list[Topic]:
        """Every topic by name; Kafka's own only when asked for."""
        try:
            found = self._admin.list_topics(timeout=ANSWER_WITHIN).topics
        except KafkaException as failure:
            raise _error(failure.args[0], "the topics cannot be listed") from failure
        return [_topic(found[name]) for name in sorted(found) if internal or not name.startswith("__")]

    def describe(self, name: str) -> Topic:
        """One topic: its partitions, leaders and replicas."""
        try:
            found = self._admin.list_topics(name, timeout=ANSWER_WITHIN).topics[name]
        except KafkaException as failure:
            raise _error(failure.args[0], f"topic {name} cannot be described") from failure
        if found.error is not None:
            raise _error(found.error, f"topic {name} cannot be described")
        return _topic(found)

    def settings(self, name: str) -> dict[str, str]:
        """What a topic was set to, where it differs from the brokers' defaults."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        try:
            rows = self._admin.describe_configs([resource], request_timeout=ANSWER_WITHIN)[resource].result()
        except KafkaException as failure:
            raise _error(failure.args[0], f"topic {name} cannot be described") from failure
        return {key: str(row.value) for key, row in sorted(rows.items()) if row.source == 1}

    def delete(self, name: str) -> None:
        """Delete a topic and every record in it."""
        try:
            self._admin.delete_topics([name], **_WITHIN)[name].result()
        except KafkaException as failure:
            raise _error(failure.args[0], f"topic {name} was not deleted", changes=True) from failure

    def _led(self, name: str, partitions: int) -> Topic:
        """Created means usable: wait for the brokers to hear of it."""
        deadline = time.monotonic() + ANSWER_WITHIN
        while time.monotonic() < deadline:
            with suppress(FixConfiguration, TryAgain):  # not every broker has heard of it yet
                topic = self.describe(name)
                if len(topic.partitions) == partitions and all(each.leader >= 0 for each in topic.partitions):
                    return topic
            time.sleep(0.05)
        raise TryAgain(
            f"topic {name} was created but has no leaders yet",
            way_out="`kept topics describe` shows when it has",
        )


def _whole(copies: object) -> int:
    try:
        return int(str(copies))
    except ValueError:
        raise FixConfiguration(f"{_COPIES}={copies} is not a number", way_out="give a whole number such as 3") from None


def _topic(found: TopicMetadata) -> Topic:
    parts = sorted(found.partitions.values(), key=lambda part: part.id)
    return Topic(str(found.topic), tuple(Partition(p.id, p.leader, tuple(p.replicas), tuple(p.isrs)) for p in parts))


def _error(error: KafkaError, what: str, *, changes: bool = False) -> KeptError:
    """The error of our tree. A change whose answer was lost may have happened; a look has nothing to be unknown."""
    code, reason = error.code(), error.str()
    if code in _WAYS_OUT:
        return FixConfiguration(f"{what}: {reason}", way_out=_WAYS_OUT[code])
    never_sent = "while waiting for controller" in reason or ("broker" in reason and "available" in reason)
    if code in _NO_ANSWER and changes and not never_sent:
        return OutcomeUnknown(
            f"{what}, or its answer was lost: {reason}", way_out="look with `kept topics list` before trying again"
        )
    if code in _NO_ANSWER:
        return TryAgain(f"{what}: no broker answers ({reason})", way_out="check the address, and that the brokers run")
    return FixConfiguration(f"{what}: {reason}", way_out="correct what it names")
