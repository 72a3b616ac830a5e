"""Which source it is: names are reused, ids are not. Progress in Kafka is signed with the topic's id (rules 3, 6)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, TopicDescription  # type: ignore[attr-defined]

from kept.consumer.asking import ANSWER_WITHIN, asked
from kept.consumer.faults import reading_error, set_position
from kept.consumer.positions import Next
from kept.consumer.records import Place
from kept.errors import ProgressMoved, SourceChanged
from kept.guarantees import only_asks

_SIGNATURE = re.compile(r"kept 1 (?P<topic_id>\S+)")


class Sources:
    """Asks the cluster for the identity of topics."""

    def __init__(self, settings: Mapping[str, object], admin: AdminClient | None = None) -> None:
        self.admin = AdminClient(only_asks(settings)) if admin is None else admin

    def cluster_id(self) -> str:
        try:
            found = self.admin.list_topics(timeout=ANSWER_WITHIN).cluster_id
        except KafkaException as failure:
            raise reading_error(failure.args[0], "the cluster") from failure
        return str(found)

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """The id of each topic as it is now."""
        return self.ask_topic_ids(topics)()

    def ask_topic_ids(self, topics: Sequence[str]) -> Callable[[], dict[str, str]]:
        """Ask now, and go on; what is returned waits for the answer."""
        described = self._ask(topics)
        return lambda: {topic: str(each.topic_id) for topic, each in described().items()}

    def partitions(self, topic: str) -> tuple[str, list[int]]:
        """The topic's id and the numbers of its partitions, as one broker knows them at one moment."""
        found = self._ask([topic])()[topic]
        return str(found.topic_id), sorted(partition.id for partition in found.partitions)

    def internal(self, topics: Sequence[str]) -> set[str]:
        """Those that are Kafka's own; their names begin alike, and others' may."""
        suspects = [topic for topic in topics if topic.startswith("__")]
        described = self._ask(suspects)() if suspects else {}
        return {topic for topic, each in described.items() if each.is_internal}

    def describe(self, topics: Sequence[str], within: float = ANSWER_WITHIN) -> dict[str, Future[TopicDescription]]:
        """Ask once, and wait for nothing."""
        return self.admin.describe_topics(TopicCollection(list(topics)), request_timeout=within)

    def _ask(self, topics: Sequence[str]) -> Callable[[], dict[str, TopicDescription]]:
        answers = asked(self.admin, partial(self.describe, topics))

        def heard() -> dict[str, TopicDescription]:
            try:
                return answers()
            except KafkaException as failure:
                raise reading_error(failure.args[0], ", ".join(topics)) from failure

        return heard


def signature(topic_id: str) -> str:
    """What is noted with a position that an exactly-once process goes on from."""
    return f"kept 1 {topic_id}"


def signed_id(note: str) -> str | None:
    """The id of the topic that a position was recorded for; none without our signature."""
    match = _SIGNATURE.fullmatch(note)
    return None if match is None else match["topic_id"]


def signed(position: Next, topic_id: str) -> Next:
    """The position with our signature."""
    return position._replace(note=signature(topic_id))


def refuse_strange(group: str, place: Place, position: Next, topic_id: str) -> None:
    """A position without our signature was written by a stranger; one with another id belongs to another topic."""
    signed_for = signed_id(position.note)
    where = f"{place[0]}[{place[1]}]@{position.offset}"
    if signed_for is None:
        raise ProgressMoved(
            f"the progress {where} lacks our signature: somebody else committed to this group",
            way_out="find who uses this group; compare the output with the source, then set it where the output ends: "
            f"`{set_position(group, *place)}`",
        )
    refuse_changed(place[0], signed_for, topic_id)


def refuse_changed(topic: str, then: str, now: str) -> None:
    """A topic that was deleted and made again is another source."""
    if then != now:
        raise SourceChanged(
            f"{topic} was deleted and made again: its id was {then} and is {now}",
            way_out="start under a new name for the new topic",
        )
