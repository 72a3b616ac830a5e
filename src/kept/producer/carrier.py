"""The topics of our own that carry progress: offsets are kept for a topic that exists, and these nobody deletes.

Brokers can make such a topic on the side, and people can by a command that is not ours; then it is emptied after a
week, and whoever rests longer would silently begin anew. So one that is found is looked at, at every start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic

from kept.errors import FixConfiguration, ProgressLost, TryAgain
from kept.guarantees import CARRIER
from kept.producer import clients

logger = logging.getLogger("kept")
_POLICY = "cleanup.policy"
_COMPACTED: Mapping[str, str] = {_POLICY: "compact"}
_MADE_WITHIN = 30.0
_STEP, _ASKED_FOR, _PAUSE = 10.0, 30.0, 0.1
"""Seconds that one broker has for an answer, that a question is repeated for, and between two times."""
_FORBIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # by a broker that has not heard of it yet
}
T = TypeVar("T")


def make_carrier(
    admin: AdminClient, name: str = CARRIER, partitions: int = 1, settings: Mapping[str, str] = _COMPACTED
) -> None:
    """Make it, unless it is there, this large. It is compacted: the last record of a key is kept for good.

    For the start of something: it is a question or two.
    """
    if _made(admin, name, partitions, settings):
        return
    found, wanted = _policy(admin, name), settings[_POLICY]
    if found != wanted:
        _put_right(admin, name, found, wanted)


def _made(admin: AdminClient, name: str, partitions: int, settings: Mapping[str, str]) -> bool:
    """Whether it was made just now, with these settings; false when it was there, or somebody else came first."""

    def create() -> bool:
        request = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(settings))
        try:
            admin.create_topics([request], operation_timeout=_MADE_WITHIN)[name].result(_MADE_WITHIN)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    def enlarge() -> None:
        more = NewPartitions(name, partitions)
        admin.create_partitions([more], operation_timeout=_MADE_WITHIN)[name].result(_MADE_WITHIN)

    found = _told(
        lambda: admin.list_topics(name, timeout=clients.CONNECTS_WITHIN).topics[name],
        f"the topic {name} could not be looked for",
        f"ask for the right to describe {name}",
    )
    if found.error is not None:
        sets = "".join(f" --set {key}={value}" for key, value in settings.items())
        return _told(
            create,
            f"the topic {name} is missing, and could not be made",
            f"ask for it: `kept topics create {name} --partitions {partitions}{sets}`",
        )
    if len(found.partitions) < partitions:
        alter = f"kafka-topics.sh --bootstrap-server ADDRESS --alter --topic {name} --partitions {partitions}"
        _told(enlarge, f"the topic {name} is too small, and could not be made larger", f"ask for it: `{alter}`")
    return False


def _policy(admin: AdminClient, name: str) -> str:
    topic = ConfigResource(ConfigResource.Type.TOPIC, name)

    def look() -> str:
        rows = admin.describe_configs([topic], request_timeout=_STEP)[topic].result()
        return str(rows[_POLICY].value)

    return _told(
        look,
        f"whether the topic {name} keeps what it carries is not known: its settings could not be read",
        f"ask for the right DescribeConfigs on the topic {name}",
        _ASKED_FOR,
    )


def _put_right(admin: AdminClient, name: str, found: str, wanted: str) -> None:
    """It is ours by its name, and nothing is lost by keeping more; what is gone already only a person can judge."""
    command = (
        "kafka-configs.sh --bootstrap-server ADDRESS --alter --entity-type topics "
        f"--entity-name {name} --add-config {_POLICY}={wanted}"
    )
    begins = _begins(admin, name) if wanted == "compact" else 0
    if begins:
        raise ProgressLost(
            f"the topic {name} has {_POLICY}={found}, and its records before {begins} are gone: whose birth or "
            "progress was among them is not known",
            way_out="compare the effects of whoever may have rested that long with the source, before it starts again; "
            f"then have it kept from now on: `{command}`",
        )
    entry = ConfigEntry(_POLICY, wanted, incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])

    def alter() -> None:
        admin.incremental_alter_configs([topic], request_timeout=_STEP)[topic].result()

    _told(
        alter,
        f"the topic {name} has {_POLICY}={found}, needs {wanted}, and could not be altered",
        f"ask for it: `{command}`",
        _ASKED_FOR,
    )
    logger.warning("the topic %s had %s=%s: it is %s from now on", name, _POLICY, found, wanted)


def _begins(admin: AdminClient, name: str) -> int:
    """Where its log begins, in the partition where most is gone: compaction alone leaves that at 0."""

    def look() -> int:
        numbers = admin.list_topics(name, timeout=clients.CONNECTS_WITHIN).topics[name].partitions
        question = {TopicPartition(name, number): OffsetSpec.earliest() for number in numbers}  # type: ignore[no-untyped-call]
        answers = admin.list_offsets(question, request_timeout=_STEP)
        begins = [answer.result().offset for answer in answers.values()]
        if OFFSET_INVALID in begins:  # how librdkafka 2.16 tells of a leader that did not answer
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "a leader has not answered in time"))
        return max(begins, default=0)

    what = f"where the topic {name} begins is not known"
    return _told(look, what, f"ask for the right to describe {name}", _ASKED_FOR)


def _told(ask: Callable[[], T], what: str, without_right: str, within: float = 0.0) -> T:
    """The answer; what went wrong is told by what the caller may do.

    `within`: so long it is asked again while what is wrong may pass; for what does no more when it is done twice.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            return ask()
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() in _FORBIDDEN:
                raise FixConfiguration(f"{what}: {error.str()}", way_out=without_right) from failure
            if error.code() not in _PASSING or time.monotonic() > deadline:
                if error.code() in clients.NOBODY_ANSWERS:
                    raise clients.no_broker(error) from failure
                raise TryAgain(f"{what}: {error.str()}", way_out="try again when the brokers are back") from failure
        time.sleep(_PAUSE)
