"""Rows put aside in a topic of the pipeline's own: each message is a small Arrow table, so that few carry many rows.

A set is the messages with its name, numbered, all in one partition, in order; one that a resend has doubled counts
once. (An idempotent producer would need no numbers, and wait half a second for its own in every task.) Nobody but the
driver reads, and it counts. What was moved is deleted, and the rest ends with the topic's retention.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kept.consumer.faults import is_passing, reading_error
from kept.errors import KeptError, OutcomeUnknown
from kept.guarantees import only_asks
from kept.producer.clients import flushed, make_client
from kept.producer.fates import error_of
from kept.progress import staging_is_whole
from kept.spark.staging import Staged, StagingLost

PARTITIONS = 3
MESSAGE = 512 << 10
LARGEST = 16 << 20
"""A single row may be as large as the brokers allow where it goes; here it travels with its schema."""
TOPIC_SETTINGS = {"cleanup.policy": "delete", "retention.ms": "86400000", "max.message.bytes": str(LARGEST)}
CLIENT_SETTINGS = {
    "enable.idempotence": False,
    "acks": "all",
    "max.in.flight.requests.per.connection": 1,
    "compression.type": "lz4",
    "linger.ms": 0,
    "message.max.bytes": LARGEST,
    "delivery.timeout.ms": 60_000,
}
STAGED_WITHIN = 60.0
READ_WITHIN = 60.0


def staging_topic(pipeline: str) -> str:
    """Behind a prefix of its own: a name in front could make it the topic that carries somebody's progress."""
    return f"kept.staging.{pipeline}"


@dataclass(frozen=True)
class Place:
    """Where a set is: its messages are between these offsets, perhaps with others' in between."""

    partition: int
    first: int
    last: int
    messages: int


@dataclass(frozen=True)
class KafkaStaging:
    """What travels to the tasks."""

    topic: str
    client: Mapping[str, object] = field(repr=False)

    def open(self, task: int) -> KafkaStageWriter:
        return KafkaStageWriter(self, task)


class KafkaStageWriter:
    """Puts the rows of one task aside; all in one partition, so that they stay in order."""

    def __init__(self, staging: KafkaStaging, task: int) -> None:
        self._topic = staging.topic
        self._partition = task % PARTITIONS
        self._client = make_client(only_asks({**CLIENT_SETTINGS, **staging.client}))

    def write(self, name: str, first: int, rows: pa.Table) -> Place:  # noqa: ARG002 - offsets keep the order here
        offsets: list[int] = []
        failed: list[KeptError] = []

        def hear(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offsets.append(int(message.offset() or 0))
            else:
                failed.append(error_of(error, self._topic, may_have_been_resent=True))

        for number, part in enumerate(parts(rows)):
            self._send(part, f"{name} {number}".encode(), hear)
        if flushed(self._client, STAGED_WITHIN):
            failed.append(OutcomeUnknown("not every row was put aside in time", way_out="see that the brokers run"))
        if failed:
            raise failed[0]
        return Place(self._partition, min(offsets), max(offsets), len(offsets))

    def close(self) -> None:
        self._client.purge()

    def _send(self, part: pa.Table, key: bytes, hear: object) -> None:
        produce = partial(self._client.produce, self._topic, packed(part), key, self._partition, on_delivery=hear)  # type: ignore[arg-type]
        while True:
            try:
                produce()
            except BufferError:
                self._client.poll(0.1)
            except KafkaException as failure:
                raise error_of(failure.args[0], self._topic, may_have_been_resent=False) from failure
            else:
                return


def parts(rows: pa.Table) -> Iterator[pa.Table]:
    """Slices of about the size of a message."""
    each = max(1, rows.num_rows * MESSAGE // max(1, rows.nbytes))
    for start in range(0, rows.num_rows, each):
        yield rows.slice(start, each)


def packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def unpacked(message: bytes) -> pa.Table:
    return pa.ipc.open_stream(message).read_all()


def read_staged(client: Mapping[str, object], topic: str, staged: Sequence[Staged]) -> Iterator[pa.Table]:
    """Every row of these sets, each partition in order; less than was promised, or more, is an error at the end."""
    wanted = {each.name: each for each in staged if each.rows}
    begin: dict[int, int] = {}
    for each in wanted.values():
        place = each.place
        begin[place.partition] = min(place.first, begin.get(place.partition, place.first))
    left = {f"{name} {number}".encode() for name, each in wanted.items() for number in range(each.place.messages)}
    rows: Counter[str] = Counter()
    settings = {"group.id": "kept.reader", "enable.auto.commit": False, "auto.offset.reset": "error"}
    reader = Consumer({**client, **settings, "isolation.level": "read_uncommitted"})
    try:
        reader.assign([TopicPartition(topic, *place) for place in begin.items()])
        for key, message in _messages(reader, topic, left):
            table = unpacked(message)
            rows[key.decode().partition(" ")[0]] += table.num_rows
            yield table
    finally:
        reader.close()
    if not staging_is_whole({name: each.rows for name, each in wanted.items()}, rows):
        raise _lost("sets do not have the rows that were counted")


def _messages(reader: Consumer, topic: str, left: set[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Each message that is left, once, until none is."""
    deadline = time.monotonic() + READ_WITHIN
    while left:
        message = reader.poll(0.5)
        if time.monotonic() > deadline:
            raise _lost("they could not be read to their end")
        if message is None:
            continue
        error = message.error()
        if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise _lost(f"they were deleted: {error.str()}")
        if error is not None and not is_passing(error):
            raise reading_error(error, topic)
        key = message.key()
        if error is None and isinstance(key, bytes) and key in left:
            left.discard(key)
            deadline = time.monotonic() + READ_WITHIN
            yield key, message.value() or b""


def _lost(why: str) -> StagingLost:
    return StagingLost(
        f"not all rows that were put aside are there: {why}",
        way_out="start it again: nothing was moved, and the batch is computed again",
    )
