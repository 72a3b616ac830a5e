"""What tests of pipelines from Kafka to Kafka share: sources, members in threads and processes, and the audit."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kept.admin.topics import Topics
from kept.consumer import Reader, Start
from kept.consumer.consuming import Consumer
from kept.consumer.into_kafka import Transform
from kept.consumer.outgoing import Output
from kept.consumer.records import Record
from kept.guarantees import AtLeastOnce, ExactlyOnce
from kept.producer import Producer

MEMBER = Path(__file__).with_name("piping.py")
QUICK: dict[str, Any] = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}


def new_topic(bootstrap: str, partitions: int = 3, **settings: object) -> str:
    name = f"test-{uuid.uuid4().hex[:12]}"
    overrides = {key.replace("_", "."): value for key, value in settings.items()}
    Topics(bootstrap).create(name, partitions, ExactlyOnce("tests"), overrides)
    return name


def new_name() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


def fill(bootstrap: str, topic: str, values: Sequence[str | bytes], partition: int | None = None) -> None:
    """Number them through the partitions, or put all into one."""
    with Producer(bootstrap, AtLeastOnce()) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % 3 if partition is None else partition)


def read(bootstrap: str, topic: str) -> list[Record]:
    with Reader(bootstrap, topic, start=Start.BEGINNING) as reader:
        return list(reader.to_end())


def values(bootstrap: str, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in read(bootstrap, topic))


def ends(bootstrap: str, topic: str) -> dict[tuple[str, int], int]:
    """Behind the last record of each partition."""
    return {record.place: record.offset + 1 for record in read(bootstrap, topic)}


def copying(*topics: str) -> Transform:
    return lambda record: [Output(topic, record.value, record.key) for topic in topics]


def pipe(bootstrap: str, source: str, name: str, transform: Transform, **options: Any) -> None:
    """Run a member to the end of the source."""
    with Consumer(bootstrap, source, guarantee=ExactlyOnce(name), **QUICK) as consumer:
        consumer.into_kafka(transform, **{"seconds": 0.1, "until": ends(bootstrap, source), **options})


class Member:
    """A member in a thread of this process; what ended it is raised at `join`."""

    def __init__(self, bootstrap: str, source: str, name: str, transform: Transform, **options: Any) -> None:
        self.error: BaseException | None = None
        self.consumer = Consumer(bootstrap, source, guarantee=ExactlyOnce(name), **QUICK)
        self._run: Callable[[], None] = lambda: self.consumer.into_kafka(transform, **{"seconds": 0.1, **options})
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self.error = error
        finally:
            self.consumer.close()

    def stop(self) -> None:
        self.consumer.stop()
        self.join()

    def join(self, within: float = 90.0) -> None:
        self._thread.join(within)
        assert not self._thread.is_alive(), "the member does not end"
        if self.error is not None:
            raise self.error


@contextmanager
def member(bootstrap: str, source: str, name: str, transform: Transform, **options: Any) -> Iterator[Member]:
    """A member while the block runs; stopped behind it."""
    one = Member(bootstrap, source, name, transform, **options)
    try:
        yield one
    finally:
        one.consumer.stop()
        one._thread.join(90)
    one.join()


def process(bootstrap: str, source: str, name: str, outputs: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """A member in a process of its own, which runs to the end of the source; `point`, `nth` and `act` say more."""
    until = {number: offset for (_, number), offset in ends(bootstrap, source).items()}
    arguments = {"bootstrap": bootstrap, "source": source, "name": name, "outputs": list(outputs), "until": until}
    return subprocess.Popen(
        [sys.executable, str(MEMBER), json.dumps({**arguments, **options})], stdout=subprocess.PIPE, text=True
    )
