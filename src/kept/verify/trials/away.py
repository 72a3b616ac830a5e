"""Something happens while a processor is away: it has read a part, ended in good order, and is started again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from kept.admin.groups import Groups
from kept.errors import FixConfiguration, TryAgain
from kept.guarantees import AtLeastOnce, ExactlyOnce, only_asks
from kept.local.ports import BROKERS
from kept.verify.checkers import Anomaly
from kept.verify.history import Begun, Shortened
from kept.verify.trials.arena import APPENDED, SOUND, Arena, effects_in
from kept.verify.trials.expiring import delete_position
from kept.verify.trials.feeding import Source, feed, fill, mark_ends, put_marks, sink_of
from kept.verify.trials.plain_reading import bounds_of
from kept.verify.trials.scenario import Control
from kept.verify.trials.things import PIPELINE, Thing
from kept.verify.trials.worker import DONE, STOPPED
from kept.verify.workload import Workload

SLOW = {"thinks": 0.002, "one_by_one": True}
"""So that a processor can be met in the middle of its work."""
EARLIEST = Thing("confluent-kafka with auto.offset.reset=earliest", "raw_consumer", AtLeastOnce.word, {}, SLOW)
"""For it, a log or a group that is not what it was is just another one to begin with. It never tells anything, so that
its silence shows nothing: what it has not read, or has read again, does.
"""
DATED = Thing(
    "kept.Consumer into Postgres, at-least-once, from a time on",
    "processor",
    AtLeastOnce.word,
    {},
    {**SLOW, "dated": True},
)
"""Who begins at the beginning is allowed to begin there again, and writes no birth down."""
SKIPS = Control(EARLIEST, frozenset({Anomaly.LOST}))
BEGINS_AGAIN = Control(EARLIEST, frozenset({Anomaly.DUPLICATED}))
ANSWERED_WITHIN = 30.0
DELETED_WITHIN = 120.0
"""A broker begins to look for old records half a minute after its start, and looks every few seconds then."""


BELIEVES = Control(
    Thing("progress in plain group offsets (kept.Consumer, at-least-once)", "processor", AtLeastOnce.word, {}, SLOW),
    frozenset({Anomaly.LOST}),
)
"""Whoever may commit to its group says where it goes on."""


@dataclass(frozen=True)
class Left:
    """What a processor left behind when it ended, and what may happen to it then."""

    arena: Arena
    source: Source
    group: str
    carrier: str
    """The topic on whose partitions the group's offsets are the progress."""


Happening: TypeAlias = Callable[[Left], str]
"""Does something to the source or to progress, and says what."""


def play_while_away(
    happens: Happening, arena: Arena, thing: Thing, *, mark: Callable[[Arena, Source], None] = mark_ends
) -> None:
    """The ends of the source are marked when it has happened: a mark from before would be of another log."""
    source = feed(arena, ends=False)
    sink = sink_of(arena, source, thing)
    part = arena.moments(1)[0]
    first = arena.start(thing, source.topic, options=sink.options())
    arena.wait_effects(first, sink, part)
    first.ask_to_end()
    arena.finish(first)
    if effects_in(sink) >= arena.volume.records:
        raise TryAgain("it had read everything before anything happened", way_out="run it with more records")
    arena.struck(happens(Left(arena, source, group_of(arena, thing), _carrier(source, thing))))
    mark(arena, source)
    arena.finish_when_complete(sink, arena.start(thing, source.topic, options=sink.options()), may_end=(DONE, STOPPED))
    sink.audit()


def group_of(arena: Arena, thing: Thing) -> str:
    """Pipelines on Spark have one of kept's own under every guarantee, consumers under exactly-once only."""
    plain, keeps = arena.groups
    return keeps if thing.guarantee == ExactlyOnce.word or thing.role == PIPELINE else plain


def _carrier(source: Source, thing: Thing) -> str:
    """Pipelines on Spark have theirs on a topic of kept's own; there the source's partitions have only a mirror."""
    return f"kept.progress.{source.topic}" if thing.role == PIPELINE else source.topic


def records_deleted(left: Left) -> str:
    """Nine tenths of each partition, what was read and what was not."""
    cuts = [TopicPartition(left.source.topic, number, end * 9 // 10) for number, end in _ends(left).items()]
    admin = _admin(left.arena)  # by a name: one that nobody holds takes its answers along
    with _told("the records were not deleted"):
        for deleted in admin.delete_records(cuts, request_timeout=ANSWERED_WITHIN).values():
            deleted.result()
    _note_where_logs_begin(left)
    return "nine tenths of the source were deleted, more than had been read"


def topic_made_again(left: Left) -> str:
    """With other records in it."""
    left.arena.topics.delete(left.source.topic)
    left.arena.wait(lambda: _made(left.arena, left.source), "the topic is made again")
    _fill_with_others(left)
    return "the source was deleted, and made again with other records"


def tails_cut(left: Left) -> str:
    """As after a power loss that every broker had: page caches that were never written are gone, of all copies."""
    brokers = [left.arena.cluster.broker(number) for number in BROKERS]
    for broker in brokers:
        broker.kill()
    for broker in brokers:
        for segment in broker.data.glob(f"{left.source.topic}-*/*.log"):
            os.truncate(segment, segment.stat().st_size // 20)
    left.arena.cluster.up()
    _fill_with_others(left)
    return "all copies of the source lost their tails, read and unread, and other records were written behind"


def _fill_with_others(left: Left) -> None:
    """More than before, so that every position that somebody holds is inside. They are owed to nobody."""
    arena, source = left.arena, left.source
    values = list(Workload("s2", 2 * arena.volume.records, 20, arena.seed).values())
    now = arena.recorder.now()
    arena.recorder.write_all(Begun(str(value), now) for value in values)
    fill(arena, source.topic, values)


def mark_for_nobody(arena: Arena, source: Source) -> None:
    """The ends of a source that was filled with others.

    Who goes on as if nothing had been is known by these; who stops before them owes nothing for them.
    """
    now = arena.recorder.now()
    arena.recorder.write_all(Begun(mark, now) for mark in source.marks)
    put_marks(arena, source)


def progress_moved(left: Left) -> str:
    return _commit_as_stranger(left, left.carrier)


def mirror_moved(left: Left) -> str:
    """Where lag tools look, and nobody who has progress elsewhere."""
    return _commit_as_stranger(left, left.source.topic)


def _commit_as_stranger(left: Left, topic: str) -> str:
    """To the last record of each partition: what lies before it is skipped by who believes it."""
    last = [TopicPartition(topic, number, end - 1) for number, end in _ends(left).items()]
    stranger = Client({"bootstrap.servers": left.arena.cluster.bootstrap, "group.id": left.group, "log_level": 0})
    try:
        with _told("the stranger could not commit"):
            stranger.commit(offsets=last, asynchronous=False)
    finally:
        stranger.close()
    return f"a stranger committed positions near the end to the group, on {topic}"


def group_deleted(left: Left) -> str:
    groups = Groups(left.arena.cluster.bootstrap)
    left.arena.wait(lambda: groups.delete(left.group), "the group is empty, and deleted")
    return "a stranger deleted the group"


def position_expired(left: Left) -> str:
    """Of the partition of which most was read, while the others' stay."""
    groups = Groups(left.arena.cluster.bootstrap)
    left.arena.wait(lambda: not groups.describe(left.group).members, "the group is empty")
    group = groups.describe(left.group)
    furthest = max(groups.positions(group), key=lambda position: position.offset or 0).place
    delete_position(group.coordinator.address, left.group, furthest.topic, furthest.partition)
    return f"the group's position on {furthest} was gone, as when it expires"


def retention_overtakes(left: Left) -> str:
    """The brokers themselves delete what is old: here, everything that was there."""
    ends = _ends(left)
    with _retention(left, "1"):
        left.arena.wait(lambda: _begins(left) == ends, "retention has deleted everything", DELETED_WITHIN)
    _note_where_logs_begin(left)
    return "retention deleted everything in the source, read and unread"


def _note_where_logs_begin(left: Left) -> None:
    """By this the number that the product tells is compared with what is really gone."""
    now = left.arena.recorder.now()
    left.arena.recorder.write_all(
        Shortened(left.source.topic, partition, first, now) for partition, first in _begins(left).items()
    )


@contextmanager
def _retention(left: Left, milliseconds: str) -> Iterator[None]:
    _set_retention(left, milliseconds)
    yield
    _set_retention(left, "-1")


def _set_retention(left: Left, milliseconds: str) -> None:
    admin = _admin(left.arena)
    entry = ConfigEntry("retention.ms", milliseconds, incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ConfigResource.Type.TOPIC, left.source.topic, incremental_configs=[entry])
    with _told("the retention was not set"):
        for done in admin.incremental_alter_configs([wanted], request_timeout=ANSWERED_WITHIN).values():
            done.result()
    left.arena.wait(
        lambda: left.arena.topics.settings(left.source.topic).get("retention.ms") == milliseconds, "retention is set"
    )


def _made(arena: Arena, source: Source) -> bool:
    """A topic that was just deleted may be there for a moment."""
    try:
        arena.topics.create(source.topic, len(source.ends), SOUND, APPENDED)
    except FixConfiguration:
        return False
    return True


def _ends(left: Left) -> dict[int, int]:
    """Where each partition of the source ends."""
    return {partition: end for partition, (_, end) in _bounds(left).items()}


def _begins(left: Left) -> dict[int, int]:
    """Where each partition of the source begins."""
    return {partition: start for partition, (start, _) in _bounds(left).items()}


def _bounds(left: Left) -> dict[int, tuple[int, int]]:
    return bounds_of(left.arena.cluster.bootstrap, left.source.topic)


def _admin(arena: Arena) -> AdminClient:
    return AdminClient(only_asks({"bootstrap.servers": arena.cluster.bootstrap}))


@contextmanager
def _told(what: str) -> Iterator[None]:
    """A fault that could not be done cuts the trial short."""
    try:
        yield
    except KafkaException as failure:
        raise TryAgain(f"{what}: {failure.args[0].str()}", way_out="run it again") from failure
