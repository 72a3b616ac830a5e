"""A reader without a group: it looks at a topic and leaves no trace, for people who look and for audits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import Enum
from types import TracebackType

from confluent_kafka import Consumer as Client
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from kept.consumer.asking import ANSWER_WITHIN, ask_offsets
from kept.consumer.records import Record
from kept.errors import FixConfiguration, KeptError, TryAgain
from kept.guarantees import only_asks


class Start(Enum):
    """Where a reader begins."""

    BEGINNING = "beginning"
    END = "end"


class Reader:
    """Reads one topic, or one partition of it, from the beginning or from now on.

    `committed=True` sees what a read_committed reader sees; otherwise records of open and aborted
    transactions show as well. A reader keeps no progress: it has no guarantee to keep.
    """

    def __init__(
        self, bootstrap: str, topic: str, *, start: Start, committed: bool = True, partition: int | None = None
    ) -> None:
        self._topic = topic
        self._admin = AdminClient(only_asks({"bootstrap.servers": bootstrap}))
        self._client = Client(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "kept.reader",  # librdkafka wants one; it is never joined nor committed to
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "check.crcs": True,
                "allow.auto.create.topics": False,
                "log_level": 0,
            }
        )
        self._reached: dict[int, int] = {}
        try:
            chosen = self._partitions(partition)
            self._begun = self._ends(chosen, start)
            # By number, not as a logical END: that is resolved at the first fetch, and skips what comes until then.
            self._client.assign([TopicPartition(topic, number, offset) for number, offset in self._begun.items()])
        except BaseException:
            self._client.close()
            raise

    def _partitions(self, partition: int | None) -> list[int]:
        try:
            found = self._client.list_topics(self._topic, timeout=ANSWER_WITHIN).topics[self._topic]
        except KafkaException as failure:
            raise _no_answer(failure.args[0]) from failure
        if found.error is not None:
            raise FixConfiguration(
                f"topic {self._topic} cannot be read: {found.error.str()}",
                way_out="`kept topics list` shows the topics there are",
            )
        if partition is not None and partition not in found.partitions:
            raise FixConfiguration(
                f"topic {self._topic} has no partition {partition}",
                way_out=f"its partitions are 0 to {len(found.partitions) - 1}",
            )
        return sorted(found.partitions) if partition is None else [partition]

    def _ends(self, partitions: list[int], which: Start) -> dict[int, int]:
        """Where each log begins or ends, open transactions included; a new leader is given time to know."""
        end: OffsetSpec = OffsetSpec.latest() if which is Start.END else OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        question = {TopicPartition(self._topic, number): end for number in partitions}

        try:
            answers = ask_offsets(self._admin, question, IsolationLevel.READ_UNCOMMITTED)
            return {place.partition: answer.offset for place, answer in answers.items()}
        except KafkaException as failure:
            raise _no_answer(failure.args[0]) from failure

    def poll(self, timeout: float) -> Record | None:
        """The next record, or None when none came within the time."""
        message = self._client.poll(timeout)
        if message is None:
            return None
        error = message.error()
        if error is None:
            return Record(message)
        if error.code() == KafkaError._PARTITION_EOF:
            ended = Record(message)
            self._reached[ended.partition] = ended.offset
            return None
        if error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            return None  # the client reconnects by itself
        raise _no_answer(error)

    def to_end(self, patience: float = ANSWER_WITHIN) -> Iterator[Record]:
        """Every record up to where the log ends now.

        A transaction that is being committed is waited for: its records are below that end. One that stays
        open, or brokers that do not answer, end in `TryAgain`.
        """
        ends = self._ends(list(self._begun), Start.END)
        self._reached = {number: at for number, at in self._begun.items() if at >= ends[number]}
        heard = time.monotonic()
        while behind := [number for number, end in ends.items() if self._reached.get(number, -1) < end]:
            record = self.poll(0.5)
            if record is not None:
                heard = time.monotonic()
                yield record
            elif time.monotonic() - heard > patience:
                raise TryAgain(
                    f"nothing more of {self._topic} came for {patience:.0f} s, and partitions {behind} are not at "
                    "their end: the brokers are away, or a transaction is still open",
                    way_out="read uncommitted to see what is there; a transaction left open ends after its time-out",
                )

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _no_answer(error: KafkaError) -> KeptError:
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        return FixConfiguration(
            f"records were deleted before they were read: {error.str()}",
            way_out="read again from the beginning of what is left",
        )
    return TryAgain(f"the brokers do not answer: {error.str()}", way_out="check the address, and that they run")
