"""What tests of consumers share: records to read, and a look at a group by clients that are not ours."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from kept.admin.topics import Topics
from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.producer import Producer
from tests.brokers.programs import member
from tests.brokers.programs.member import Life


class Did(NamedTuple):
    """A line that a member wrote: who did which record."""

    who: int
    partition: int
    offset: int
    value: str


def make_topic(bootstrap: str, partitions: int) -> str:
    name = f"test-{uuid.uuid4().hex[:12]}"
    Topics(bootstrap).create(name, partitions, ExactlyOnce("tests"))
    return name


def fill(bootstrap: str, topic: str, values: Iterable[object], partitions: int = 1) -> None:
    """Numbered records, in turn to each partition."""
    with Producer(bootstrap, AtLeastOnce()) as producer:
        for number, value in enumerate(values):
            producer.send(topic, str(value), partition=number % partitions)


class Watcher:
    """Sees what is recorded for a group, without being a member."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int = 1) -> None:
        self.group = group
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._client = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
        self._asked = [TopicPartition(topic, number) for number in range(partitions)]

    def recorded(self) -> list[int]:
        """The next offset of each partition; negative where there is none. A coordinator may move meanwhile."""
        deadline = time.monotonic() + 30
        while True:
            try:
                return [int(found.offset) for found in self._client.committed(self._asked, timeout=30)]
            except KafkaException as failure:
                if failure.args[0].code() != KafkaError.NOT_COORDINATOR or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def members(self) -> int:
        described = self.admin.describe_consumer_groups([self.group])[self.group].result(30)
        return len(described.members)

    def stable(self) -> bool:
        """Whether every member was told its partitions."""
        described = self.admin.describe_consumer_groups([self.group])[self.group].result(30)
        return bool(described.state == ConsumerGroupState.STABLE)

    def set_by_hand(self, offsets: dict[int, int]) -> None:
        topic = self._asked[0].topic
        wanted = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
        self.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(self.group, wanted)])[self.group].result(
            30
        )

    def delete(self) -> None:
        self.admin.delete_consumer_groups([self.group])[self.group].result(30)

    def close(self) -> None:
        self._client.close()


def start(life: Life) -> subprocess.Popen[bytes]:
    """A member in a process of its own."""
    return subprocess.Popen([sys.executable, "-W", "error", str(member.__file__), life.as_argument()])


def did(effects: Path) -> list[Did]:
    lines = effects.read_text().splitlines() if effects.exists() else []
    found = [line.split(" ") for line in lines]
    return [
        Did(int(who), int(part), int(offset), value)
        for who, _, part, offset, value in (x for x in found if x[1] == "did")
    ]


def end(process: subprocess.Popen[bytes], within: float = 60.0) -> int:
    """How a process ends; one that does not is ended."""
    try:
        return process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
