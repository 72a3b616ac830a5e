"""The driver's look at its source: which cluster and topics they are, where each log begins and ends, if it was cut.

Rule 3: names are reused, ids are not; and a log that was cut after it was read is not the log that was read. A cut
needs an election, so only partitions whose leader epoch has risen since are asked, by a client that begins at the
recorded position with the recorded epoch: it is told at once when what it has read is no longer there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

from confluent_kafka import Consumer as Client
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin._listoffsets import ListOffsetsResultInfo, OffsetSpec

from kept.consumer import Start
from kept.consumer.asking import ANSWER_WITHIN, ask_offsets
from kept.consumer.faults import is_cut, reading_error
from kept.consumer.sources import Sources
from kept.errors import SourceChanged, TryAgain
from kept.progress import Identity, Progress, Source
from kept.stores import Part, Seed

UNKNOWN_EPOCH = -1
Offsets: TypeAlias = "dict[Part, tuple[int, int]]"
"""An offset of each partition, and the leader epoch that goes with it."""
Beginning: TypeAlias = "Start | datetime | Mapping[Part, int]"
"""Where a pipeline that is new begins: at an end of each log, at a time, or at positions that are known."""
_WHERE_IT_ENDS = re.compile(r"end offset (?:is )?(\d+)")


class Looking:
    """Asks the source cluster; keeps nothing."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = settings
        self._sources = Sources(settings)
        self.cluster_id = self._sources.cluster_id()

    def topics(self) -> list[str]:
        """Every topic that there is, but Kafka's own: Spark's patterns do not find those either."""
        try:
            found = sorted(self._sources.admin.list_topics(timeout=ANSWER_WITHIN).topics)
        except KafkaException as failure:
            raise reading_error(failure.args[0], "the cluster") from failure
        internal = self._sources.internal(found)
        return [topic for topic in found if topic not in internal]

    def partitions(self, topic: str) -> tuple[str, list[int]]:
        """The id of a topic, and the numbers of its partitions."""
        return self._sources.partitions(topic)

    def seeds(self, topic: str, start: Beginning) -> list[Seed]:
        """Where every partition of a topic begins: at a pipeline's birth, and when it is added later."""
        topic_id, numbers = self.partitions(topic)
        parts = [(topic, number) for number in numbers]
        beginnings = self._offsets(parts, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = self._offsets(parts, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        chosen = self._chosen(parts, start, beginnings)
        return [
            Seed(part[1], chosen[part], beginnings[part][0], Identity(self.cluster_id, topic_id, ends[part][1]))
            for part in parts
        ]

    def now(self, recorded: Mapping[Part, Progress]) -> dict[Part, Source]:
        """Each partition as it is now, seen from where progress stands."""
        parts = sorted(recorded)
        if not parts:
            return {}
        ids = self._sources.ask_topic_ids(sorted({topic for topic, _ in parts}))
        beginnings = self._offsets(parts, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = self._offsets(parts, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        topic_ids = ids()
        cut = self._cut(
            [
                progress
                for part, progress in recorded.items()
                if UNKNOWN_EPOCH < progress.identity.leader_epoch < ends[part][1]
                and progress.identity.topic_id == topic_ids[part[0]]
                and beginnings[part][0] <= progress.position.next_offset <= ends[part][0]
            ]
        )
        return {
            part: Source(
                Identity(self.cluster_id, topic_ids[part[0]], ends[part][1]),
                beginnings[part][0],
                ends[part][0],
                cut.get(part, ends[part][0]),
            )
            for part in parts
        }

    def refuse_changed(self, then: Mapping[Part, Source]) -> None:
        """After rows were read: they came from the topics that were looked at before, or it is told."""
        ids = self._sources.topic_ids(sorted({topic for topic, _ in then}))
        for (topic, partition), source in then.items():
            if ids[topic] != source.identity.topic_id:
                raise SourceChanged(
                    f"{topic} was deleted and made again while a batch was read from it: rows of partition {partition} "
                    f"may be of the new one (id {ids[topic]}, before it was {source.identity.topic_id})",
                    way_out="compare the last batch in the sink with the new topic; start a new pipeline for it",
                )

    def _chosen(self, parts: Sequence[Part], start: Beginning, beginnings: Offsets) -> dict[Part, int]:
        if start is Start.BEGINNING:
            return {part: beginnings[part][0] for part in parts}
        if isinstance(start, Mapping):
            return {part: start.get(part, beginnings[part][0]) for part in parts}
        # Up to the last stable offset: what an open transaction holds now is committed after the birth.
        ends = self._offsets(parts, OffsetSpec.latest(), committed=True)  # type: ignore[no-untyped-call]
        if isinstance(start, Start):
            return {part: ends[part][0] for part in parts}
        spec = OffsetSpec.for_timestamp(int(start.timestamp() * 1000))
        found = self._offsets(parts, spec)
        return {part: ends[part][0] if found[part][0] < 0 else min(found[part][0], ends[part][0]) for part in parts}

    def _offsets(self, parts: Iterable[Part], spec: OffsetSpec, *, committed: bool = False) -> Offsets:
        """A new leader is given time to know."""
        question = {TopicPartition(*part): spec for part in parts}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        try:
            answers = ask_offsets(self._sources.admin, question, level)
            return {(place.topic, place.partition): _answer(each) for place, each in answers.items()}
        except KafkaException as failure:
            raise reading_error(failure.args[0], "the source") from failure

    def _cut(self, recorded: Collection[Progress]) -> dict[Part, int]:
        """Where what was read ends now, of the partitions whose log was cut below the recorded position."""
        if not recorded:
            return {}
        client = Client(
            {
                **self._settings,
                "group.id": "kept.reader",  # never joined nor committed to
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.message.max.bytes": 1024,
                "fetch.wait.max.ms": 10,
            }
        )
        try:
            return _asked(client, {(each.position.topic, each.position.partition): each for each in recorded})
        finally:
            client.close()


def _answer(found: ListOffsetsResultInfo) -> tuple[int, int]:
    return found.offset, UNKNOWN_EPOCH if found.leader_epoch is None else found.leader_epoch


def _asked(client: Client, recorded: Mapping[Part, Progress]) -> dict[Part, int]:
    client.assign(
        [
            TopicPartition(*part, each.position.next_offset, leader_epoch=each.identity.leader_epoch)
            for part, each in recorded.items()
        ]
    )
    cut: dict[Part, int] = {}
    unheard = set(recorded)
    deadline = time.monotonic() + ANSWER_WITHIN
    while unheard:
        message = client.poll(0.5)
        if time.monotonic() > deadline:
            raise TryAgain(f"nobody says if {sorted(unheard)} were cut", way_out="see that the brokers run")
        if message is None:
            continue
        error, part = message.error(), (str(message.topic()), int(message.partition() or 0))
        if error is not None and is_cut(error):
            cut[part] = _end(error, recorded[part])
        if error is None or error.code() in (
            KafkaError._PARTITION_EOF,
            KafkaError._LOG_TRUNCATION,
            KafkaError._AUTO_OFFSET_RESET,
        ):
            unheard.discard(part)
    return cut


def _end(error: KafkaError, progress: Progress) -> int:
    """Where the broker says that the log parts from ours; at least below progress, when the text tells nothing."""
    told = _WHERE_IT_ENDS.search(error.str())
    below = progress.position.next_offset - 1
    return min(int(told[1]), below) if told else below
