"""Which source it is: names are reused, ids are not. Progress in Kafka is signed with the topic's id (rules 3, 6)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer  # before Python 3.11 not the built-in one

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, TopicDescription  # type: ignore[attr-defined]

from kept.consumer.faults import reading_error
from kept.consumer.membership import ANSWER_WITHIN, Next
from kept.consumer.records import Place
from kept.errors import ProgressMoved, SourceChanged, TryAgain

_SIGNATURE = re.compile(r"kept 1 (?P<topic_id>\S+)")


class Sources:
    """Asks the cluster for the identity of topics."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.admin = AdminClient(dict(settings))  # type: ignore[arg-type]

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
        answers = self.admin.describe_topics(TopicCollection(list(topics)), request_timeout=ANSWER_WITHIN)
        return lambda: {topic: str(_described(topic, answer).topic_id) for topic, answer in answers.items()}

    def partitions(self, topic: str) -> tuple[str, list[int]]:
        """The topic's id and the numbers of its partitions, as one broker knows them at one moment."""
        (answer,) = self.admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_WITHIN).values()
        found = _described(topic, answer)
        return str(found.topic_id), sorted(partition.id for partition in found.partitions)


def _described(topic: str, answer: Future[TopicDescription]) -> TopicDescription:
    try:
        return answer.result(2 * ANSWER_WITHIN)  # the request's own time-out is first
    except KafkaException as failure:
        raise reading_error(failure.args[0], topic) from failure
    except NoAnswer as failure:
        raise TryAgain(f"nobody says which {topic} it is", way_out="see that the brokers run") from failure


def signed(position: Next, topic_id: str) -> Next:
    """The position with our signature."""
    return position._replace(note=f"kept 1 {topic_id}")


def refuse_strange(place: Place, position: Next, topic_id: str) -> None:
    """A position without our signature was written by a stranger; one with another id belongs to another topic."""
    match = _SIGNATURE.fullmatch(position.note)
    where = f"{place[0]}[{place[1]}]@{position.offset}"
    if match is None:
        raise ProgressMoved(
            f"the progress {where} lacks our signature: somebody else committed to this group",
            way_out="find who uses this group; compare the output with the source, then set progress by hand",
        )
    refuse_changed(place[0], match["topic_id"], topic_id)


def refuse_changed(topic: str, then: str, now: str) -> None:
    """A topic that was deleted and made again is another source."""
    if then != now:
        raise SourceChanged(
            f"{topic} was deleted and made again: its id was {then} and is {now}",
            way_out="start under a new name for the new topic",
        )
