"""Where to go on from in a partition, as it is told to the client and back."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import TopicPartition

from kept.consumer.records import Place, Record


class Next(NamedTuple):
    """The position to go on from, under which leader the record before it was written, and what is noted with it."""

    offset: int
    leader_epoch: int = -1
    note: str = ""


def after(record: Record) -> Next:
    """The position behind a record."""
    return Next(record.offset + 1, record.leader_epoch)


def at(record: Record) -> Next:
    """The position of a record: to read it again. Of the record before nobody knows the epoch; its own does as well."""
    return Next(record.offset, record.leader_epoch)


def to_client(place: Place, position: Next) -> TopicPartition:
    topic, partition = place
    return TopicPartition(topic, partition, position.offset, position.note, position.leader_epoch)


def from_client(answer: TopicPartition) -> Next | None:
    """None: nothing is recorded."""
    if answer.offset < 0:
        return None
    return Next(answer.offset, -1 if answer.leader_epoch is None else answer.leader_epoch, answer.metadata or "")
