"""Consumer groups: listed, described with the lag that counts, and their positions moved by hand."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._group import ConsumerGroupDescription, ListConsumerGroupsResult, MemberDescription

from kept.admin.answers import ANSWER_WITHIN, COORDINATOR_MOVES, NO_ANSWER, answered, told
from kept.admin.backlog import Backlog, Place, Position, not_yet_counted, spans
from kept.admin.counting import count
from kept.admin.logs import Logs
from kept.coordinator import ask_coordinator
from kept.errors import FixConfiguration, KeptError, OutcomeUnknown, TryAgain
from kept.guarantees import only_asks

MOST_OFFSETS_COUNTED = 100_000
LONGEST_COUNT = 10.0
A_TRANSACTION_ENDS_WITHIN = 5.0
_HAS_MEMBERS = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.NON_EMPTY_GROUP,
}
_DEAD = "dead"
_STATES: Mapping[Enum, str] = {
    ConsumerGroupState.STABLE: "stable",
    ConsumerGroupState.EMPTY: "empty",
    ConsumerGroupState.DEAD: _DEAD,
    ConsumerGroupState.PREPARING_REBALANCING: "preparing to rebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "completing a rebalance",
}
_TYPES: Mapping[Enum, str] = {ConsumerGroupType.CLASSIC: "classic", ConsumerGroupType.CONSUMER: "consumer"}


@dataclass(frozen=True)
class Member:
    """A process that reads for a group, and what it was given to read."""

    id: str
    client: str
    host: str
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Coordinator:
    """The broker that keeps a group's positions."""

    node: int
    address: str


@dataclass(frozen=True)
class Group:
    """A group as its coordinator shows it."""

    name: str
    state: str
    type: str
    coordinator: Coordinator
    members: tuple[Member, ...]


class Groups:
    """The consumer groups of one cluster, classic ones and those of KIP-848."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._reached_by = {"bootstrap.servers": bootstrap}
        self._admin = AdminClient(only_asks({"bootstrap.servers": bootstrap}))
        self.logs = Logs(self._admin)

    def list(self) -> Sequence[Group]:
        """Every group by name; one that ends while it is asked about is left out."""

        def ask(left: float) -> ListConsumerGroupsResult:
            listing: ListConsumerGroupsResult = self._admin.list_consumer_groups(request_timeout=left).result()
            for error in listing.errors or []:  # a broker that did not answer may have groups: half a list is none
                raise error if isinstance(error, KafkaException) else KafkaException(error)
            return listing

        found = answered(ask, "the groups cannot be listed").valid or []
        described = self._described(sorted(each.group_id for each in found))
        return [group for group in described if group.state != _DEAD]

    def describe(self, name: str) -> Group:
        """One group: its state, its coordinator and its members."""
        if (group := self.find(name)) is None:
            raise FixConfiguration(f"there is no group {name}", way_out="`kept groups list` shows the groups there are")
        return group

    def find(self, name: str) -> Group | None:
        """A group; none when the brokers do not know it, or not any more."""
        if not name:
            raise FixConfiguration("a group has a name", way_out="`kept groups list` shows the groups there are")
        (group,) = self._described([name])
        return None if group.state == _DEAD else group  # what the brokers say of a group they do not know

    def _described(self, names: Sequence[str]) -> Sequence[Group]:
        if not names:
            return []

        def ask(left: float) -> Sequence[ConsumerGroupDescription]:
            described = ask_coordinator(
                self._reached_by,
                lambda client, timeout: client.describe_consumer_groups([*names], request_timeout=timeout),
                left,
            )
            return [described[name] for name in names]

        what = f"group {names[0]} cannot be described" if len(names) == 1 else "the groups cannot be described"
        return [_group(found) for found in answered(ask, what)]

    def positions(self, group: Group) -> Sequence[Position]:
        """What a group has committed, for every partition of every topic that it has to do with."""
        committed = self._committed(group.name, None, stable=False)
        topics = {each.place.topic for each in committed}
        topics |= {place.topic for member in group.members for place in member.places}
        places = {each.place for each in committed} | set(self.logs.partitions(topics))
        return self.positions_at(group.name, sorted(places))

    def positions_at(self, name: str, places: Sequence[Place]) -> Sequence[Position]:
        """What a group has committed for these partitions."""
        moving = {each.place for each in self._committed(name, places, stable=True) if each.moving}
        found = self._committed(name, places, stable=False)
        return [replace(each, moving=each.place in moving) for each in found]

    def settled_positions_at(self, name: str, places: Sequence[Place]) -> Sequence[Position]:
        """The same once no open transaction carries another position; one that is just ending is waited for."""
        deadline = time.monotonic() + A_TRANSACTION_ENDS_WITHIN
        while True:
            found = self.positions_at(name, places)
            moving = ", ".join(str(each.place) for each in found if each.moving)
            if not moving:
                return found
            if time.monotonic() > deadline:
                raise TryAgain(
                    f"an open transaction carries another position of group {name} on {moving}: moved now, the "
                    "position would not be the one that the transaction's records are committed with",
                    way_out="stop the process that writes it; a transaction left open ends after its time-out",
                )
            time.sleep(0.1)

    def _committed(self, name: str, places: Collection[Place] | None, *, stable: bool) -> Sequence[Position]:
        """The committed positions, of all partitions when none are named; `stable` finds open transactions."""
        if places is not None and not places:
            return []
        wanted = None if places is None else [TopicPartition(place.topic, place.partition) for place in places]
        request = ConsumerGroupTopicPartitions(name, wanted)

        def ask(left: float) -> Sequence[Position]:
            listed = ask_coordinator(
                self._reached_by,
                lambda client, timeout: client.list_consumer_group_offsets(
                    [request], require_stable=stable, request_timeout=timeout
                ),
                left,
            )
            return [_position(found) for found in listed[name].topic_partitions]

        return sorted(answered(ask, f"the positions of group {name} cannot be read"), key=lambda each: each.place)

    def backlogs(self, positions: Sequence[Position]) -> Sequence[Backlog]:
        """What is left to read behind each position, counted record by record as far as that is affordable."""
        there = set(self.logs.partitions({each.place.topic for each in positions}))
        bounds = self.logs.bounds(sorted(there & {each.place for each in positions}))
        by_offsets = [not_yet_counted(each, bounds.get(each.place)) for each in positions]
        tallies = count(self._bootstrap, spans(by_offsets, MOST_OFFSETS_COUNTED), LONGEST_COUNT)
        return [replace(each, tally=tallies.get(each.position.place, each.tally)) for each in by_offsets]

    def move(self, name: str, offsets: Mapping[Place, int], *, note: str = "") -> None:
        """Commit these positions for a group, and this note with each. The brokers refuse while it has members."""
        wanted = [TopicPartition(place.topic, place.partition, offset, note) for place, offset in offsets.items()]
        deadline = time.monotonic() + ANSWER_WITHIN
        while True:
            errors = self._moved(name, wanted)
            if not errors:
                return
            if {error.code() for error in errors} <= COORDINATOR_MOVES and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            raise _not_moved(name, errors, partly=len(errors) < len(wanted))

    def delete(self, name: str) -> bool:
        """Whether it is gone now, also when it never was; False while it has a member."""
        try:
            ask_coordinator(
                self._reached_by,
                lambda client, timeout: client.delete_consumer_groups([name], request_timeout=timeout),
                ANSWER_WITHIN,
            )
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.code() == KafkaError.NON_EMPTY_GROUP:
                return False
            if error.code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise TryAgain(
                    f"group {name} was not deleted: {error.str()}", way_out="it is empty, and expires by itself"
                ) from failure
        return True

    def _moved(self, name: str, wanted: Sequence[TopicPartition]) -> Sequence[KafkaError]:
        request = ConsumerGroupTopicPartitions(name, [*wanted])
        try:
            answers = ask_coordinator(
                self._reached_by,
                lambda client, timeout: client.alter_consumer_group_offsets([request], request_timeout=timeout),
                ANSWER_WITHIN,
            )
            moved = answers[name].topic_partitions
        except KafkaException as failure:
            return [failure.args[0]] * len(wanted)
        return [each.error for each in moved if each.error is not None]


def has_members(name: str) -> FixConfiguration:
    """Why a group that somebody reads for is left alone."""
    return FixConfiguration(
        f"group {name} has members: they would go on from where they are, and commit over a position moved by hand",
        way_out=f"stop them, and try again when `kept groups describe {name}` shows none",
    )


def _not_moved(name: str, errors: Sequence[KafkaError], *, partly: bool) -> KeptError:
    """Why positions were not moved; an answer that was lost may hide that they were."""
    look = f"look with `kept groups describe {name}` before trying again"
    reasons = "; ".join(sorted({error.str() for error in errors}))
    if partly:
        return OutcomeUnknown(f"the positions of group {name} were moved only in part: {reasons}", way_out=look)
    codes = {error.code() for error in errors}
    if codes <= _HAS_MEMBERS:
        return has_members(name)
    what = f"the positions of group {name} were not moved"
    if codes & NO_ANSWER:
        return OutcomeUnknown(f"{what}, or the answer was lost: {reasons}", way_out=look)
    return told(errors[0], what)


def _group(found: ConsumerGroupDescription) -> Group:
    kind = _TYPES.get(found.type, "unknown")
    # The client has no words for two of KIP-848's states, and has one for each of the others.
    unnamed = "assigning or reconciling" if kind == "consumer" else "unknown"
    at = found.coordinator
    members = sorted((_member(each) for each in found.members), key=lambda member: (member.client, member.id))
    state = _STATES.get(found.state, unnamed)
    return Group(found.group_id, state, kind, Coordinator(at.id, f"{at.host}:{at.port}"), tuple(members))


def _member(found: MemberDescription) -> Member:
    given = found.assignment.topic_partitions if found.assignment is not None else []
    places = sorted(Place(each.topic, each.partition) for each in given)
    return Member(found.member_id, found.client_id, found.host.lstrip("/"), tuple(places))


def _position(found: TopicPartition) -> Position:
    place = Place(found.topic, found.partition)
    if found.error is None:
        return Position(place, found.offset if found.offset >= 0 else None, found.metadata or "")
    if found.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT:
        return Position(place, None, moving=True)
    raise KafkaException(found.error)
