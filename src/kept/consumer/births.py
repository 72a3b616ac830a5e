"""The births of groups, written down where offsets cannot expire with the group: missing later means lost.

A record of the carrier topic says that a group has begun to read the first so many partitions of a topic; it is
kept by compaction for good.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kept.consumer.asking import ANSWER_WITHIN, look_for
from kept.consumer.faults import is_passing, reading_error, set_position
from kept.consumer.sources import Sources
from kept.errors import ProgressLost, SourceChanged, TryAgain
from kept.guarantees import CARRIER, only_asks
from kept.producer.carrier import make_carrier


class Births:
    """Knows which topics a group was born into."""

    def __init__(self, settings: Mapping[str, object], group: str, sources: Sources) -> None:
        self._settings = settings
        self.group = group
        self._sources = sources
        self._is_kept = False

    def refuse_second(self, topic: str) -> None:
        """A group without any progress, of which a birth is known, has lost it; or its topic is another one now."""
        born = self.known(topic)
        if not born:
            return
        now = self._sources.topic_ids([topic])[topic]
        if now in born:
            raise ProgressLost(
                f"group {self.group} has read {topic} before, and its progress is gone: it expired, or was deleted",
                way_out=f"set it where the effects end: `{set_position(self.group, topic)}`; or choose a new name",
            )
        raise SourceChanged(
            f"group {self.group} has read another topic named {topic}, which was deleted: its id was {[*born][-1]}",
            way_out="choose a new name for the new topic; or have this one go on in it: "
            f"`{set_position(self.group, topic)}`",
        )

    def partitions(self, topic: str) -> int:
        """So many partitions, from the first on, were begun in this very topic."""
        born = self.known(topic)
        return born.get(self._sources.topic_ids([topic])[topic], 0) if born else 0

    def write(self, topic: str, partitions: int) -> None:
        """Once written, it stays."""
        topic_id = self._sources.topic_ids([topic])[topic]
        if self.known(topic).get(topic_id, -1) >= partitions:
            return
        told: list[KafkaError | None] = []
        # Twice is as good as once here, and an idempotent client would wait half a second for its number.
        client = Producer(only_asks({**self._settings, "acks": "all", "enable.idempotence": False, "linger.ms": 0}))
        client.produce(
            CARRIER,
            partition=0,  # where births are read, however many there are
            key=json.dumps(["birth", self.group, topic, topic_id, partitions]).encode(),
            value=b"{}",
            on_delivery=lambda error, _: told.append(error),
        )
        client.flush(ANSWER_WITHIN)
        if told != [None]:
            raise TryAgain(
                f"the birth of group {self.group} could not be written to {CARRIER}", way_out="try again later"
            )

    def known(self, topic: str) -> dict[str, int]:
        """The ids under which this group has read a topic of that name, and how many partitions of each.

        That nothing was ever written down is believed only to the controller, which makes the carrier or has it: a
        broker that is behind would turn lost progress into a new beginning. Whether it is kept is asked once.
        """
        if not self._any() or not self._is_kept:
            make_carrier(self._sources.admin)
            self._is_kept = True
        return self._of_group(topic, self._written())

    def glance(self, topic: str) -> dict[str, int]:
        """The same as a broker knows it that may be behind; nothing is made for it."""
        return self._of_group(topic, self.everyones())

    def _of_group(self, topic: str, written: Sequence[tuple[str, str, str, int]]) -> dict[str, int]:
        found: dict[str, int] = {}
        for group, name, topic_id, partitions in written:
            if (group, name) == (self.group, topic):
                found[topic_id] = max(partitions, found.get(topic_id, 0))
        return found

    def everyones(self) -> list[tuple[str, str, str, int]]:
        """All births in this cluster, oldest first: group, topic, its id, how many partitions."""
        return self._written() if self._any() else []

    def _any(self) -> bool:
        """Whether the broker that is asked knows the carrier."""
        try:
            return look_for(self._sources.admin, CARRIER).error is None
        except KafkaException as failure:
            raise reading_error(failure.args[0], CARRIER) from failure

    def _written(self) -> list[tuple[str, str, str, int]]:
        found = []
        for key in self._keys():
            try:
                kind, group, name, topic_id, partitions = json.loads(key)
            except (TypeError, ValueError):
                continue  # not a birth
            if kind == "birth":
                found.append((str(group), str(name), str(topic_id), int(partitions)))
        return found

    def _keys(self) -> list[bytes]:
        """Every key in the carrier, up to its end."""
        client = Consumer(
            {
                **self._settings,
                "group.id": "kept.reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_uncommitted",  # births are in no transaction, and wait for nobody's
                "fetch.wait.max.ms": 10,  # the end is told by an answer without records
            }
        )
        keys: list[bytes] = []
        try:
            client.assign([TopicPartition(CARRIER, 0, 0)])
            deadline = time.monotonic() + ANSWER_WITHIN
            while time.monotonic() < deadline:
                message = client.poll(0.5)
                error = None if message is None else message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return keys
                if error is not None and not is_passing(error):
                    raise reading_error(error, CARRIER)
                if message is not None and error is None:
                    keys.append(message.key() or b"")
        except KafkaException as failure:
            raise reading_error(failure.args[0], CARRIER) from failure
        finally:
            client.close()
        raise TryAgain(f"{CARRIER} could not be read to its end", way_out="see that the brokers run")
